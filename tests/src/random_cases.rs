//! Running random cases until one fails, which is shrunk and printed.

use std::cell::RefCell;

use ferroflash::Backend;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// Runs `cases` of the cases of `strategy` on `backend`, each by `agrees`.
///
/// # Panics
/// If one does not agree.
pub fn agree_on<B: Backend, C: std::fmt::Debug>(
    backend: B,
    cases: u32,
    strategy: &impl Strategy<Value = C>,
    agrees: impl Fn(&mut B, &C) -> Result<(), TestCaseError>,
) {
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
