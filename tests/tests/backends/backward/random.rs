//! Random shapes, strides, masks, scales and inputs.

use ferroflash::backend::sim::{Sim, SimDevice};
use ferroflash::plan::eligible;
use ferroflash::{Backend, Cpu, DType};
use ferroflash_testing::cases::{self, CaseSpec, Limits};
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::random_cases::agree_on;
use ferroflash_tests::replaced::is_backward_untouched;
use ferroflash_tests::schedules::SCHEDULES;
use kernels_gpu::config::limits::SM86_SHARED_BYTES;
use proptest::prelude::*;

/// Size that the oracle compares in about a tenth of a second.
const LIMITS: Limits = Limits {
    work: 5_000_000,
    ..Limits::FAST
};

/// Runs `cases` random cases on `backend`.
fn backend_agrees<B: Backend>(backend: B, dtypes: &[DType], limits: Limits, cases: u32) {
    agree_on(backend, cases, &cases::strategy(dtypes, limits), agrees);
}

/// Every variant that can run the case agrees with the oracle.
fn agrees<B: Backend>(backend: &mut B, spec: &CaseSpec) -> Result<(), TestCaseError> {
    let fail = |error: ferroflash::Error| TestCaseError::fail(format!("{spec}: {error}"));
    let mut case = spec.build_backward().map_err(fail)?;
    case.arrangements = spec.arrangements_of_gradients();
    let problem = case.problem().map_err(fail)?;
    let variants = eligible(&problem, &backend.capabilities());
    prop_assert!(!variants.is_empty(), "{spec}: nothing can run it");
    for variant in variants {
        case.forward.options.force = Some(variant);
        let mut kernels = Vec::new();
        for deterministic in [false, true] {
            case.deterministic = deterministic;
            let plan = backend.plan(&case.problem().map_err(fail)?).map_err(fail)?;
            let kernel = plan.kernel_name();
            if kernels.contains(&kernel) || is_backward_untouched(backend, &case) {
                continue;
            }
            let run = case.run(backend).map_err(fail)?;
            let wrong = case.check_all(&run).map_err(fail)?;
            prop_assert!(
                wrong.is_none(),
                "{kernel}: {spec}: {}",
                wrong.unwrap_or_default()
            );
            kernels.push(kernel);
        }
    }
    Ok(())
}

/// Cases for each of the simulator's schedules, beside those of the corpus.
const SIMULATED_CASES: u32 = 20;

/// On the simulator, of kernels for all shared memory and of those for little.
fn sim_agrees(schedule: u64) {
    let sim = || Sim::on(SimDevice::with_schedule(schedule));
    backend_agrees(sim(), &DType::ALL, Limits::SIMULATED, SIMULATED_CASES);
    let mut of_little = sim();
    of_little.limit_shared_bytes(SM86_SHARED_BYTES);
    backend_agrees(
        of_little,
        &DType::ALL,
        Limits::SIMULATED,
        SIMULATED_CASES / 2,
    );
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

#[test]
fn cuda() {
    if let Some(gpu) = gpu_or_not_run("gradients") {
        backend_agrees(gpu, &DType::ALL, LIMITS, 300);
    }
}

#[test]
fn cuda_of_little_shared_memory() {
    if let Some(mut gpu) = gpu_or_not_run("gradients by the small tiles") {
        gpu.limit_shared_bytes(SM86_SHARED_BYTES);
        backend_agrees(gpu, &DType::ALL, LIMITS, 300);
    }
}

#[test]
fn cpu() {
    backend_agrees(Cpu::new(), &DType::ALL, LIMITS, 300);
}
