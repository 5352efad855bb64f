//! Reports tests that were not run.

use std::io::Write;

/// Prints `NOT RUN: what`, past the test harness, which keeps the output of tests that pass.
pub fn not_run(what: &str) {
    let line = format!("NOT RUN: {what}\n");
    std::io::stderr()
        .write_all(line.as_bytes())
        .expect("standard error is open");
}
