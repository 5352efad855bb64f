//! The command `ferroflash`, run as users run it.

mod bad_arguments;
mod bad_input;
mod insight;
mod output;
mod sim_report;
mod subcommands;
mod sweep;
