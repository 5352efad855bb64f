//! Paths, reports and times, which the project's commands and their checks share.

pub mod paths;
pub mod report;
pub mod times;
