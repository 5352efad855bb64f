//! The command `ferroflash`, run as users run it.

mod attend;
mod bad_arguments;
mod bad_input;
mod bench;
mod caches;
mod gradients;
mod insight;
mod interrupted;
mod modifiers;
mod output;
mod scarce;
mod sim_report;
mod subcommands;
mod sweep;
