//! Attention to a cache: against the oracle, and what must not change a bit.

/// The tests of `$all`, in the simulator and on a GPU. What it finds in the simulator is held to `$recorded`, if there is one; a GPU's
/// exponentials and products have bits of their own.
macro_rules! tests_of {
    ($name:ident, $all:path, $what:literal) => {
        mod $name {
            use super::*;

            #[test]
            fn sim() {
                $all(&mut ::ferroflash_tests::schedules::simulated_gpus());
            }

            #[test]
            fn cuda() {
                if let Some(gpu) = ::ferroflash_tests::gpu::gpu_or_not_run($what) {
                    $all(&mut [gpu]);
                }
            }
        }
    };
    ($name:ident, $all:path, $what:literal, $recorded:literal) => {
        mod $name {
            use super::*;
            use ::ferroflash_tests::record::Record;

            #[test]
            fn sim() {
                let mut record = ::ferroflash_tests::record!($recorded);
                let mut sims = ::ferroflash_tests::schedules::simulated_gpus();
                $all(&mut sims, &mut record);
                record.finish(&mut sims);
            }

            #[test]
            fn cuda() {
                if let Some(gpu) = ::ferroflash_tests::gpu::gpu_or_not_run($what) {
                    $all(&mut [gpu], &mut Record::default());
                }
            }
        }
    };
}

mod codes;
mod garbage;
mod invariance;
pub mod kernels;
pub mod prefill;
mod properties;

use ferroflash::{Backend, HostTensor};
use ferroflash_testing::cases::{DecodeCase, DecodeSpec, QRows};
use ferroflash_tests::record::{Record, checksum};
use kernels_gpu::instances::Instance;
use proptest::test_runner::TestCaseError;

/// Gives `record` the results of `instance`'s cases.
fn take(record: &mut Record, instance: &Instance, results: &[(HostTensor, HostTensor)]) {
    let tensors = results.iter().flat_map(|(o, lse)| [o, lse]);
    record.take(instance.name.to_owned(), checksum(tensors));
}

/// Runs a case and compares every sequence with the oracle.
#[track_caller]
fn run_right<B: Backend>(backend: &mut B, spec: &DecodeSpec) -> (HostTensor, HostTensor) {
    run_case_right(backend, &spec.build().expect("small"), spec)
}

/// The same, of a case that has been made.
#[track_caller]
fn run_case_right<B: Backend>(
    backend: &mut B,
    case: &DecodeCase,
    spec: &DecodeSpec,
) -> (HostTensor, HostTensor) {
    let (o, lse) = case.run(backend).expect("it runs");
    assert_right(case, &o, &lse, spec);
    (o, lse)
}

/// As [`run_case_right`], of a case that was drawn.
fn case_agrees<B: Backend>(
    backend: &mut B,
    case: &DecodeCase,
    spec: &DecodeSpec,
) -> Result<(), TestCaseError> {
    let fail = |error: ferroflash::Error| TestCaseError::fail(format!("{spec}: {error}"));
    let (o, lse) = case.run(backend).map_err(fail)?;
    match case.check_all(&o, &lse).map_err(fail)? {
        None => Ok(()),
        Some(wrong) => Err(TestCaseError::fail(format!("{spec}, {wrong}"))),
    }
}

#[track_caller]
fn assert_right(case: &DecodeCase, o: &HostTensor, lse: &HostTensor, spec: &DecodeSpec) {
    for sequence in 0..case.kv_lens.len() {
        let verdict = case.check(sequence, o, lse).expect("checked");
        assert!(verdict.passed(), "{spec}, sequence {sequence}: {verdict}");
    }
}

/// The bits of a sequence's rows of o and lse, if it is a batch entry.
fn bits(sequence: usize, result: &(HostTensor, HostTensor)) -> Vec<u32> {
    let at = QRows {
        batch: sequence,
        rows: 0..result.0.spec().shape.seq,
    };
    bits_of_rows(&at, result)
}

/// The bits of these rows of o and lse.
fn bits_of_rows(at: &QRows, (o, lse): &(HostTensor, HostTensor)) -> Vec<u32> {
    let all = [o, lse].map(|tensor| {
        let heads = 0..tensor.spec().shape.heads;
        let heads = heads.flat_map(move |head| tensor.head(at.batch, head, at.rows.clone()));
        heads
            .map(|value| (value as f32).to_bits())
            .collect::<Vec<_>>()
    });
    all.concat()
}
