//! Every backend against the f64 oracle, on random shapes, strides, masks, scales and inputs.

use ferroflash::backend::sim::{Sim, SimDevice};
use ferroflash::backend::{Device, Gpu};
use ferroflash::plan::eligible;
use ferroflash::{Backend, Cpu, DType};
use ferroflash_testing::cases::{self, CaseSpec, Limits, dtypes_of};
use ferroflash_testing::oracle::Rows;
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::random_cases::agree_on;
use ferroflash_tests::replaced::is_plan_untouched;
use ferroflash_tests::schedules::SCHEDULES;
use kernels_gpu::config::limits::SM86_SHARED_BYTES;
use kernels_gpu::config::simt;
use proptest::prelude::*;

/// Runs `cases` random cases on `backend`.
fn backend_agrees<B: Backend>(backend: B, limits: Limits, cases: u32) {
    let dtypes = dtypes_of(&backend).expect("the backend runs something");
    agree_on(backend, cases, &cases::strategy(&dtypes, limits), agrees);
}

/// Every variant that can run the case agrees with the oracle.
fn agrees<B: Backend>(backend: &mut B, spec: &CaseSpec) -> Result<(), TestCaseError> {
    let fail = |error: ferroflash::Error| TestCaseError::fail(format!("{spec}: {error}"));
    let mut case = spec.build().map_err(fail)?;
    let problem = case.problem().map_err(fail)?;
    let variants = eligible(&problem, &backend.capabilities());
    prop_assert!(!variants.is_empty(), "{spec}: nothing can run it");
    for variant in variants {
        case.options.force = Some(variant);
        let plan = backend.plan(&case.problem().map_err(fail)?).map_err(fail)?;
        if is_plan_untouched(&plan) {
            continue;
        }
        let (o, lse) = case.run(backend).map_err(fail)?;
        let verdict = case.check(&o, &lse, Rows::All).map_err(fail)?;
        prop_assert!(verdict.passed(), "{variant}: {spec}: {verdict}");
    }
    Ok(())
}

/// Size of the cases that the oracle computes in about a tenth of a second.
const LIMITS: Limits = Limits {
    work: 20_000_000,
    ..Limits::FAST
};

#[test]
fn cpu() {
    backend_agrees(Cpu::new(), LIMITS, 300);
}

/// Cases for each of the simulator's schedules, beside those of the corpus.
const SIMULATED_CASES: u32 = 80;

fn sim_agrees(schedule: u64) {
    let sim = Sim::on(SimDevice::with_schedule(schedule));
    backend_agrees(sim, Limits::SIMULATED, SIMULATED_CASES);
}

#[test]
fn sim() {
    sim_agrees(SCHEDULES[0]);
}

/// Warps interleaved and copies finished at random: a missing barrier or wait shows.
#[test]
fn sim_interleaved() {
    sim_agrees(SCHEDULES[1]);
}

#[test]
fn sim_interleaved_otherwise() {
    sim_agrees(SCHEDULES[2]);
}

/// The fp32 tiles of GPUs that have less shared memory, and of no others, on `backend`.
fn small_tiles_agree<D: Device>(mut backend: Gpu<D>, limits: Limits, cases: u32) {
    backend.limit_shared_bytes(SM86_SHARED_BYTES);
    let strategy = cases::strategy(&[DType::F32], limits).prop_filter("a tile all have", |spec| {
        spec.head_dim.max(spec.head_dim_v) > simt::HD64.head_dim
    });
    agree_on(backend, cases, &strategy, agrees);
}

#[test]
fn sim_of_little_shared_memory() {
    let sim = Sim::on(SimDevice::with_schedule(SCHEDULES[1]));
    small_tiles_agree(sim, Limits::SIMULATED, SIMULATED_CASES);
}

#[test]
fn cuda_of_little_shared_memory() {
    if let Some(gpu) = gpu_or_not_run("properties of the small fp32 tiles") {
        small_tiles_agree(gpu, LIMITS, 300);
    }
}

#[test]
fn cuda() {
    if let Some(gpu) = gpu_or_not_run("properties") {
        backend_agrees(gpu, LIMITS, 300);
    }
}
