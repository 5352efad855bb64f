//! The shapes that FlashAttention-2 and -3 test, against the f64 oracle's bound.

use ferroflash::plan::eligible;
use ferroflash::{AlibiSlopes, Backend, Cpu, DType, ForwardOptions, Layout, Mask, Shape};
use ferroflash_testing::cases::{Case, Lengths, dtypes_of, normal};
use ferroflash_testing::oracle::Rows;
use ferroflash_tests::gpu::gpu_or_not_run;

/// Shapes that one of their tests runs through.
struct Group {
    head_dims: &'static [usize],
    /// (seq_q, seq_kv)
    seqs: &'static [(usize, usize)],
    masks: &'static [Mask],
    /// Whether slopes are given.
    alibi: &'static [bool],
    /// `seqs` are the longest of several packed sequences.
    is_packed: bool,
}

const FA2_HEAD_DIMS: [usize; 11] = [32, 40, 59, 64, 96, 111, 128, 160, 192, 224, 256];
const FA3_HEAD_DIMS: [usize; 5] = [64, 96, 128, 192, 256];
/// Theirs draw the sides at random.
const WINDOW: Mask = Mask::Window {
    left: Some(57),
    right: Some(13),
};
const FA2_OUTPUT_SEQS: [(usize, usize); 10] = [
    (113, 203),
    (128, 217),
    (113, 211),
    (108, 256),
    (256, 512),
    (512, 256),
    (1024, 1024),
    (1023, 1024),
    (1024, 1023),
    (2048, 2048),
];
/// Each way round.
const FA2_CAUSAL_SEQS: [(usize, usize); 20] = [
    (1, 239),
    (3, 799),
    (127, 512),
    (127, 513),
    (113, 203),
    (128, 217),
    (113, 211),
    (108, 256),
    (256, 512),
    (1023, 1024),
    (239, 1),
    (799, 3),
    (512, 127),
    (513, 127),
    (203, 113),
    (217, 128),
    (211, 113),
    (256, 108),
    (512, 256),
    (1024, 1023),
];
const FA3_SEQS: [(usize, usize); 12] = [
    (1, 1),
    (64, 128),
    (128, 192),
    (256, 256),
    (239, 1),
    (799, 3),
    (113, 203),
    (113, 128),
    (640, 128),
    (384, 256),
    (4096, 4096),
    (4224, 4224),
];
const CACHE_SEQS: [(usize, usize); 6] = [
    (1, 128),
    (1, 339),
    (3, 1024),
    (64, 2048),
    (16, 20000),
    (1, 131072),
];

const FA3_VARLEN_SEQS: [(usize, usize); 7] = [
    (1, 1),
    (1, 3),
    (2, 1),
    (511, 1),
    (3, 513),
    (307, 256),
    (4096, 4096),
];

const GROUPS: [Group; 5] = [
    Group {
        head_dims: &FA2_HEAD_DIMS,
        seqs: &FA2_OUTPUT_SEQS,
        masks: &[Mask::None, Mask::Causal, WINDOW],
        alibi: &[false, true],
        is_packed: false,
    },
    Group {
        head_dims: &FA2_HEAD_DIMS,
        seqs: &FA2_CAUSAL_SEQS,
        masks: &[Mask::Causal, WINDOW],
        alibi: &[false, true],
        is_packed: false,
    },
    Group {
        head_dims: &FA3_HEAD_DIMS,
        seqs: &FA3_SEQS,
        masks: &[Mask::None, Mask::Causal, WINDOW],
        alibi: &[false],
        is_packed: false,
    },
    Group {
        head_dims: &FA3_HEAD_DIMS,
        seqs: &FA3_VARLEN_SEQS,
        masks: &[Mask::None, Mask::Causal, WINDOW],
        alibi: &[false, true],
        is_packed: true,
    },
    Group {
        head_dims: &[64, 128, 256],
        seqs: &CACHE_SEQS,
        masks: &[Mask::None, Mask::Causal],
        alibi: &[false],
        is_packed: false,
    },
];

/// (heads_q, heads_kv): as many, grouped, one.
const HEADS: [(usize, usize); 3] = [(6, 6), (6, 2), (6, 1)];
const SOFTCAPS: [Option<f32>; 3] = [None, Some(15.0), Some(50.0)];

/// One of their problems.
#[derive(Clone, Copy, Debug)]
struct Problem {
    dtype: DType,
    heads: (usize, usize),
    seqs: (usize, usize),
    head_dim: usize,
    mask: Mask,
    softcap: Option<f32>,
    alibi: bool,
    is_packed: bool,
}

/// Every combination.
fn problems(dtypes: &[DType]) -> Vec<Problem> {
    GROUPS
        .iter()
        .flat_map(|group| of_group(group, dtypes))
        .collect()
}

fn of_group(group: &Group, dtypes: &[DType]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for &head_dim in group.head_dims {
        for &seqs in group.seqs {
            for &mask in group.masks {
                for &alibi in group.alibi {
                    for heads in HEADS {
                        for softcap in SOFTCAPS {
                            problems.extend(dtypes.iter().map(|&dtype| Problem {
                                dtype,
                                heads,
                                seqs,
                                head_dim,
                                mask,
                                softcap,
                                alibi,
                                is_packed: group.is_packed,
                            }));
                        }
                    }
                }
            }
        }
    }
    problems
}

impl Problem {
    /// One sequence; or the longest one among shorter ones and ones without queries, keys or both.
    fn lengths(&self) -> Lengths {
        let (seq_q, seq_kv) = self.seqs;
        match self.is_packed {
            false => Lengths::one(seq_q, seq_kv),
            true => Lengths::Varlen(vec![
                (seq_q / 3, seq_kv / 3),
                (0, seq_kv),
                (seq_q, seq_kv),
                (0, 0),
                (seq_q.saturating_sub(20), seq_kv.saturating_sub(7)),
                (seq_q / 2, 0),
            ]),
        }
    }

    fn case(&self) -> Case {
        let lengths = self.lengths();
        let (batch, seq_q, seq_kv) = lengths.axes();
        let shape = |heads, seq| Shape {
            batch,
            heads,
            seq,
            dim: self.head_dim,
        };
        let tensor = |shape, seed| normal(self.dtype, shape, Layout::Bshd, seed).expect("small");
        let kv = shape(self.heads.1, seq_kv);
        let options = ForwardOptions::new()
            .mask(self.mask)
            .softcap(self.softcap)
            .alibi(
                self.alibi
                    .then(|| AlibiSlopes::geometric(self.heads.0).expect("few")),
            )
            .cu_seqlens(lengths.cu_seqlens().expect("short"));
        Case {
            q: tensor(shape(self.heads.0, seq_q), 1),
            k: tensor(kv, 2),
            v: tensor(kv, 3),
            options,
            o: None,
        }
    }
}

/// Runs every `every`th problem.
fn run<B: Backend>(mut backend: B, every: usize) {
    let dtypes = dtypes_of(&backend).expect("the backend runs something");
    let problems = problems(&dtypes);
    for (number, problem) in problems.iter().enumerate().step_by(every) {
        let mut case = problem.case();
        let checked = case.problem().expect("valid");
        let rows = Rows::Sampled {
            count: 32,
            seed: number as u64,
        };
        for variant in eligible(&checked, &backend.capabilities()) {
            case.options.force = Some(variant);
            let (o, lse) = case.run(&mut backend).expect("it runs");
            let verdict = case.check(&o, &lse, rows).expect("valid");
            assert!(verdict.passed(), "{variant}: {problem:?}: {verdict}");
        }
    }
}

/// A prime, so that it walks through every axis of the combinations.
#[test]
fn cpu() {
    run(Cpu::new(), 397);
}

#[test]
fn cuda() {
    if let Some(gpu) = gpu_or_not_run("peers' shapes") {
        run(gpu, 13);
    }
}
