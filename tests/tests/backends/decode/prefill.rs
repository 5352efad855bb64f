//! Chunks of prompts: many queries of a cache, by Hopper's kernels.

use ferroflash::backend::sim::{Sim, SimDevice};
use ferroflash::backend::{Device, Gpu};
use ferroflash::plan::eligible;
use ferroflash::{Backend, DType, HostTensor, Mask, Variant};
use ferroflash_testing::cases::{
    AlibiSpec, Arrangement, DecodeCase, DecodeSpec, KeyKind, decode_strategy, scatter,
};
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::random_cases::agree_on;
use ferroflash_tests::record::Record;
use ferroflash_tests::replaced::is_plan_untouched;
use ferroflash_tests::schedules::{SCHEDULES, of_text};
use kernels_gpu::config::check_cache;
use kernels_gpu::config::wgmma::{ATOM_COLS, WARPGROUP_ROWS, WgmmaConfig};
use kernels_gpu::instances::{CACHED, Instance};
use proptest::prelude::*;
use proptest::sample::select;

use super::garbage::{is_poisoned, poison_stays, run};
use super::{bits, bits_of_rows, case_agrees, run_case_right, take};

/// The case of a spec, by Hopper's kernels.
fn forced(spec: &DecodeSpec) -> DecodeCase {
    let mut case = spec.build().expect("small");
    case.options.force = Some(Variant::Wgmma);
    case
}

#[track_caller]
fn run_right<B: Backend>(backend: &mut B, spec: &DecodeSpec) -> (HostTensor, HostTensor) {
    run_case_right(backend, &forced(spec), spec)
}

/// Sequences that `instance` is for, of two tiles of a block and a piece.
pub fn spec(instance: &Instance, config: &WgmmaConfig, kv_lens: &[usize]) -> DecodeSpec {
    DecodeSpec {
        dtype: instance.dtype,
        seq_q: 2 * config.block_m() as usize + 5,
        heads_kv: 1,
        group: 2,
        head_dim: config.head_dim as usize,
        head_dim_v: config.head_dim_v as usize,
        ..DecodeSpec::plain(kv_lens)
    }
}

/// Calls `check` with every kernel on one of `gpus`.
fn each_kernel<D: Device>(
    gpus: &mut [Gpu<D>],
    mut check: impl FnMut(&mut Gpu<D>, &Instance, &WgmmaConfig),
) {
    for instance in CACHED {
        let gpu = &mut gpus[of_text(instance.name) % gpus.len()];
        let config = instance.wgmma().expect("of the table of Hopper's kernels");
        let problem = forced(&spec(instance, config, &[1])).problem().unwrap();
        let plan = gpu.plan(&problem).unwrap();
        assert_eq!(plan.kernel_name(), instance.name);
        if !is_plan_untouched(&plan) {
            check(gpu, instance, config);
        }
    }
}

/// Lengths beside blocks and boxes, and fewer keys than queries.
fn lengths(config: &WgmmaConfig) -> [usize; 4] {
    let block = config.block_n as usize;
    [3 * block + 9, 2 * block, 1, config.block_m() as usize]
}

/// A case in which scores of some queries are far beyond the softcap, and those of others so far below that what tanh loses of small
/// numbers shows in the bits of their probabilities. A warp bends both in one way.
fn capped(spec: &DecodeSpec) -> DecodeCase {
    let mut case = forced(&DecodeSpec {
        softcap: Some(1e3),
        ..spec.clone()
    });
    let shape = case.q.spec().shape;
    for row in (0..shape.seq).step_by(8) {
        for dim in 0..shape.dim {
            case.q.set(0, 0, row, dim, 6e3);
        }
    }
    case
}

/// Problems in which a border, a page, a scale or an address that is off shows. Gives `record` the results'.
fn pairs_count<D: Device>(gpus: &mut [Gpu<D>], record: &mut Record) {
    each_kernel(gpus, |gpu, instance, config| {
        let of_heads = DecodeSpec {
            heads_kv: 2,
            ..spec(instance, config, &lengths(config))
        };
        let plain = spec(instance, config, &lengths(config));
        let windowed = DecodeSpec {
            mask: Mask::Window {
                left: Some(31),
                right: Some(3),
            },
            sinks: true,
            page_size: Some(32),
            ..plain.clone()
        };
        let bent = DecodeSpec {
            softcap: Some(1.5),
            alibi: Some(AlibiSpec {
                steepest: 0.01,
                is_batched: true,
            }),
            scale_factor: Some(-1.0),
            page_size: Some(256),
            arrangements: [Arrangement::BSHD, Arrangement::BHSD, Arrangement::BHSD],
            ..plain.clone()
        };
        // A pack of heads shares a tile, each with a sink of its own, which counts where a sequence has one key.
        let packed = DecodeSpec {
            sinks: true,
            seq_q: 41,
            group: 3,
            page_size: Some(64),
            mask: Mask::None,
            ..of_heads.clone()
        };
        let narrower = DecodeSpec {
            head_dim: plain.head_dim - 8,
            head_dim_v: plain.head_dim_v - 24,
            page_size: None,
            ..plain.clone()
        };
        let growing = DecodeSpec {
            keys: KeyKind::Growing,
            ..plain.clone()
        };
        let last = DecodeSpec {
            keys: KeyKind::LastDominates,
            ..plain.clone()
        };
        // Maxima that were left are raised.
        let falling = DecodeSpec {
            keys: KeyKind::Falling,
            ..plain.clone()
        };
        // What is not capped is scaled at once.
        let sloped = DecodeSpec {
            softcap: None,
            ..bent.clone()
        };
        // Far beyond the cap, and some small ones.
        let beyond = DecodeSpec {
            softcap: Some(1.5),
            ..last.clone()
        };
        // Small beside the cap, and larger from block to block in the order in which they are taken, from the last: maxima that were left
        // are raised.
        let outgrown = DecodeSpec {
            softcap: Some(100.0),
            scale_factor: Some(-1.5 * (128.0 / config.head_dim as f32).sqrt()),
            ..growing.clone()
        };
        // Whose tiles no kernel lists; of a scale of 0 all keys count alike.
        let one = DecodeSpec {
            scale_factor: Some(0.0),
            kv_lens: lengths(config)[..1].to_vec(),
            ..plain.clone()
        };
        let beside_large = [&plain, &bent].map(capped);
        let specs = [
            of_heads, windowed, bent, sloped, packed, narrower, growing, falling, last, beyond,
            outgrown, one,
        ];
        let mut results: Vec<_> = specs.iter().map(|spec| run_right(gpu, spec)).collect();
        results.extend(beside_large.map(|case| run_case_right(gpu, &case, &plain)));
        take(record, instance, &results);
    });
}

/// A case whose queries see all keys, of which one has a component that is not finite: another one of a lane's in each sequence, and
/// another number. It explains what is not finite in o, so that nothing is computed again.
fn explained(instance: &Instance, config: &WgmmaConfig) -> (DecodeCase, DecodeSpec) {
    const VALUES: [f32; 3] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let dims = (0..config.head_dim_v as usize).step_by(ATOM_COLS as usize);
    let all: Vec<_> = dims
        .flat_map(|dim| VALUES.map(|value| (dim, value)))
        .collect();
    let spec = DecodeSpec {
        seq_q: 9,
        page_size: None,
        mask: Mask::None,
        ..spec(instance, config, &vec![9; all.len()])
    };
    let mut case = forced(&spec);
    for (sequence, (dim, value)) in all.into_iter().enumerate() {
        // Not among the first keys, which are looked at together.
        case.v.set(sequence, 0, 7, dim, value);
    }
    (case, spec)
}

/// NaN and infinities in keys that some queries do not see. Gives `record` the results'.
fn not_finite<D: Device>(gpus: &mut [Gpu<D>], record: &mut Record) {
    each_kernel(gpus, |gpu, instance, config| {
        let (case, of_case) = explained(instance, config);
        let mut results = vec![run_case_right(gpu, &case, &of_case)];
        for (page_size, softcap) in [(Some(16), None), (None, None), (Some(64), Some(1.5))] {
            let spec = DecodeSpec {
                keys: KeyKind::NonFinite,
                seq_q: 70,
                page_size,
                softcap,
                sinks: page_size.is_some(),
                // With the cap and without.
                alibi: (page_size != Some(16)).then_some(AlibiSpec {
                    steepest: 0.01,
                    is_batched: false,
                }),
                ..spec(instance, config, &[70, 200])
            };
            results.push(run_right(gpu, &spec));
            if softcap.is_none() {
                // In each component of some key that the first queries do not see.
                let mut scattered = forced(&spec);
                scatter(&mut scattered.v);
                results.push(run_case_right(gpu, &scattered, &spec));
            }
        }
        take(record, instance, &results);
    });
}

/// Lengths and pages that cannot be.
fn poison_stays_in_each<D: Device>(gpus: &mut [Gpu<D>]) {
    each_kernel(gpus, |gpu, instance, config| {
        for page_size in [Some(16), None] {
            let spec = DecodeSpec {
                seq_q: 40,
                page_size,
                ..spec(instance, config, &[40, 300, 7])
            };
            poison_stays(gpu, &spec, Some(Variant::Wgmma));
        }
    });
}

/// Pages that no query sees are not looked at: those behind a window, and those behind a length, of which the table's row has none
/// or what cannot be.
fn pages_out_of_sight<D: Device>(gpus: &mut [Gpu<D>]) {
    each_kernel(gpus, |gpu, instance, config| {
        // The last query is alone in its warpgroup, in its block and in its cluster, and sees one key, with which a block of keys begins.
        for rows in [WARPGROUP_ROWS, config.block_m(), config.cluster_m()] {
            let kv_len = 5 * config.block_n as usize + 1;
            let seq_q = rows as usize + 1;
            let mask = Mask::Window {
                left: Some(0),
                right: Some(0),
            };
            let spec = DecodeSpec {
                seq_q,
                group: 1,
                mask,
                ..spec(instance, config, &[kv_len])
            };
            let mut case = forced(&spec);
            let good = run_case_right(gpu, &case, &spec);
            // Pages have 16 keys.
            let first = (kv_len - seq_q) / 16;
            case.block_table.as_mut().unwrap().0[..first].fill(i32::MAX);
            let (given_back, faults) = run(gpu, &case);
            assert!(!faults.any());
            assert_eq!(bits(0, &given_back), bits(0, &good));
            case.block_table.as_mut().unwrap().0[first] = -1;
            let (spoilt, faults) = run(gpu, &case);
            assert!(faults.bad_page && !faults.bad_length);
            assert!(is_poisoned(0, &spoilt));
        }
    });
}

/// A page that cannot be, behind those that a block looks at in one turn.
fn page_of_another_turn<D: Device>(gpus: &mut [Gpu<D>]) {
    let instance = &CACHED[0];
    let config = instance.wgmma().expect("of the table of Hopper's kernels");
    let turn = check_cache::THREADS as usize;
    let mut case = forced(&spec(instance, config, &[16 * turn + 1]));
    case.block_table.as_mut().unwrap().0[turn] = -1;
    for gpu in gpus {
        let (spoilt, faults) = run(gpu, &case);
        assert!(faults.bad_page && is_poisoned(0, &spoilt));
    }
}

/// A sequence's bits depend neither on the others of the batch, nor on whether its tiles are listed, nor on pages.
fn bits_are_its_own<D: Device>(gpus: &mut [Gpu<D>]) {
    each_kernel(gpus, |gpu, instance, config| {
        let alone = DecodeSpec {
            kv_lens: vec![0, 0, 300],
            seq_q: 90,
            ..spec(instance, config, &[])
        };
        let expected = bits(2, &run_right(gpu, &alone));
        let together = DecodeSpec {
            kv_lens: vec![77, 513, 300, 1000],
            ..alone.clone()
        };
        assert_eq!(bits(2, &run_right(gpu, &together)), expected, "{together}");
        let mut first = |kv_lens: &[usize]| {
            let spec = DecodeSpec {
                kv_lens: kv_lens.to_vec(),
                ..alone.clone()
            };
            bits(0, &run_right(gpu, &spec))
        };
        assert_eq!(first(&[300]), first(&[300, 77, 513]));
        for page_size in [Some(32), Some(128), Some(1024), None] {
            let paged = DecodeSpec {
                page_size,
                ..alone.clone()
            };
            assert_eq!(bits(2, &run_right(gpu, &paged)), expected, "{paged}");
        }
    });
}

/// Sequences of packed queries: one, tiles and a piece, none, as many as decode kernels take at a group of 2, and one more.
fn mixed(instance: &Instance, config: &WgmmaConfig) -> DecodeSpec {
    let block = config.block_n as usize;
    let tiles = 2 * config.block_m() as usize + 5;
    DecodeSpec {
        heads_kv: 2,
        queries: Some(vec![1, tiles, 0, 32, 33]),
        ..spec(instance, config, &[200, 3 * block + 9, 50, 40, 300])
    }
}

/// Chunks of prompts beside single tokens and drafts.
fn mixed_batches<D: Device>(gpus: &mut [Gpu<D>]) {
    each_kernel(gpus, |gpu, instance, config| {
        let plain = mixed(instance, config);
        let bent = DecodeSpec {
            softcap: Some(1.5),
            alibi: Some(AlibiSpec {
                steepest: 0.01,
                is_batched: true,
            }),
            mask: Mask::Window {
                left: Some(31),
                right: Some(0),
            },
            sinks: true,
            page_size: None,
            ..plain.clone()
        };
        let others = DecodeSpec {
            kv_lens: vec![5, plain.kv_lens[1], 0, 40, 33],
            queries: Some(vec![3, plain.q_counts()[1], 4, 32, 0]),
            ..plain.clone()
        };
        let rows = |spec: &DecodeSpec, sequence: usize| forced(spec).q_rows[sequence].clone();
        let results = [&plain, &bent, &others].map(|spec| run_right(gpu, spec));
        for sequence in [1, 3] {
            let expected = bits_of_rows(&rows(&plain, sequence), &results[0]);
            let beside_others = bits_of_rows(&rows(&others, sequence), &results[2]);
            assert_eq!(beside_others, expected, "{others}, sequence {sequence}");
        }
        // As decode kernels alone have it, which take these whatever is beside them.
        let mut alone = plain.build().expect("small");
        alone.options.force = Some(Variant::Decode);
        let alone = run_case_right(gpu, &alone, &plain);
        for sequence in [0, 3] {
            let at = rows(&plain, sequence);
            assert_eq!(bits_of_rows(&at, &results[0]), bits_of_rows(&at, &alone));
        }
    });
}

/// A length or a page that cannot be, of a sequence that either kernel takes, spoils that one alone.
fn poison_stays_in_mixed_batches<D: Device>(gpus: &mut [Gpu<D>]) {
    each_kernel(gpus, |gpu, instance, config| {
        let spec = mixed(instance, config);
        let good_case = forced(&spec);
        let (good, faults) = run(gpu, &good_case);
        assert!(!faults.any());
        // Decode kernels take the first two of these sequences, and Hopper's the others.
        for (sequence, is_page) in [(0, false), (3, true), (1, false), (4, true)] {
            let mut case = good_case.clone();
            let (table, max_pages) = case.block_table.as_mut().unwrap();
            if is_page {
                table[sequence * *max_pages] = -1;
            } else {
                case.kv_lens[sequence] = (*max_pages * 16) as i32 + 1;
            }
            let (spoilt, faults) = run(gpu, &case);
            assert_eq!((faults.bad_page, faults.bad_length), (is_page, !is_page));
            for (other, rows) in good_case.q_rows.iter().enumerate() {
                let bits = bits_of_rows(rows, &spoilt);
                if other == sequence {
                    assert!(bits.iter().all(|&bits| f32::from_bits(bits).is_nan()));
                } else {
                    assert_eq!(bits, bits_of_rows(rows, &good), "{sequence} of {spec}");
                }
            }
        }
    });
}

tests_of!(
    mixed,
    mixed_batches,
    "packed queries of a cache for each Hopper kernel"
);
tests_of!(
    mixed_spoilt,
    poison_stays_in_mixed_batches,
    "spoilt sequences of packed queries for each Hopper kernel"
);
tests_of!(
    pairs,
    pairs_count,
    "prompts in parts by each Hopper kernel",
    "decode-prefill-pairs"
);
tests_of!(
    not_finite_keys,
    not_finite,
    "NaN in keys of a cache for each Hopper kernel",
    "decode-prefill-not_finite"
);
tests_of!(
    spoilt,
    poison_stays_in_each,
    "spoilt sequences for each Hopper kernel"
);
tests_of!(
    out_of_sight,
    pages_out_of_sight,
    "pages out of sight for each Hopper kernel"
);
tests_of!(another_turn, page_of_another_turn, "a page of another turn");
tests_of!(
    own_bits,
    bits_are_its_own,
    "bits of a sequence by each Hopper kernel"
);

/// Caches that Hopper's kernels take, or, where TMA cannot reach them, others, of many queries.
fn strategy(most_keys: usize) -> impl Strategy<Value = DecodeSpec> {
    let page_size = select(vec![Some(16), Some(32), Some(64), Some(256), None]);
    let seq_q = prop_oneof![1..10usize, 60..200usize];
    let drawn = decode_strategy(&[DType::F16, DType::Bf16], most_keys);
    (drawn, page_size, seq_q).prop_map(|(drawn, page_size, seq_q)| DecodeSpec {
        page_size,
        seq_q,
        // Which they have no kernel for.
        tree: None,
        group: drawn.group.min(4),
        e4m3: None,
        arrangements: [Arrangement::BSHD, Arrangement::BHSD, Arrangement::BSHD],
        ..drawn
    })
}

fn agrees<B: Backend>(backend: &mut B, spec: &DecodeSpec) -> Result<(), TestCaseError> {
    let fail = |error: ferroflash::Error| TestCaseError::fail(format!("{spec}: {error}"));
    let mut case = spec.build().map_err(fail)?;
    let here = backend.capabilities();
    // Not where there is no key, or rows are not multiples of 16 bytes.
    let takes = eligible(&case.problem().map_err(fail)?, &here).contains(&Variant::Wgmma);
    case.options.force = takes.then_some(Variant::Wgmma);
    case_agrees(backend, &case, spec)
}

#[test]
fn drawn_sim() {
    let sim = Sim::on(SimDevice::with_schedule(SCHEDULES[1]));
    agree_on(sim, 30, &strategy(500), agrees);
}

#[test]
fn drawn_cuda() {
    if let Some(gpu) = gpu_or_not_run("drawn caches by Hopper's kernels") {
        agree_on(gpu, 200, &strategy(5000), agrees);
    }
}
