//! A softcap in Hopper's kernels, where each warp has two ways to bend a block of scores.

use ferroflash::backend::sim::Sim;
use ferroflash::{Backend, Mask, Variant};
use ferroflash_testing::cases::{Case, CaseSpec, InputKind};
use ferroflash_testing::oracle::Rows;
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::replaced::is_plan_untouched;
use kernels_gpu::instances::{Family, INSTANCES, Instance};

use crate::every_kernel::case_for;

/// Far above the scores of random inputs, of which the largest is about 6.
const SOFTCAP: f32 = 50.0;
/// An element of the query whose scores are about as large as the softcap.
const LARGE: f32 = 40.0;

/// Three blocks of keys, with one query whose scores are not small beside the softcap: its warp bends its blocks one way, the others
/// theirs the other.
fn case(instance: &Instance) -> Case {
    let config = instance.wgmma().expect("a kernel of Hopper's");
    let spec = CaseSpec {
        mask: Mask::Causal,
        softcap: Some(SOFTCAP),
        alibi: None,
        kind: InputKind::Random,
        ..case_for(instance, 0)
    };
    let mut case = spec.build().expect("small");
    // The last query of the sequence with three blocks, which sees all of them; a sequence of nine comes behind it.
    let behind = if config.varlen { 9 } else { 0 };
    let row = case.q.spec().shape.seq - behind - 1;
    for dim in 0..instance.head_dim as usize {
        case.q.set(0, 0, row, dim, LARGE);
    }
    case.options.force = Some(Variant::Wgmma);
    case
}

fn both_ways<B: Backend>(backend: &mut B, limit: impl Fn(&mut B, &Instance)) {
    for instance in INSTANCES.iter().filter(|row| row.family == Family::Wgmma) {
        limit(backend, instance);
        let case = case(instance);
        let plan = backend
            .plan(&case.problem().expect("valid"))
            .expect("eligible");
        if is_plan_untouched(&plan) {
            continue;
        }
        let (o, lse) = case.run(backend).expect(instance.name);
        let verdict = case.check(&o, &lse, Rows::All).expect("checked");
        assert!(verdict.passed(), "{}: {verdict}", plan.kernel_name());
    }
}

#[test]
fn sim() {
    both_ways(&mut Sim::new(), |sim, instance| {
        sim.limit_shared_bytes(instance.shared_bytes)
    });
}

#[test]
fn cuda() {
    if let Some(mut gpu) = gpu_or_not_run("softcaps: both ways to bend scores") {
        both_ways(&mut gpu, |_, _| {});
    }
}
