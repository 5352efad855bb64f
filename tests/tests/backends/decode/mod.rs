//! Attention to a cache: against the oracle, and what must not change a bit.

mod codes;
mod garbage;
mod invariance;
pub mod kernels;
pub mod prefill;
mod properties;

use ferroflash::{Backend, HostTensor};
use ferroflash_testing::cases::{DecodeCase, DecodeSpec};

/// Runs a case and compares every sequence with the oracle.
#[track_caller]
fn run_right<B: Backend>(backend: &mut B, spec: &DecodeSpec) -> (HostTensor, HostTensor) {
    let case = spec.build().expect("small");
    let (o, lse) = case.run(backend).expect("it runs");
    assert_right(&case, &o, &lse, spec);
    (o, lse)
}

#[track_caller]
fn assert_right(case: &DecodeCase, o: &HostTensor, lse: &HostTensor, spec: &DecodeSpec) {
    for sequence in 0..case.kv_lens.len() {
        let verdict = case.check(sequence, o, lse).expect("checked");
        assert!(verdict.passed(), "{spec}, sequence {sequence}: {verdict}");
    }
}

/// The bits of a sequence's rows of o and lse.
fn bits(sequence: usize, (o, lse): &(HostTensor, HostTensor)) -> Vec<u32> {
    let all = [o, lse].map(|tensor| {
        let shape = tensor.spec().shape;
        let heads =
            (0..shape.heads).flat_map(move |head| tensor.head(sequence, head, 0..shape.seq));
        heads
            .map(|value| (value as f32).to_bits())
            .collect::<Vec<_>>()
    });
    all.concat()
}
