//! Paths and reports, which the project's commands and their checks share.

pub mod paths;
pub mod report;
