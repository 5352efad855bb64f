//! Progress bars. indicatif draws nothing where standard error is not a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar over `steps` of `what`.
pub fn bar(what: &'static str, steps: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} [{bar:32}] {pos}/{len} {eta}");
    ProgressBar::new(steps as u64)
        .with_style(style.expect("the template is valid"))
        .with_message(what)
}

/// Something that turns while one long step runs; its message says which.
pub fn spinner(what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}");
    let spinner = ProgressBar::new_spinner()
        .with_style(style.expect("the template is valid"))
        .with_message(what);
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}
