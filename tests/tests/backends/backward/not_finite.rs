//! NaN and infinities in operands of gradients, in rows that some of a block see and others do not: nothing of what is hidden comes
//! through. Of every kernel of f32, which ask blocks for what is not finite, and of those for tensor cores that compute such tiles again.

use std::collections::BTreeSet;

use ferroflash::backend::sim::Sim;
use ferroflash::{Backend, DType, Mask, Variant};
use ferroflash_testing::cases::{AlibiSpec, BackwardCase, CaseSpec, Lengths, ModifierSpec};
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::replaced::is_plan_untouched;
use ferroflash_tests::specs::plain;
use kernels_gpu::config::limits::{SM80_SHARED_BYTES, SM86_SHARED_BYTES, SM90_SHARED_BYTES};

use super::{ADDING_DQ, agree_in_each_way, agree_in_ways};

/// A key, its value, a query and its d_o that are not finite in half of their components, so that gradients by the others are of finite
/// numbers: of rows near enough to see them, in one block with rows that are not. Each kernel once: `ran` are those that have been.
fn agrees<B: Backend>(backend: &mut B, ran: &mut BTreeSet<Vec<String>>) {
    // An odd number of rows: what is computed one at a time is at times computed two at a time.
    for (head_dim, sinks) in [64, 128, 256]
        .into_iter()
        .flat_map(|head_dim| [(head_dim, false), (head_dim, true)])
    {
        let modifiers = ModifierSpec {
            sinks,
            ..ModifierSpec::default()
        };
        let spec = CaseSpec {
            mask: Mask::Window {
                left: Some(10),
                right: Some(0),
            },
            modifiers,
            ..plain(DType::F32, Lengths::one(71, 71), head_dim)
        };
        let mut case = spec.build_backward().unwrap();
        // Those of every other thread of a warp, which then go different ways.
        for dim in (0..head_dim).filter(|dim| dim / 4 % 2 == 0) {
            let value = [f32::NAN, f32::INFINITY][dim % 2];
            for row in [40, 70] {
                case.forward.k.set(0, 0, row, dim, value);
                case.forward.v.set(0, 0, row, dim, value);
            }
            for row in [8, 70] {
                case.forward.q.set(0, 0, row, dim, value);
                case.d_o.set(0, 0, row, dim, value);
            }
        }
        case.forward.options.force = Some(Variant::Simt);
        let plan = backend.plan(&case.problem().unwrap()).unwrap();
        let is_new = ran.insert(plan.kernel_names().map(str::to_owned).collect());
        if !is_new || is_plan_untouched(&plan) {
            continue;
        }
        let run = case.run(backend).unwrap();
        let wrong = case.check_all(&run).unwrap();
        assert_eq!(wrong, None, "{}: {spec}", plan.kernel_name());
    }
}

/// Queries, or keys, that are infinite in one component each, whose scores a softcap keeps finite, with gradients of ±0: −0 of a visible
/// pair must not be taken for the mark of a hidden one, as ±0 times ∞ is NaN. Of every kernel of f32 once with either; `ran` are those that
/// have been.
fn saturated_agree<B: Backend>(backend: &mut B, ran: &mut BTreeSet<(bool, Vec<String>)>) {
    for (head_dim, of_queries) in [64, 128, 256]
        .into_iter()
        .flat_map(|head_dim| [true, false].map(|of_queries| (head_dim, of_queries)))
    {
        let spec = CaseSpec {
            // Tiles see nearly all of a block, which has a mask then, and every element of a thread is of a visible pair.
            mask: Mask::Window {
                left: None,
                right: Some(62),
            },
            softcap: Some(1.5),
            ..plain(DType::F32, Lengths::one(130, 130), head_dim)
        };
        let mut case = spec.build_backward().unwrap();
        let BackwardCase { forward, .. } = &mut case;
        let spoilt = if of_queries {
            &mut forward.q
        } else {
            &mut forward.k
        };
        // One for each column of a thread, which are 16 apart, in a component of its own.
        for place in 0..8 {
            spoilt.set(0, 0, 17 * place, 9 * place, f32::INFINITY);
        }
        case.forward.options.force = Some(Variant::Simt);
        let plan = backend.plan(&case.problem().unwrap()).unwrap();
        let kernels = plan.kernel_names().map(str::to_owned).collect();
        let is_new = ran.insert((of_queries, kernels));
        if !is_new || is_plan_untouched(&plan) {
            continue;
        }
        let run = case.run(backend).unwrap();
        let wrong = case.check_all(&run).unwrap();
        assert_eq!(wrong, None, "{}: {spec}", plan.kernel_name());
    }
}

/// It divides neither length, nor the number of the spoilt key, nor its sum with the number of queries: otherwise what a distance is less by
/// could be added as well.
const DILATION: u32 = 3;

/// The first key that whole rows are spoilt of.
const SPOILT_KEY: usize = 40;

/// A sequence, of queries and keys, before the one that is spoilt, where the number of that is asked for.
const BEFORE: (usize, usize) = (5, 9);

/// Options beside operands that are not finite.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Beside {
    Nothing,
    /// An option of kernels for modifiers that hides nothing: the band alone decides there what a row must not show.
    Dropout,
    /// And arrays with elements of each head and batch entry.
    Arrays,
    /// Its scores stay finite, however large keys and queries are.
    Softcap,
    /// And every option that hides pairs.
    AllThatHide,
    /// One that could hide pairs, and hides none.
    Distance,
    /// Two options that hide pairs, neither of which hides all that the other does.
    Chunks,
    /// One that hides pairs, alone, beside scores that stay finite.
    CappedChunks,
}

impl Beside {
    /// All that whole rows are spoilt beside.
    const ALL: [Self; 6] = [
        Self::Nothing,
        Self::Dropout,
        Self::Softcap,
        Self::AllThatHide,
        Self::Chunks,
        Self::CappedChunks,
    ];

    /// `rows` and `keys`, alone or behind another sequence; and how many rows and keys are before them.
    fn lengths(self, rows: usize, keys: usize) -> (Lengths, [usize; 2]) {
        match self {
            Self::AllThatHide => {
                let lengths = Lengths::Varlen(vec![BEFORE, (rows, keys)]);
                (lengths, [BEFORE.0, BEFORE.1])
            }
            _ => (Lengths::one(rows, keys), [0; 2]),
        }
    }

    fn softcap(self) -> Option<f32> {
        matches!(self, Self::Softcap | Self::AllThatHide | Self::CappedChunks).then_some(1.5)
    }

    fn modifiers(self) -> ModifierSpec {
        let none = ModifierSpec::default();
        match self {
            Self::Nothing | Self::Softcap => none,
            Self::Dropout => ModifierSpec {
                dropout: Some(0.3),
                ..none
            },
            Self::Arrays => ModifierSpec {
                mask: Some(([false; 3], 10)),
                bias: Some(([false; 3], DType::F32)),
                blocks: Some([2, 3]),
                documents: Some((9, true)),
                prefix: Some((3, true)),
                ..Self::Dropout.modifiers()
            },
            Self::Distance => ModifierSpec {
                dilation: Some(1),
                ..none
            },
            Self::CappedChunks => ModifierSpec {
                chunk: Some(24),
                ..none
            },
            Self::AllThatHide => ModifierSpec {
                // Such that the spoilt rows have pairs that one of the options alone hides.
                mask: Some(([false; 3], 50)),
                documents: Some((80, false)),
                chunk: Some(48),
                dilation: Some(DILATION),
                blocks: Some([8, 8]),
                prefix: Some((4, false)),
                ..none
            },
            // The spoilt key is the first of a chunk, which queries near it do not see.
            Self::Chunks => ModifierSpec {
                chunk: Some(SPOILT_KEY as u32),
                dilation: Some(DILATION),
                ..none
            },
        }
    }
}

/// Makes a key, its value, a query and its d_o not finite, in any component; with a softcap keys and queries, each in one component, which
/// alone is not finite in the gradients, at another place in 16 bytes each. Of Hopper's kernels in one component, so that what is computed
/// again is not spoilt by rows beside it.
fn spoil(
    case: &mut BackwardCase,
    variant: Variant,
    beside: Beside,
    [first_row, first_key]: [usize; 2],
) {
    let BackwardCase { forward, d_o, .. } = case;
    if beside.softcap().is_some() {
        // Two keys and two queries for each place, so that several pairs of theirs are neither shown nor hidden by all options.
        for place in 0..16 {
            let component = 9 * place % 64;
            let key = first_key + SPOILT_KEY + place;
            forward.k.set(0, 0, key, component, f32::INFINITY);
            let row = first_row + 8 + place;
            forward.q.set(0, 0, row, component, f32::INFINITY);
            if beside == Beside::CappedChunks && place < 8 {
                // Keys that the first query sees.
                forward.k.set(0, 0, 1 + place, component, f32::INFINITY);
            }
        }
        return;
    }
    let dims = match variant {
        Variant::Wgmma => 1,
        _ => forward.q.spec().shape.dim,
    };
    for dim in 0..dims {
        let value = [f32::NAN, f32::INFINITY][dim % 2];
        for (tensor, row) in [
            (&mut forward.k, first_key + SPOILT_KEY),
            (&mut forward.v, first_key + SPOILT_KEY),
            (&mut forward.q, first_row + 8),
            (&mut *d_o, first_row + 8),
        ] {
            tensor.set(0, 0, row, dim, value);
        }
    }
}

/// Rows that are not finite, which those within ten of them see: every element of what a thread has is one of a pair that must not show it.
/// Each kernel once beside each option: `ran` are those that have been.
fn whole_rows_agree<B: Backend>(backend: &mut B, ran: &mut BTreeSet<(Beside, Vec<String>)>) {
    let of_mma = Beside::ALL.map(|beside| (Variant::Mma, beside));
    let of_wgmma = [Beside::Nothing, Beside::Dropout].map(|beside| (Variant::Wgmma, beside));
    let sorts = of_mma.into_iter().chain(of_wgmma);
    for (variant, beside) in sorts {
        for (dtype, head_dim) in [DType::F16, DType::Bf16]
            .into_iter()
            .flat_map(|dtype| [64, 128, 192, 256].map(|head_dim| (dtype, head_dim)))
        {
            // Kernels of `mma` for 256 are for 192 too.
            if (variant, head_dim) == (Variant::Mma, 192) {
                continue;
            }
            // Of as many queries as keys the first one is at the first key's place.
            let rows = if beside == Beside::CappedChunks {
                71
            } else {
                70
            };
            let (lengths, first) = beside.lengths(rows, 71);
            let spec = CaseSpec {
                mask: Mask::Window {
                    left: Some(10),
                    right: Some(10),
                },
                softcap: beside.softcap(),
                modifiers: beside.modifiers(),
                ..plain(dtype, lengths, head_dim)
            };
            let mut case = spec.build_backward().unwrap();
            spoil(&mut case, variant, beside, first);
            case.forward.options.force = Some(variant);
            agree_in_each_way(backend, (&spec, &mut case), beside, ran);
        }
    }
}

/// Components of queries and keys, and of values: of each size of kernels, in gradients of either, numbers by which a row ends at another of
/// the components that a lane has, 32 apart.
const CUT_DIMS: [[usize; 2]; 14] = [
    [24, 40],
    [40, 24],
    [24, 104],
    [104, 24],
    [40, 72],
    [72, 40],
    [24, 136],
    [136, 40],
    [72, 168],
    [168, 104],
    [40, 200],
    [200, 72],
    [104, 232],
    [232, 136],
];

/// Few rows of two heads of two batch entries, computed again row by row, each up to its last component: of Hopper's kernels, and of the one
/// that rounds dq of others.
fn cut_rows_agree<B: Backend>(backend: &mut B) {
    const ROWS: usize = 12;
    let lengths = Lengths::Dense {
        batch: 2,
        seq_q: ROWS,
        seq_kv: ROWS,
    };
    let sorts = [
        (Variant::Wgmma, Beside::Nothing),
        (Variant::Wgmma, Beside::Arrays),
        (Variant::Mma, Beside::Nothing),
    ];
    let dtypes = [DType::F16, DType::Bf16];
    let ran = &mut BTreeSet::new();
    for ((variant, beside), dtype) in
        (sorts.into_iter()).flat_map(|sort| dtypes.map(|dtype| (sort, dtype)))
    {
        for (number, dims) in CUT_DIMS.into_iter().enumerate() {
            let [head_dim, head_dim_v] = dims;
            let is_for_rounding = variant == Variant::Mma;
            // Of fewer components it has rounded dq of Hopper's kernels.
            if is_for_rounding && head_dim.max(head_dim_v) <= 128 {
                continue;
            }
            let mut modifiers = beside.modifiers();
            if let Some((_, bias)) = &mut modifiers.bias {
                *bias = [DType::F32, dtype][number % 2];
            }
            let spec = CaseSpec {
                heads_kv: 2,
                head_dim_v,
                mask: Mask::Window {
                    left: Some(3),
                    right: Some(3),
                },
                modifiers,
                ..plain(dtype, lengths.clone(), head_dim)
            };
            let mut case = spec.build_backward().unwrap();
            let BackwardCase { forward, d_o, .. } = &mut case;
            // The last key and the first query, which most rows do not see.
            for (tensor, row) in [
                (&mut forward.k, ROWS - 1),
                (&mut forward.v, ROWS - 1),
                (&mut forward.q, 0),
                (d_o, 0),
            ] {
                for place in 0..4 {
                    tensor.set(place / 2, place % 2, row, 0, f32::NAN);
                }
            }
            forward.options.force = Some(variant);
            let (case, what) = ((&spec, &mut case), (dims, beside));
            match is_for_rounding {
                true => agree_in_ways(backend, case, what, ran, &[ADDING_DQ]),
                false => agree_in_each_way(backend, case, what, ran),
            }
        }
    }
}

/// Keys that no query sees, or queries that see no key, NaN in all components, in a block of which others are seen: a pair of theirs comes
/// through wherever a thread has it. With gradients by slopes, which are sums of all pairs. Of every kernel of f32 and of `mma` once
/// beside each option: `ran` are those that have been.
fn unseen_agree<B: Backend>(backend: &mut B, ran: &mut BTreeSet<((bool, Beside), Vec<String>)>) {
    const SEEN: usize = 65;
    // So many that the block in which others begin ends with few of those, however large it is.
    const UNSEEN: usize = 123;
    const LEFT: usize = 12;
    const RIGHT: usize = 4;
    let dtypes = [
        (Variant::Simt, DType::F32),
        (Variant::Mma, DType::F16),
        (Variant::Mma, DType::Bf16),
    ];
    let options = [Beside::Nothing, Beside::Dropout, Beside::Distance];
    let sorts = dtypes.into_iter().flat_map(|dtype| {
        [64, 128, 256].into_iter().flat_map(move |head_dim| {
            (options.into_iter()).flat_map(move |beside| {
                [false, true].map(|of_queries| (dtype, head_dim, beside, of_queries))
            })
        })
    });
    for ((variant, dtype), head_dim, beside, of_queries) in sorts {
        let lengths = match of_queries {
            true => Lengths::one(UNSEEN + RIGHT + SEEN, SEEN),
            false => Lengths::one(SEEN, UNSEEN + LEFT + SEEN),
        };
        let spec = CaseSpec {
            mask: Mask::Window {
                left: Some(LEFT as u32),
                right: Some(RIGHT as u32),
            },
            alibi: Some(AlibiSpec {
                steepest: 0.01,
                is_batched: false,
            }),
            modifiers: beside.modifiers(),
            // With gradients by slopes.
            seed: 1,
            ..plain(dtype, lengths, head_dim)
        };
        let mut case = spec.build_backward().unwrap();
        let BackwardCase { forward, d_o, .. } = &mut case;
        forward.options.force = Some(variant);
        let spoilt = match of_queries {
            true => [&mut forward.q, d_o],
            false => [&mut forward.k, &mut forward.v],
        };
        for tensor in spoilt {
            for row in 0..UNSEEN {
                for dim in 0..head_dim {
                    tensor.set(0, 0, row, dim, f32::NAN);
                }
            }
        }
        agree_in_each_way(backend, (&spec, &mut case), (of_queries, beside), ran);
    }
}

/// Simulated GPUs with as much shared memory as those that there are.
fn sims() -> impl Iterator<Item = Sim> {
    let sizes = [SM86_SHARED_BYTES, SM80_SHARED_BYTES, SM90_SHARED_BYTES];
    sizes.into_iter().map(|shared_bytes| {
        let mut sim = Sim::new();
        sim.limit_shared_bytes(shared_bytes);
        sim
    })
}

#[test]
fn sim() {
    let mut ran = BTreeSet::new();
    for mut sim in sims() {
        agrees(&mut sim, &mut ran);
    }
}

#[test]
fn sim_saturated() {
    let mut ran = BTreeSet::new();
    for mut sim in sims() {
        saturated_agree(&mut sim, &mut ran);
    }
}

#[test]
fn sim_unseen() {
    let mut ran = BTreeSet::new();
    for mut sim in sims() {
        unseen_agree(&mut sim, &mut ran);
    }
}

#[test]
fn sim_whole_rows() {
    let mut ran = BTreeSet::new();
    for mut sim in sims() {
        whole_rows_agree(&mut sim, &mut ran);
    }
}

#[test]
fn sim_cut_rows() {
    cut_rows_agree(&mut Sim::new());
}

#[test]
fn cuda() {
    if let Some(mut gpu) = gpu_or_not_run("gradients of what is not finite") {
        agrees(&mut gpu, &mut BTreeSet::new());
        saturated_agree(&mut gpu, &mut BTreeSet::new());
        unseen_agree(&mut gpu, &mut BTreeSet::new());
        whole_rows_agree(&mut gpu, &mut BTreeSet::new());
        cut_rows_agree(&mut gpu);
    }
}
