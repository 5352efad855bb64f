//! Drawn forward passes of few queries, which decode kernels run without being asked for.

use ferroflash::backend::sim::{Sim, SimDevice};
use ferroflash::plan::preferred;
use ferroflash::{Backend, DType, Variant};
use ferroflash_testing::cases::{CaseSpec, few_queries};
use ferroflash_testing::oracle::Rows;
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::random_cases::agree_on;
use ferroflash_tests::replaced::is_plan_untouched;
use ferroflash_tests::schedules::SCHEDULES;
use proptest::prelude::*;

const DTYPES: [DType; 2] = [DType::F16, DType::Bf16];

/// Drawn cases that decode kernels run without being asked for.
fn drawn_are_right<B: Backend>(backend: B, cases: u32, most_keys: usize, most_work: usize) {
    let work = |spec: &CaseSpec| {
        let (batch, _, keys) = spec.lengths.axes();
        batch * spec.heads_kv * keys * (spec.head_dim + spec.head_dim_v)
    };
    let here = backend.capabilities();
    let is_decoded = move |spec: &CaseSpec| {
        let problem = spec.build().and_then(|case| case.problem());
        problem.is_ok_and(|problem| preferred(&problem, &here) == Some(Variant::Decode))
    };
    let strategy = few_queries(&DTYPES, most_keys)
        .prop_filter("too much work", move |spec| work(spec) <= most_work)
        .prop_filter("others are faster", is_decoded);
    agree_on(backend, cases, &strategy, agrees);
}

fn agrees<B: Backend>(backend: &mut B, spec: &CaseSpec) -> Result<(), TestCaseError> {
    let fail = |error: ferroflash::Error| TestCaseError::fail(format!("{spec}: {error}"));
    let case = spec.build().map_err(fail)?;
    let plan = backend.plan(&case.problem().map_err(fail)?);
    let plan = plan.map_err(fail)?;
    prop_assert_eq!(plan.variant(), Variant::Decode);
    if is_plan_untouched(&plan) {
        return Ok(());
    }
    let (o, lse) = case.run(backend).map_err(fail)?;
    let verdict = case.check(&o, &lse, Rows::All).map_err(fail)?;
    prop_assert!(verdict.passed(), "{spec}: {verdict}");
    Ok(())
}

fn simulated(schedule: u64) {
    let sim = Sim::on(SimDevice::with_schedule(schedule));
    drawn_are_right(sim, 25, 2500, 1_000_000);
}

#[test]
fn sim() {
    simulated(SCHEDULES[0]);
}

#[test]
fn sim_interleaved() {
    simulated(SCHEDULES[1]);
}

#[test]
fn sim_interleaved_otherwise() {
    simulated(SCHEDULES[2]);
}

#[test]
fn cuda() {
    if let Some(gpu) = gpu_or_not_run("few queries") {
        drawn_are_right(gpu, 150, 40_000, 20_000_000);
    }
}
