//! Nothing is timed that is wrong.

use std::fmt;

use crate::failure::Failure;

/// Refuses to time a kernel whose result did not pass.
pub fn refuse_unless(
    passed: bool,
    kernel: &str,
    verdict: &impl fmt::Display,
) -> Result<(), Failure> {
    if passed {
        return Ok(());
    }
    Err(Failure::Failed(format!(
        "{kernel}: its result is wrong ({verdict}); a kernel is timed only if it is right"
    )))
}
