//! Checks the module graph of the workspace's libraries against a table of who may import whom.
//!
//! | file | what it does |
//! |---|---|
//! | `rules` | the table, each rule with its reason |
//! | `tree` | the modules of a crate, found from its root file |
//! | `mentions` | the paths that a module's code names, `use` items and macro calls included |
//! | `resolve` | which modules a path leads to, through re-exports |
//! | `check` | violations of the rules |
//! | `workspace` | this workspace: its crates and their dependencies |
//!
//! Code is parsed, not searched: `use crate::Problem` leads to the module that defines `Problem`, however lib.rs
//! re-exports it. Tests (`#[cfg(test)]`) may import anything. Types that a module uses without naming them, such as a
//! method's return type, are not found.

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
