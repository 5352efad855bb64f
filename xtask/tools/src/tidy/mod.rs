//! Who may import whom: the module graph of the workspace's libraries, held to a table of rules.
//!
//! | file | what it does |
//! |---|---|
//! | `rules` | the table, each rule with its reason |
//! | `tree` | the modules of a crate, found from its root file |
//! | `mentions` | the paths that a module's code names, `use` items and macro calls included |
//! | `resolve` | which modules a path leads to, through re-exports |
//! | `check` | what breaks a rule |
//! | `workspace` | this workspace: its crates, and what they depend on |
//!
//! Code is parsed, not searched: `use crate::Problem` leads to the module that defines `Problem`, whatever lib.rs makes of
//! it. Tests (`#[cfg(test)]`) may import what they like. What a module is given without naming it, such as a method's
//! return value, is not seen.

mod check;
mod mentions;
mod resolve;
mod rules;
#[cfg(test)]
mod tests;
mod tree;
mod workspace;

pub use workspace::run;

use check::violations;
use rules::RULES;
use tree::Tree;
