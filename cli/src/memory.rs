//! Running out of host memory: one line and the exit code of a failure, wherever the allocation was made.
//!
//! Sizes come from users, and most code that allocates by them can fail only by ending the program: `Vec`, `format!`,
//! the insides of libraries. Rust would abort it instead, and print a backtrace.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use signal_hook::low_level;

use crate::failure::Failure;
use crate::say::say;
use crate::whole_file;

/// The system's allocator, except that the program ends if an allocation fails.
struct Reporting;

#[global_allocator]
static ALLOCATOR: Reporting = Reporting;

// SAFETY: every call goes to the system allocator with unchanged arguments; its result, if returned, is unchanged.
unsafe impl GlobalAlloc for Reporting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout is passed on unchanged.
        checked(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout is passed on unchanged.
        checked(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: `start` came from this allocator, so from the system's; layout and size are passed on unchanged.
        checked(unsafe { System.realloc(start, layout, bytes) }, bytes)
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: `start` came from this allocator, so from the system's; the layout is passed on unchanged.
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
    /// Whether this thread is ending the program.
    static ENDS: Cell<bool> = const { Cell::new(false) };
}

/// Ends the program. Returns only if this thread is already ending it and the message itself found no memory.
#[cold]
fn give_up(bytes: usize) {
    static ENDING: AtomicBool = AtomicBool::new(false);
    if ENDS.replace(true) {
        return;
    }
    if ENDING.swap(true, SeqCst) {
        // Another thread is already ending the program: one line is enough.
        loop {
            thread::sleep(Duration::from_secs(1));
        }
    }
    whole_file::abandon_unless_busy();
    let wrong = format_args!("no room for {bytes} bytes");
    say!("error: memory: {wrong}; a smaller problem, or more memory");
    // Not `process::exit`: its exit handlers may need memory, and other threads still run meanwhile.
    low_level::exit(Failure::FAILED.into());
}
