//! Every backend against the f64 oracle, on random shapes, strides, masks, scales and inputs.

use std::cell::RefCell;

use ferroflash::cases::{CaseSpec, Limits};
use ferroflash::oracle::Rows;
use ferroflash::{Backend, Cpu, DType};
use ferroflash_tests::strategy;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// Runs `cases` random cases on `backend`.
fn backend_agrees<B: Backend>(backend: B, dtypes: &[DType], limits: Limits, cases: u32) {
    let config = Config {
        cases,
        // The binary also runs where there is no source tree to keep seeds in; a failure prints
        // its case whole.
        failure_persistence: None,
        max_global_rejects: 1 << 20,
        ..Config::default()
    };
    let strategy = strategy::case(dtypes, limits);
    let backend = RefCell::new(backend);
    let outcome =
        TestRunner::new(config).run(&strategy, |spec| agrees(&mut *backend.borrow_mut(), &spec));
    if let Err(failure) = outcome {
        panic!("{}: {failure}", backend.borrow().name());
    }
}

fn agrees<B: Backend>(backend: &mut B, spec: &CaseSpec) -> Result<(), TestCaseError> {
    let fail = |error: ferroflash::Error| TestCaseError::fail(format!("{spec}: {error}"));
    let case = spec.build().map_err(fail)?;
    let (o, lse) = case.run(backend).map_err(fail)?;
    let verdict = case.check(&o, &lse, Rows::All).map_err(fail)?;
    prop_assert!(verdict.passed(), "{spec}: {verdict}");
    Ok(())
}

#[test]
fn cpu() {
    let limits = Limits {
        work: 20_000_000,
        ..Limits::FAST
    };
    backend_agrees(Cpu::new(), &DType::ALL, limits, 300);
}
