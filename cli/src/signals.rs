//! Signals that end the command: what it has begun to write is removed first.

use std::sync::Once;
use std::sync::mpsc;
use std::thread;
use std::{mem, ptr};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level;

use crate::whole_file;

/// From now on the signals of [`ENDING`] call [`whole_file::abandon`] before they end the program as ever, so that a
/// shell sees which of them did.
pub fn watch() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        let (ready, is_ready) = mpsc::channel::<()>();
        // Where no thread can be started, signals keep doing what they do: handlers are for a thread that is there.
        let started = thread::Builder::new().spawn(move || {
            let signals = ENDING.into_iter().filter(|signal| !is_ignored(*signal));
            let Ok(mut signals) = Signals::new(signals) else {
                return;
            };
            drop(ready);
            if let Some(signal) = signals.forever().next() {
                whole_file::abandon();
                let _ = low_level::emulate_default_handler(signal);
                // As a shell would tell of it, should it come to this.
                low_level::exit(128 + signal);
            }
        });
        if started.is_ok() {
            // An error is what the end of the channel gives, which is what is waited for.
            let _ = is_ready.recv();
        }
    });
}

const ENDING: [i32; 3] = [SIGHUP, SIGINT, SIGTERM];

/// Whether whoever started the command lets it ignore `signal`, as `nohup` does.
fn is_ignored(signal: i32) -> bool {
    // SAFETY: it holds integers and addresses alone, for which bytes of 0 are valid.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: nothing is set, and what is told is written to `action`.
    let told = unsafe { libc::sigaction(signal, ptr::null(), &mut action) };
    told == 0 && action.sa_sigaction == libc::SIG_IGN
}
