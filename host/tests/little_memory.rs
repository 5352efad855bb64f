//! Sizes that a process's memory does not hold.

use ferroflash::{Backend, Cpu, Error, Memory, Sim};

/// Address space left to the process on top of what it uses: much less than what is asked for below.
const ROOM_BYTES: u64 = 1 << 30;
const ASKED_BYTES: usize = 16 << 30;

/// Leaves the process little more address space than it uses.
fn limit_address_space() {
    let pages: u64 = std::fs::read_to_string("/proc/self/statm")
        .expect("Linux tells")
        .split(' ')
        .next()
        .and_then(|pages| pages.parse().ok())
        .expect("a number of pages");
    let limit = libc::rlimit {
        rlim_cur: pages * 4096 + ROOM_BYTES,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: `limit` is readable.
    let refused = unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) };
    assert_eq!(refused, 0, "{}", std::io::Error::last_os_error());
}

/// The only test of its process.
#[test]
fn an_allocation_that_fails_is_an_error() {
    limit_address_space();
    let refused = [
        Cpu::new().memory().alloc(ASKED_BYTES).err(),
        Sim::new().memory().alloc(ASKED_BYTES).err(),
    ];
    for refused in refused {
        match refused {
            Some(Error::OutOfMemory {
                requested_bytes, ..
            }) => assert_eq!(requested_bytes, ASKED_BYTES as u64),
            other => panic!("expected an error of memory, got {other:?}"),
        }
    }
}
