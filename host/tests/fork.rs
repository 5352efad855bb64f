//! The CPU backend in a process that was forked from one that has used it.

use std::time::{Duration, Instant};

use ferroflash::{Backend, Cpu, Error, ForwardOptions, HostTensor, Layout, Shape, forward};

/// Larger than one task, so that work goes to the pool.
const SHAPE: Shape = Shape {
    batch: 2,
    heads: 3,
    seq: 300,
    dim: 16,
};

/// A child that does not end is killed by then.
const PATIENCE: Duration = Duration::from_secs(20);

/// o of the same problem each time.
fn run() -> Result<Vec<f32>, Error> {
    let mut cpu = Cpu::new();
    let count = SHAPE.element_count().expect("small");
    let values: Vec<f32> = (0..count).map(|i| (i % 17) as f32 * 0.1).collect();
    let x = HostTensor::from_f32(&values, SHAPE, Layout::Bshd)?.upload(cpu.memory())?;
    let out = forward(&mut cpu, &x, &x, &x, &ForwardOptions::new())?;
    Ok(out.o.download(cpu.memory())?.to_f32(Layout::Bshd))
}

/// The only test of its process: a child has no thread but the one that forked it.
#[test]
fn a_forked_child_computes_too() {
    let expected = run().expect("it runs");
    // SAFETY: the child calls nothing but this library and `_exit`; the C library keeps its allocator usable.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        let is_same = run().is_ok_and(|o| o == expected);
        // SAFETY: ends the process at once, as a forked one should.
        unsafe { libc::_exit(if is_same { 0 } else { 1 }) };
    }
    let deadline = Instant::now() + PATIENCE;
    let mut status = 0;
    // SAFETY: `status` is writable, and the child is this process's own.
    while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
        if Instant::now() > deadline {
            // SAFETY: as above.
            unsafe { libc::kill(child, libc::SIGKILL) };
            panic!("the child hangs");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(libc::WIFEXITED(status), "the child died: {status:#x}");
    assert_eq!(libc::WEXITSTATUS(status), 0, "the child's result differs");
    // The parent goes on with its own threads.
    assert_eq!(run().expect("it runs"), expected);
}
