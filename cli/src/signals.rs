//! Signals that end the command: partly written files are removed first.

use std::sync::Once;
use std::sync::mpsc;
use std::thread;
use std::{mem, ptr};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level;

/// Makes the signals of [`ENDING`] call `abandon` before they end the program by their default action, so that a shell sees
/// which of them did. Calls after the first change nothing.
pub fn watch(abandon: fn()) {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(move || {
        let (ready, is_ready) = mpsc::channel::<()>();
        // The thread installs the handlers: if it cannot be started, signals keep their actions.
        let started = thread::Builder::new().spawn(move || {
            let signals = ENDING.into_iter().filter(|signal| !is_ignored(*signal));
            let Ok(mut signals) = Signals::new(signals) else {
                return;
            };
            drop(ready);
            if let Some(signal) = signals.forever().next() {
                abandon();
                let _ = low_level::emulate_default_handler(signal);
                // Reached only if the default action did not end the program: the exit code that a shell would report.
                low_level::exit(128 + signal);
            }
        });
        if started.is_ok() {
            // Waits until the thread drops `ready`, which `recv` reports as an error.
            let _ = is_ready.recv();
        }
    });
}

const ENDING: [i32; 3] = [SIGHUP, SIGINT, SIGTERM];

/// Whether the command was started with `signal` ignored, as by `nohup`.
fn is_ignored(signal: i32) -> bool {
    // SAFETY: `sigaction` holds only integers and addresses, for which zero bytes are valid.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: a null new action changes nothing; the old one is written to `action`, a live local.
    let told = unsafe { libc::sigaction(signal, ptr::null(), &mut action) };
    told == 0 && action.sa_sigaction == libc::SIG_IGN
}
