//! When the host has no room: one line and the exit code of a failure, wherever it was that room was asked for.
//!
//! Sizes come from users, and most of what allocates by them cannot fail but by ending the program: `Vec`, `format!`,
//! what libraries do inside. Rust would abort it, and print a backtrace.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use signal_hook::low_level;

use crate::failure::Failure;
use crate::say::say;
use crate::whole_file;

/// The system's allocator, which ends the program where that one returns null.
struct Reporting;

#[global_allocator]
static ALLOCATOR: Reporting = Reporting;

// SAFETY: every call is the system allocator's, with what the caller promised; a null stays null if it is returned at all.
unsafe impl GlobalAlloc for Reporting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        checked(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        checked(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        checked(unsafe { System.realloc(start, layout, bytes) }, bytes)
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(start, layout) }
    }
}

#[inline]
fn checked(start: *mut u8, bytes: usize) -> *mut u8 {
    if start.is_null() {
        give_up(bytes);
    }
    start
}

thread_local! {
    /// Whether this thread is the one that ends the program.
    static ENDS: Cell<bool> = const { Cell::new(false) };
}

/// Ends the program. Returns only to the thread that does so already, if that finds no room for its last words.
#[cold]
fn give_up(bytes: usize) {
    static ENDING: AtomicBool = AtomicBool::new(false);
    if ENDS.replace(true) {
        return;
    }
    if ENDING.swap(true, SeqCst) {
        // Another thread came first: one line is enough.
        loop {
            thread::sleep(Duration::from_secs(1));
        }
    }
    whole_file::abandon_unless_busy();
    let wrong = format_args!("no room for {bytes} bytes");
    say!("error: memory: {wrong}; a smaller problem, or more memory");
    // Not `process::exit`: what that runs at the end may need room, and threads that go on may be in its way.
    low_level::exit(Failure::FAILED.into());
}
