//! Progress bars. indicatif draws nothing where standard error is not a terminal.

use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// Every bar and spinner of the command, so that a spinner below a bar does not draw over it.
static ALL: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

fn add(bar: ProgressBar, template: &str, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("the template is valid");
    ALL.add(bar).with_style(style).with_message(what)
}

/// A bar over `steps` of `what`.
pub fn bar(what: &'static str, steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64);
    let bar = add(bar, "{msg} [{bar:32}] {pos}/{len} {eta}", what);
    // Drawn at 0, before the first step is done.
    bar.tick();
    bar
}

/// A spinner for one long step, named by its message.
pub fn spinner(what: &'static str) -> ProgressBar {
    let spinner = add(
        ProgressBar::new_spinner(),
        "{spinner} {msg} {elapsed}",
        what,
    );
    turn(&spinner);
    spinner
}

/// Keeps `spinner` turning until it is finished or dropped; if no thread can be started, it stands still. indicatif's
/// own steady tick would panic then.
fn turn(spinner: &ProgressBar) {
    spinner.tick();
    if spinner.is_hidden() {
        return;
    }
    let spinner = spinner.downgrade();
    let _ = thread::Builder::new().spawn(move || {
        while let Some(spinner) = spinner.upgrade().filter(|spinner| !spinner.is_finished()) {
            spinner.tick();
            drop(spinner);
            thread::sleep(TURN);
        }
    });
}

const TURN: Duration = Duration::from_millis(100);
