//! Every kernel of attention to a cache, on what few drawn problems have: trees of all their levels, and sequences that are spoilt.

use ferroflash::backend::sim::{Sim, SimDevice};
use ferroflash::backend::{Device, Gpu};
use ferroflash_testing::cases::{CorpusCase, DecodeSpec, ScaleKind};
use ferroflash_tests::corpus;
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::replaced::is_untouched;
use ferroflash_tests::schedules::{SCHEDULES, of_text};
use kernels_gpu::config::decode::DecodeConfig;
use kernels_gpu::instances::{DECODE, Instance};

use super::garbage::poison_stays;
use super::run_right;

/// Sequences that `instance` is for, whose rows reach the second half of a tile that has one.
fn spec(instance: &Instance, config: &DecodeConfig, kv_lens: &[usize]) -> DecodeSpec {
    DecodeSpec {
        dtype: instance.dtype,
        seq_q: if config.rows > DecodeConfig::HALF_ROWS {
            4
        } else {
            2
        },
        heads_kv: 1,
        group: 3,
        head_dim: config.head_dim,
        head_dim_v: config.head_dim,
        e4m3: config.is_e4m3.then_some(ScaleKind::Key),
        ..DecodeSpec::plain(kv_lens)
    }
}

/// Calls `check` with every kernel on one of `gpus`.
fn each_kernel<D: Device>(
    gpus: &mut [Gpu<D>],
    check: impl Fn(&mut Gpu<D>, &Instance, &DecodeConfig),
) {
    for instance in DECODE.iter().filter(|kernel| !is_untouched(kernel.name)) {
        let gpu = &mut gpus[of_text(instance.name) % gpus.len()];
        let config = instance.decode().expect("of the table of decode kernels");
        let case = CorpusCase::Decode(Box::new(spec(instance, config, &[1])));
        assert_eq!(corpus::kernels(gpu, &case), Some(vec![instance.name]));
        check(gpu, instance, config);
    }
}

/// Two supers of a row, which are merged from groups, and groups that are merged from chunks.
fn trees_are_climbed<D: Device>(gpus: &mut [Gpu<D>]) {
    each_kernel(gpus, |gpu, instance, config| {
        let chunk = config.chunk_keys() as usize;
        run_right(gpu, &spec(instance, config, &[64 * chunk + 300]));
    });
}

/// So many sequences that an item is a super, of two groups in one of them.
fn supers_are_items<D: Device>(gpus: &mut [Gpu<D>]) {
    each_kernel(gpus, |gpu, instance, config| {
        let chunk = config.chunk_keys() as usize;
        let blocks = gpu.gpu_capabilities().multiprocessors * config.min_blocks;
        let lengths = (0..4 * blocks as usize).map(|sequence| 3 * sequence % 100);
        let mut kv_lens: Vec<_> = lengths.collect();
        kv_lens[1] = 9 * chunk + 5;
        run_right(gpu, &spec(instance, config, &kv_lens));
    });
}

/// Lengths and pages that cannot be, pages of the first step, which is copied before the loop, among them.
fn poison_stays_in_each<D: Device>(gpus: &mut [Gpu<D>]) {
    each_kernel(gpus, |gpu, instance, config| {
        poison_stays(gpu, &spec(instance, config, &[40, 700, 7]));
    });
}

/// The tests of `$all`, in the simulator and on a GPU.
macro_rules! tests_of {
    ($name:ident, $all:path, $what:literal) => {
        mod $name {
            use super::*;

            #[test]
            fn sim() {
                let mut sims = SCHEDULES.map(|seed| Sim::on(SimDevice::with_schedule(seed)));
                $all(&mut sims);
            }

            #[test]
            fn cuda() {
                if let Some(gpu) = gpu_or_not_run($what) {
                    $all(&mut [gpu]);
                }
            }
        }
    };
}

tests_of!(climbing, trees_are_climbed, "trees of each decode kernel");
tests_of!(supers, supers_are_items, "supers of each decode kernel");
tests_of!(
    spoilt,
    poison_stays_in_each,
    "spoilt sequences for each decode kernel"
);
