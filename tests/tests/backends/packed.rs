//! Every kernel that takes packed sequences, on lengths that end tiles in the middle, empty ones among them.

use ferroflash::backend::sim::{Sim, SimDevice};
use ferroflash::backend::{Device, Gpu};
use ferroflash::{Backend, DType, Layout, Variant};
use ferroflash_testing::cases::{
    AlibiSpec, Arrangement, CaseSpec, InputKind, Lengths, ModifierSpec,
};
use ferroflash_testing::oracle::Rows;
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::packed_kernels::{self, MASKS, even, head_dim_v, long, mixed};
use ferroflash_tests::replaced::is_untouched;
use kernels_gpu::instances::{Instance, MODIFIED};

/// More sequences than run at once.
fn tiny(instance: &Instance) -> Vec<(usize, usize)> {
    packed_kernels::tiny(instance, 21)
}

fn case_for(instance: &Instance, number: usize, lengths: Vec<(usize, usize)>) -> CaseSpec {
    CaseSpec {
        dtype: instance.dtype,
        lengths: Lengths::Varlen(lengths),
        heads_kv: 1,
        group: 2,
        head_dim: instance.head_dim as usize,
        head_dim_v: head_dim_v(instance),
        mask: MASKS[number % MASKS.len()],
        scale_factor: None,
        softcap: [None, Some(20.0)][number / 2 % 2],
        alibi: [None, Some(0.1)][number % 2].map(|steepest| AlibiSpec {
            steepest,
            is_batched: true,
        }),
        modifiers: ModifierSpec::default(),
        kind: InputKind::ANY_DTYPE[number % InputKind::ANY_DTYPE.len()],
        arrangements: [Arrangement::BSHD; 3],
        o_layout: [Layout::Bshd, Layout::Bhsd][number % 2],
        o: None,
        seed: number as u64,
    }
}

/// Runs every such kernel on its `lengths`; `shift` gives each the options of another.
fn every_kernel<D: Device>(
    gpu: &mut Gpu<D>,
    lengths: impl Fn(&Instance) -> Vec<(usize, usize)>,
    shift: usize,
) {
    packed_kernels::every_kernel(gpu, "packed sequences", |gpu, instance, number| {
        let spec = case_for(instance, number + shift, lengths(instance));
        runs_right(gpu, instance, &spec)
    });
}

/// Whether `instance` can run here; it is right then.
fn runs_right<D: Device>(gpu: &mut Gpu<D>, instance: &Instance, spec: &CaseSpec) -> bool {
    let mut case = spec.build().expect("small");
    case.options.force = Variant::of_family(instance.family);
    let problem = case.problem().expect("valid");
    let Ok(plan) = gpu.plan(&problem) else {
        // Of another architecture than a real GPU's.
        return false;
    };
    let name = plan.kernel_name();
    assert_eq!(name, instance.name, "{spec} is for another kernel");
    let run = case.run(gpu);
    let (o, lse) = run.unwrap_or_else(|error| panic!("{name}: {spec}: {error}"));
    let verdict = case.check(&o, &lse, Rows::All).expect("checked");
    assert!(verdict.passed(), "{name}: {spec}: {verdict}");
    true
}

/// Warps interleaved at random: a missing barrier shows.
#[test]
fn sim() {
    every_kernel(&mut Sim::on(SimDevice::with_schedule(0x5eed)), mixed, 0);
}

#[test]
fn sim_tiny() {
    every_kernel(&mut Sim::on(SimDevice::with_schedule(0x71)), tiny, 1);
}

/// On so few multiprocessors that tiles of either sequence are fetched.
#[test]
fn sim_even() {
    let device = SimDevice::with_schedule(0xe7e).multiprocessors(2);
    every_kernel(&mut Sim::on(device), even, 2);
}

/// Of one head, and on so few multiprocessors that most tiles are fetched.
#[test]
fn sim_long() {
    let mut sim = Sim::on(SimDevice::with_schedule(0x10e6).multiprocessors(2));
    packed_kernels::every_kernel(&mut sim, "long sequences", |sim, instance, number| {
        // Masks that leave all blocks.
        let options = MASKS.len() * number + number % 2;
        // Only Hopper's kernels list tiles.
        let lists = [false, true]
            .into_iter()
            .take(1 + usize::from(instance.wgmma().is_some()));
        lists.fold(true, |ran, is_listed| {
            let spec = CaseSpec {
                group: 1,
                ..case_for(instance, options, long(instance, is_listed))
            };
            ran & runs_right(sim, instance, &spec)
        })
    });
}

/// Fewer tiles than blocks, as a list alone tells, for the kernels of options of single pairs.
#[test]
fn sim_few_with_dropout() {
    let mut sim = Sim::on(SimDevice::with_schedule(0xfe3));
    let is_packed = |instance: &&Instance| instance.wgmma().is_some_and(|tile| tile.varlen);
    for (number, instance) in MODIFIED.iter().filter(is_packed).enumerate() {
        let mut lengths = vec![(7, 9)];
        lengths.extend([(0, 3); 8]);
        let spec = CaseSpec {
            modifiers: ModifierSpec {
                dropout: Some(0.2),
                bias: (!instance.is_for(false)).then_some(([false; 3], DType::Bf16)),
                ..ModifierSpec::default()
            },
            ..case_for(instance, number, lengths)
        };
        assert!(is_untouched(instance.name) || runs_right(&mut sim, instance, &spec));
    }
}

#[test]
fn cuda() {
    if let Some(mut gpu) = gpu_or_not_run("packed sequences") {
        for shift in 0..12 {
            every_kernel(&mut gpu, mixed, shift);
            every_kernel(&mut gpu, even, shift);
            // Their results are slow to check.
            if shift < 2 {
                every_kernel(&mut gpu, |instance| long(instance, shift == 1), shift);
            }
            every_kernel(&mut gpu, tiny, shift);
        }
    }
}
