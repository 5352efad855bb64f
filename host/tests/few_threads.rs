//! Backends where the system gives a process no more threads.

use std::env;
use std::process::Command;

use ferroflash::{Backend, Cpu, Error, ForwardOptions, HostTensor, Layout, Shape, Sim, forward};

/// More than one task of the CPU, and more than one block of a simulated GPU.
const SHAPE: Shape = Shape {
    batch: 2,
    heads: 3,
    seq: 70,
    dim: 16,
};

/// Environment variable that marks the child process.
const CHILD: &str = "FERROFLASH_TEST_WITHOUT_THREADS";

/// Stack size that no address space holds, so that no thread starts.
const IMPOSSIBLE_STACK: &str = "1125899906842624";

fn run<B: Backend>(mut backend: B) -> Result<Vec<f32>, Error> {
    let count = SHAPE.element_count().expect("small");
    let values: Vec<f32> = (0..count).map(|i| (i % 17) as f32 * 0.1).collect();
    let x = HostTensor::from_f32(&values, SHAPE, Layout::Bshd)?.upload(backend.memory())?;
    // Twice: the second call finds what the first one made of a system without threads.
    forward(&mut backend, &x, &x, &x, &ForwardOptions::new())?;
    let out = forward(&mut backend, &x, &x, &x, &ForwardOptions::new())?;
    assert!(!backend.device_name().is_empty());
    Ok(out.o.download(backend.memory())?.to_f32(Layout::Bshd))
}

fn without_threads(test: &str, check: impl FnOnce()) {
    if env::var_os(CHILD).is_some() {
        let refused = std::thread::Builder::new().spawn(|| ());
        assert!(refused.is_err(), "a thread started");
        check();
        return;
    }
    let child = Command::new(env::current_exe().expect("this test"))
        .args(["--exact", test, "--test-threads=1", "--nocapture"])
        .env(CHILD, "1")
        .env("RUST_MIN_STACK", IMPOSSIBLE_STACK)
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{}: {said}", child.status);
}

#[test]
fn the_cpu_computes_on_the_calling_thread() {
    without_threads("the_cpu_computes_on_the_calling_thread", || {
        assert_eq!(run(Cpu::new()).expect("it runs").len(), 2 * 3 * 70 * 16);
    });
}

#[test]
fn the_simulator_computes_on_the_calling_thread() {
    without_threads("the_simulator_computes_on_the_calling_thread", || {
        assert_eq!(run(Sim::new()).expect("it runs").len(), 2 * 3 * 70 * 16);
    });
}
