//! Drawn appends.

use ferroflash::backend::sim::{Sim, SimDevice};
use ferroflash::{Backend, Cpu, DType};
use ferroflash_testing::cases::{AppendSpec, append_strategy};
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::random_cases::agree_on;
use ferroflash_tests::schedules::SCHEDULES;
use proptest::prelude::*;

use super::HALVES;

fn agrees<B: Backend>(backend: &mut B, spec: &AppendSpec) -> Result<(), TestCaseError> {
    let fail = |error: ferroflash::Error| TestCaseError::fail(format!("{spec}: {error}"));
    let case = spec.build().map_err(fail)?;
    let run = case.run(backend).map_err(fail)?;
    prop_assert!(!run.faults.any(), "{spec}: {:?}", run.faults);
    let checked = case.check(&run);
    checked.map_err(|wrong| TestCaseError::fail(format!("{spec}: {wrong}")))
}

#[test]
fn cpu() {
    let dtypes = [DType::F32, DType::F16, DType::Bf16];
    agree_on(Cpu::new(), 150, &append_strategy(&dtypes, 600), agrees);
}

fn sim_agrees(schedule: u64) {
    let sim = Sim::on(SimDevice::with_schedule(schedule));
    agree_on(sim, 80, &append_strategy(&HALVES, 300), agrees);
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
fn cuda() {
    if let Some(gpu) = gpu_or_not_run("drawn appends") {
        agree_on(gpu, 300, &append_strategy(&HALVES, 3000), agrees);
    }
}
