//! Running random cases until one fails, which is shrunk and printed.

use std::cell::RefCell;
use std::{env, fs, process, thread};

use ferroflash::Backend;
use ferroflash::backend::sim::COVERAGE_FOLDER_VAR;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// Runs `cases` of the cases of `strategy` on `backend`, each by `agrees`.
///
/// Which cases these are differs from run to run, and so does what they execute of the kernels: it is noted that this test draws.
///
/// # Panics
/// If one does not agree.
pub fn agree_on<B: Backend, C: std::fmt::Debug>(
    backend: B,
    cases: u32,
    strategy: &impl Strategy<Value = C>,
    agrees: impl Fn(&mut B, &C) -> Result<(), TestCaseError>,
) {
    note_that_it_draws();
    let config = Config {
        cases,
        // The binary also runs where there is no source tree to keep seeds in; a failure prints
        // its case whole.
        failure_persistence: None,
        max_global_rejects: 1 << 20,
        ..Config::default()
    };
    let backend = RefCell::new(backend);
    let outcome =
        TestRunner::new(config).run(strategy, |spec| agrees(&mut *backend.borrow_mut(), &spec));
    if let Err(failure) = outcome {
        panic!("{}: {failure}", backend.borrow().name());
    }
}

/// Where what tests execute is recorded, notes in a file beside the recordings, whose name ends in `.draws`, that this test is one that
/// draws: the path of the program and the name of the test, which is that of the thread. `cargo xtask coverage` holds kernels to what
/// the other tests execute.
fn note_that_it_draws() {
    let Some(folder) = env::var_os(COVERAGE_FOLDER_VAR) else {
        return;
    };
    let program = env::current_exe().expect("it runs");
    let thread = thread::current();
    let test = thread.name().expect("a test's thread has its name");
    let name = format!("{}-{}.draws", process::id(), test.replace("::", "."));
    let path = fs::canonicalize(folder).expect("it exists").join(name);
    fs::write(path, format!("{}\n{test}\n", program.display())).expect("a file can be written");
}
