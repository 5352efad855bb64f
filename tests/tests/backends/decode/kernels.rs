//! Every kernel of attention to a cache, on what few drawn problems have: trees of all their levels, problems in which every pair counts,
//! and sequences that are spoilt.

use ferroflash::backend::sim::{Sim, SimDevice};
use ferroflash::backend::{Device, Gpu};
use ferroflash::{HostTensor, Mask, Variant};
use ferroflash_testing::cases::{
    AlibiSpec, Arrangement, CorpusCase, DecodeSpec, KeyKind, ScaleKind, TreeSpec,
};
use ferroflash_tests::corpus;
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::record::Record;
use ferroflash_tests::replaced::is_untouched;
use ferroflash_tests::schedules::{SCHEDULES, of_text};
use kernels_gpu::config::decode::DecodeConfig;
use kernels_gpu::instances::{DECODE, Instance};

use super::garbage::poison_stays;
use super::{run_case_right, run_right, take};

/// Sequences that a warp of a decode kernel looks at, one a lane.
const WARP_SIZE: u32 = 32;

/// Sequences that `instance` is for, whose rows reach the second half of a tile that has one.
pub fn spec(instance: &Instance, config: &DecodeConfig, kv_lens: &[usize]) -> DecodeSpec {
    DecodeSpec {
        dtype: instance.dtype,
        seq_q: 2 * config.halves(),
        heads_kv: 1,
        group: 3,
        head_dim: config.head_dim,
        head_dim_v: config.head_dim,
        e4m3: config.is_e4m3.then_some(ScaleKind::Key),
        ..DecodeSpec::plain(kv_lens)
    }
}

/// The same sequences with all that may be done to scores, and sinks.
fn bent(plain: &DecodeSpec) -> DecodeSpec {
    DecodeSpec {
        softcap: Some(1.5),
        alibi: Some(AlibiSpec {
            steepest: 0.01,
            is_batched: true,
        }),
        sinks: true,
        ..plain.clone()
    }
}

/// The same sequences, of operands whose elements lie apart.
fn by_element(plain: &DecodeSpec) -> DecodeSpec {
    DecodeSpec {
        arrangements: [Arrangement::COLUMNS; 3],
        page_size: Some(3),
        ..plain.clone()
    }
}

/// The same sequences, of rows of which the last piece of 16 bytes is cut, of codes too.
fn narrower(plain: &DecodeSpec) -> DecodeSpec {
    let cut = Arrangement {
        padding: [0, 0, 0, 1],
        ..Arrangement::BSHD
    };
    DecodeSpec {
        head_dim: plain.head_dim - 1,
        head_dim_v: plain.head_dim_v - 17,
        arrangements: [cut; 3],
        ..plain.clone()
    }
}

/// Calls `check` with every kernel on one of `gpus`.
fn each_kernel<D: Device>(
    gpus: &mut [Gpu<D>],
    mut check: impl FnMut(&mut Gpu<D>, &Instance, &DecodeConfig),
) {
    for instance in DECODE.iter().filter(|kernel| !is_untouched(kernel.name)) {
        let gpu = &mut gpus[of_text(instance.name) % gpus.len()];
        let config = instance.decode().expect("of the table of decode kernels");
        gpu.limit_compute_capability(instance.arch.oldest());
        assert_is_run_by(gpu, instance, &spec(instance, config, &[1]));
        check(gpu, instance, config);
        gpu.limit_compute_capability((u32::MAX, u32::MAX));
    }
}

/// The same with `run`, whose results are `record`'s.
fn each_recorded<D: Device>(
    gpus: &mut [Gpu<D>],
    record: &mut Record,
    mut run: impl FnMut(&mut Gpu<D>, &Instance, &DecodeConfig) -> Vec<(HostTensor, HostTensor)>,
) {
    each_kernel(gpus, |gpu, instance, config| {
        take(record, instance, &run(gpu, instance, config));
    });
}

fn is_run_by<D: Device>(gpu: &mut Gpu<D>, instance: &Instance, spec: &DecodeSpec) -> bool {
    let case = CorpusCase::Decode(Box::new(spec.clone()));
    corpus::kernels(gpu, &case) == Some(vec![instance.name])
}

#[track_caller]
fn assert_is_run_by<D: Device>(gpu: &mut Gpu<D>, instance: &Instance, spec: &DecodeSpec) {
    assert!(is_run_by(gpu, instance, spec), "{}: {spec}", instance.name);
}

/// Sequences that have few rows of the second half of a tile, if it has one: so few that a wrong bound would leave that half out of what
/// is stored.
fn tree(instance: &Instance, config: &DecodeConfig, kv_lens: &[usize]) -> DecodeSpec {
    DecodeSpec {
        seq_q: 1 + config.halves(),
        ..spec(instance, config, kv_lens)
    }
}

/// Keys of a sequence before the one that is merged: partial results are then not counted from 0.
const BEFORE: usize = 5;

/// Two supers of a row, which are merged from groups.
fn trees_are_climbed<D: Device>(gpus: &mut [Gpu<D>], record: &mut Record) {
    each_recorded(gpus, record, |gpu, instance, config| {
        let chunk = config.chunk_keys() as usize;
        let kv_lens = [BEFORE, 64 * chunk + 300];
        vec![run_right(gpu, &tree(instance, config, &kv_lens))]
    });
}

/// The same of keys that begin within the second group, so that neither chunks nor groups are counted from 0.
fn windows_are_climbed<D: Device>(gpus: &mut [Gpu<D>], record: &mut Record) {
    each_recorded(gpus, record, |gpu, instance, config| {
        let chunk = config.chunk_keys() as usize;
        let mask = Mask::Window {
            left: Some(64 * chunk as u32),
            right: Some(0),
        };
        let spec = DecodeSpec {
            mask,
            ..tree(instance, config, &[BEFORE, 72 * chunk + 300])
        };
        vec![run_right(gpu, &spec)]
    });
}

/// Launches in which several chunks, each of another block, make up a sequence, with all that its last block does to the rows: more of them
/// than a head has queries of one position, and several tiles of them.
fn chunks_are_merged<D: Device>(gpus: &mut [Gpu<D>], record: &mut Record) {
    each_recorded(gpus, record, |gpu, instance, config| {
        let chunk = config.chunk_keys() as usize;
        let few = spec(instance, config, &[2 * chunk + 70, 5]);
        // As many rows as the kernel is for.
        let is_small = config.rows == DecodeConfig::HALF_ROWS && config.head_dim <= 128;
        let plain = DecodeSpec {
            seq_q: if is_small { few.seq_q } else { 7 },
            heads_kv: 2,
            mask: Mask::None,
            ..few
        };
        let bent = DecodeSpec {
            queries: Some(vec![plain.seq_q, 1]),
            // Less than is merged in one round, and half a pair.
            head_dim_v: 23,
            ..bent(&plain)
        };
        let narrower = DecodeSpec {
            head_dim_v: config.head_dim - 23,
            page_size: None,
            ..plain.clone()
        };
        let not_finite = DecodeSpec {
            keys: KeyKind::NonFinite,
            mask: Mask::Causal,
            kv_lens: vec![plain.kv_lens[0], chunk + plain.seq_q - 2],
            ..plain.clone()
        };
        let tree = DecodeSpec {
            tree: Some(TreeSpec {
                is_batched: true,
                is_wild: true,
            }),
            keys: KeyKind::NonFinite,
            ..plain.clone()
        };
        // Keys that follow each other, in whole rows, from a ring's first part on: as many as that holds at least.
        let contiguous = DecodeSpec {
            page_size: None,
            heads_kv: 1,
            ..plain.clone()
        };
        // Only codes have scales; of others it is one case more.
        let mut unscaled = plain.build().expect("small");
        unscaled.scales = None;
        let mut results = vec![run_case_right(gpu, &unscaled, &plain)];
        for spec in [
            bent,
            by_element(&plain),
            narrower,
            not_finite,
            tree,
            contiguous,
        ] {
            assert_is_run_by(gpu, instance, &spec);
            results.push(run_right(gpu, &spec));
        }
        if !is_small {
            // Tiles of rows that see no key, where a sequence has several chunks.
            let kv_len = chunk + 1;
            let spec = DecodeSpec {
                seq_q: kv_len + config.rows as usize,
                heads_kv: 1,
                group: 1,
                mask: Mask::Causal,
                kv_lens: vec![kv_len],
                ..plain
            };
            // Of so many queries other kernels are preferred.
            let mut case = spec.build().expect("small");
            case.options.force = Some(Variant::Decode);
            results.push(run_case_right(gpu, &case, &spec));
        }
        results
    });
}

/// So many sequences that an item is a super, and that a warp does not see all of them.
fn supers_are_items<D: Device>(gpus: &mut [Gpu<D>], record: &mut Record) {
    each_recorded(gpus, record, |gpu, instance, config| {
        let chunk = config.chunk_keys() as usize;
        let blocks = gpu.gpu_capabilities().multiprocessors * config.min_blocks;
        let sequences = (4 * blocks).max(WARP_SIZE + 3) as usize;
        let lengths = (0..sequences).map(|sequence| 3 * sequence % 100);
        let mut kv_lens: Vec<_> = lengths.collect();
        // Two supers of two groups each, of which the first begins within a group.
        kv_lens[1] = 72 * chunk + 5;
        let mask = Mask::Window {
            left: Some(18 * chunk as u32),
            right: Some(0),
        };
        let spec = DecodeSpec {
            mask,
            ..tree(instance, config, &kv_lens)
        };
        vec![run_right(gpu, &spec)]
    });
}

/// Sequences of which a row sees some thirty keys, all of about the same weight, or all of a few; both ends of what is seen lie in the
/// middle of a step, or of what a warp has of it.
const SEEN: Mask = Mask::Window {
    left: Some(31),
    right: Some(0),
};
const LENGTHS: [usize; 5] = [5, 131, 40, 150, 273];

/// Problems in which a border, a scale or an address that is off shows.
fn pairs_count<D: Device>(gpus: &mut [Gpu<D>], record: &mut Record) {
    each_recorded(gpus, record, |gpu, instance, config| {
        let plain = DecodeSpec {
            mask: SEEN,
            heads_kv: 2,
            ..spec(instance, config, &LENGTHS)
        };
        let bent = DecodeSpec {
            scale_factor: Some(-1.0),
            page_size: Some(1),
            ..bent(&plain)
        };
        let narrower = DecodeSpec {
            page_size: Some(7),
            // Scores of which the sign is changed, and nothing else.
            scale_factor: Some(-1.0),
            ..narrower(&plain)
        };
        let growing = DecodeSpec {
            keys: KeyKind::Growing,
            mask: Mask::Causal,
            ..plain.clone()
        };
        // So far above all scores that what tanh loses of small numbers shows.
        let capped = DecodeSpec {
            softcap: Some(1e3),
            ..plain.clone()
        };
        let longest = plain.seq_q;
        let packed = DecodeSpec {
            queries: Some(vec![1, longest, 0, longest - 1, longest]),
            ..bent.clone()
        };
        // Of 64 keys in their order, in one word and in two.
        let tree = |is_batched, is_wild| {
            let tree = TreeSpec {
                is_batched,
                is_wild,
            };
            DecodeSpec {
                tree: Some(tree),
                mask: Mask::None,
                // Of a scale of 0 all keys count alike.
                scale_factor: (!is_wild).then_some(0.0),
                ..plain.clone()
            }
        };
        let many = DecodeSpec {
            seq_q: 45,
            page_size: Some(1),
            ..tree(true, true)
        };
        let specs = [
            tree(false, false),
            many,
            by_element(&plain),
            plain,
            bent,
            capped,
            narrower,
            growing,
            packed,
        ];
        // Others would count for a kernel that this is not the turn of, and that may be left out.
        let mut specs = Vec::from(specs);
        specs.retain(|spec| is_run_by(gpu, instance, spec));
        specs.iter().map(|spec| run_right(gpu, spec)).collect()
    });
}

/// NaN and infinities in the last keys, which the queries before do not see.
fn not_finite<D: Device>(gpus: &mut [Gpu<D>], record: &mut Record) {
    each_recorded(gpus, record, |gpu, instance, config| {
        let plain = spec(instance, config, &[]);
        // Of which each query sees its own alone.
        let own = DecodeSpec {
            kv_lens: vec![plain.seq_q; 8],
            keys: KeyKind::NonFinite,
            mask: Mask::Window {
                left: Some(0),
                right: Some(0),
            },
            ..plain
        };
        // Drafts that others do not see, among them.
        let drafts = DecodeSpec {
            tree: Some(TreeSpec {
                is_batched: true,
                is_wild: true,
            }),
            mask: Mask::None,
            // A page ends within what a warp has of a step.
            page_size: Some(24),
            // As many queries as keys, more, and drafts of each of the first steps, and of one that is copied when a ring is full.
            kv_lens: [
                [own.seq_q; 4],
                [own.seq_q - 1; 4],
                [130; 4],
                [390; 4],
                [901; 4],
            ]
            .concat(),
            ..narrower(&own)
        };
        // Alone: the table ends with their pages, so that an entry behind them is none.
        let alone = DecodeSpec {
            kv_lens: vec![260; 4],
            ..drafts.clone()
        };
        [own, drafts, alone]
            .iter()
            .map(|spec| run_right(gpu, spec))
            .collect()
    });
}

/// Lengths and pages that cannot be, pages of the first step, which is copied before the loop, among them.
fn poison_stays_in_each<D: Device>(gpus: &mut [Gpu<D>]) {
    each_kernel(gpus, |gpu, instance, config| {
        poison_stays(gpu, &spec(instance, config, &[40, 700, 7]), None);
    });
}

// From groups, which are items themselves on a GPU with few multiprocessors.
tests_of!(
    climbing,
    trees_are_climbed,
    "trees of each decode kernel",
    "decode-trees"
);

/// GPUs with so many multiprocessors that nine groups are too few for items.
fn wide_gpus() -> [Sim; 3] {
    SCHEDULES.map(|seed| Sim::on(SimDevice::with_schedule(seed).multiprocessors(100)))
}

/// From chunks, which are items where there are many.
#[test]
fn sim_climbs_from_chunks() {
    let (mut record, mut gpus) = (ferroflash_tests::record!("decode-windows"), wide_gpus());
    windows_are_climbed(&mut gpus, &mut record);
    record.finish(&mut gpus);
}

#[test]
fn cuda_climbs_from_chunks() {
    if let Some(gpu) = gpu_or_not_run("trees of each decode kernel, from chunks") {
        windows_are_climbed(&mut [gpu], &mut Record::default());
    }
}

#[test]
fn sim_merges_chunks() {
    let (mut record, mut gpus) = (ferroflash_tests::record!("decode-chunks"), wide_gpus());
    chunks_are_merged(&mut gpus, &mut record);
    record.finish(&mut gpus);
}

#[test]
fn cuda_merges_chunks() {
    if let Some(gpu) = gpu_or_not_run("chunks merged by each decode kernel") {
        chunks_are_merged(&mut [gpu], &mut Record::default());
    }
}

tests_of!(
    pairs,
    pairs_count,
    "problems in which every pair counts for each decode kernel",
    "decode-pairs"
);
tests_of!(
    not_finite_keys,
    not_finite,
    "NaN in keys for each decode kernel",
    "decode-not_finite"
);
tests_of!(
    supers,
    supers_are_items,
    "supers of each decode kernel",
    "decode-supers"
);
tests_of!(
    spoilt,
    poison_stays_in_each,
    "spoilt sequences for each decode kernel"
);
