//! Drawn caches against the oracle.

use ferroflash::backend::sim::{Sim, SimDevice};
use ferroflash::{Backend, Cpu, DType};
use ferroflash_testing::cases::{DecodeSpec, decode_strategy};
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::random_cases::agree_on;
use ferroflash_tests::schedules::SCHEDULES;
use proptest::prelude::*;

fn agrees<B: Backend>(backend: &mut B, spec: &DecodeSpec) -> Result<(), TestCaseError> {
    let fail = |error: ferroflash::Error| TestCaseError::fail(format!("{spec}: {error}"));
    let case = spec.build().map_err(fail)?;
    super::case_agrees(backend, &case, spec)
}

#[test]
fn cpu() {
    let dtypes = [DType::F32, DType::F16, DType::Bf16];
    agree_on(Cpu::new(), 150, &decode_strategy(&dtypes, 700), agrees);
}

fn sim_agrees(schedule: u64) {
    let sim = Sim::on(SimDevice::with_schedule(schedule));
    agree_on(
        sim,
        60,
        &decode_strategy(&[DType::F16, DType::Bf16], 1100),
        agrees,
    );
}

#[test]
fn sim() {
    sim_agrees(SCHEDULES[0]);
}

#[test]
fn sim_interleaved() {
    sim_agrees(SCHEDULES[1]);
}

#[test]
fn sim_interleaved_otherwise() {
    sim_agrees(SCHEDULES[2]);
}

#[test]
fn cuda() {
    if let Some(gpu) = gpu_or_not_run("drawn caches") {
        agree_on(
            gpu,
            300,
            &decode_strategy(&[DType::F16, DType::Bf16], 5000),
            agrees,
        );
    }
}

/// Two chunks of several row tiles, whose partial results another block merges.
#[test]
fn sim_merges_across_blocks() {
    for seed in [SCHEDULES[1], SCHEDULES[2], 1, 2, 3, 4, 5, 6] {
        let mut sim = Sim::on(SimDevice::with_schedule(seed));
        let spec = DecodeSpec {
            seq_q: 7,
            group: 8,
            heads_kv: 1,
            page_size: Some(64),
            mask: ferroflash::Mask::Window {
                left: Some(192),
                right: Some(0),
            },
            ..DecodeSpec::plain(&[570, 513])
        };
        for _ in 0..4 {
            super::run_right(&mut sim, &spec);
        }
    }
}
