//! The generator of cases: a proptest strategy, which shrinks a failing case to a small one.

use std::fmt;

use ferroflash::{DType, Layout, MAX_HEAD_DIM, Mask};
use proptest::bool::weighted;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::{Union, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::arrangement::Arrangement;
use super::fill::mix;
use super::kind::InputKind;
use super::lengths::Lengths;
use super::limits::{Limits, tile_sizes};
use super::modifiers::{self, ModifierSpec};
use super::spec::{AlibiSpec, CaseSpec};

/// Cases of one of `dtypes` within `limits`, without end and the same for the same `seed`.
pub fn drawn(dtypes: &[DType], limits: Limits, seed: u64) -> impl Iterator<Item = CaseSpec> {
    drawn_from(strategy(dtypes, limits), seed)
}

/// Values of `strategy`, without end and the same for the same `seed`.
pub(super) fn drawn_from<T: fmt::Debug>(
    strategy: BoxedStrategy<T>,
    seed: u64,
) -> impl Iterator<Item = T> {
    let words: [u64; 4] = std::array::from_fn(|word| mix(seed, word as u64));
    let seed: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    std::iter::repeat_with(move || {
        let tree = strategy.new_tree(&mut runner);
        tree.expect("of a few cases one is small enough").current()
    })
}

/// Any case of one of `dtypes` within `limits`; half of all are such that TMA can reach their operands.
pub fn strategy(dtypes: &[DType], limits: Limits) -> BoxedStrategy<CaseSpec> {
    // Most cases whose sequences may be long are too large, and those that are not would be mostly empty ones: so
    // shorter limits have their share.
    let seq_limits = std::iter::successors(Some(limits.seq), |seq| Some(seq * 3 / 4));
    let seq_limits = seq_limits.take_while(|seq| *seq > Limits::TILE);
    let within = |seq| case(dtypes, seq).boxed();
    let anywhere = Union::new(seq_limits.map(within));
    (anywhere, any::<bool>())
        .prop_map(|(case, is_reachable)| match is_reachable {
            true => case.reachable_by_tma(),
            false => case,
        })
        .prop_filter("too much work", move |case| limits.allow(case))
        .boxed()
}

/// Dense cases of a few queries on hundreds to `most_keys` keys, without modifiers but sinks; half of all are such that TMA can
/// reach their operands.
pub fn few_queries(dtypes: &[DType], most_keys: usize) -> BoxedStrategy<CaseSpec> {
    let beside = (select(vec![512, 1024, 2048]), 0..=2usize).prop_map(|(tile, by)| tile + by - 1);
    let keys = prop_oneof![300..=most_keys, beside];
    let lengths = (1..=2usize, 1..=8usize, keys).prop_map(move |(batch, seq_q, seq_kv)| {
        let seq_kv = seq_kv.min(most_keys);
        Lengths::Dense {
            batch,
            seq_q,
            seq_kv,
        }
    });
    (case(dtypes, most_keys), lengths, any::<bool>())
        .prop_map(|(case, lengths, is_reachable)| {
            let case = CaseSpec {
                lengths,
                modifiers: ModifierSpec {
                    sinks: case.modifiers.sinks,
                    ..ModifierSpec::default()
                },
                ..case
            };
            match is_reachable {
                true => case.reachable_by_tma(),
                false => case,
            }
        })
        .prop_filter("many rows", |case| {
            case.lengths
                .each()
                .all(|(seq_q, _)| seq_q * case.group <= 64)
        })
        .boxed()
}

/// Any case of one of `dtypes`, of sequences up to `seq_limit`.
fn case(dtypes: &[DType], seq_limit: usize) -> impl Strategy<Value = CaseSpec> + use<> {
    let group = prop_oneof![3 => 1..=5usize, 1 => select(vec![8, 16])];
    let heads = (1..=3usize, group);
    let dims = (head_dim(), head_dim(), weighted(0.6));
    let score = (
        mask(seq_limit as u32),
        scale_factor(),
        softcap(),
        alibi(seq_limit),
        modifiers::strategy(seq_limit),
    );
    let place = (
        [arrangement(), arrangement(), arrangement()],
        layout(),
        proptest::option::weighted(0.2, arrangement()),
    );
    let inputs = (
        select(dtypes.to_vec()),
        select(InputKind::ANY_DTYPE.to_vec()),
        any::<u64>(),
    );
    (lengths(seq_limit), heads, dims, score, place, inputs).prop_map(
        |(lengths, heads, dims, score, place, inputs)| CaseSpec {
            dtype: inputs.0,
            lengths,
            heads_kv: heads.0,
            group: heads.1,
            head_dim: dims.0,
            head_dim_v: if dims.2 { dims.0 } else { dims.1 },
            mask: score.0,
            scale_factor: score.1,
            softcap: score.2,
            alibi: score.3,
            modifiers: score.4,
            kind: inputs.1,
            arrangements: place.0,
            o_layout: place.1,
            o: place.2,
            seed: inputs.2,
        },
    )
}

/// Dense batches, and as often packed ones, of more sequences, many of them short or empty.
fn lengths(limit: usize) -> impl Strategy<Value = Lengths> {
    let pair = move || {
        (seq(limit), seq(limit), weighted(0.4))
            .prop_map(|(seq_q, seq_kv, alike)| (seq_q, if alike { seq_q } else { seq_kv }))
    };
    let batch = prop_oneof![30 => 1..=3usize, 1 => Just(0)];
    let dense = (batch, pair()).prop_map(|(batch, (seq_q, seq_kv))| Lengths::Dense {
        batch,
        seq_q,
        seq_kv,
    });
    let packed = proptest::collection::vec(pair(), 0..=6).prop_map(Lengths::Varlen);
    prop_oneof![dense, packed]
}

/// Empty, short and of every magnitude, and as often next to a multiple of a tile size.
fn seq(limit: usize) -> impl Strategy<Value = usize> {
    let magnitude = move || (0.0..(limit as f64).log2()).prop_map(|bits| bits.exp2() as usize);
    let beside = (select(tile_sizes()), magnitude(), 0..=2usize)
        .prop_map(|(tile, length, by)| length.next_multiple_of(tile) + by - 1);
    prop_oneof![
        1 => Just(0),
        2 => 0..8usize,
        2 => 0..=limit,
        5 => magnitude(),
        10 => beside,
    ]
    .prop_map(move |length| length.min(limit))
}

/// Head dimensions that models use, and odd ones that peers test.
const HEAD_DIMS: [usize; 16] = [
    1, 3, 8, 16, 32, 40, 59, 64, 80, 96, 111, 128, 160, 192, 224, 256,
];

fn head_dim() -> impl Strategy<Value = usize> {
    prop_oneof![1 => 1..=MAX_HEAD_DIM, 2 => select(HEAD_DIMS.to_vec())]
}

/// Slopes of models, ones so gentle that planted keys keep dominating their rows, and ones that favour what is far.
fn alibi(limit: usize) -> impl Strategy<Value = Option<AlibiSpec>> {
    let gentle = 4.0 / limit as f32;
    let models = select(vec![0.5, 1.0]);
    let steepest = prop_oneof![models, 0.0..1.0f32, -gentle..gentle, -0.1..0.0f32];
    let slopes = (steepest, any::<bool>()).prop_map(|(steepest, is_batched)| AlibiSpec {
        steepest,
        is_batched,
    });
    proptest::option::of(slopes)
}

fn mask(limit: u32) -> impl Strategy<Value = Mask> {
    let side = || {
        let length = prop_oneof![Just(0), 0..40u32, 0..=limit, Just(u32::MAX)];
        proptest::option::of(length)
    };
    let window = (side(), side()).prop_map(|(left, right)| Mask::Window { left, right });
    let edge = || {
        let distance = prop_oneof![Just(0), -40..40i32, -(limit as i32)..=limit as i32];
        proptest::option::of(distance)
    };
    let band = (edge(), edge()).prop_map(|(lower, upper)| Mask::Band { lower, upper });
    prop_oneof![
        2 => Just(Mask::None),
        2 => Just(Mask::Causal),
        2 => window,
        1 => Just(Mask::CAUSAL_TOP_LEFT),
        2 => band,
    ]
}

pub(super) fn scale_factor() -> impl Strategy<Value = Option<f32>> {
    let common = select(vec![0.3, 2.0, -1.0, 0.0]);
    prop_oneof![Just(None), prop_oneof![common, -2.0..2.0f32].prop_map(Some)]
}

pub(super) fn softcap() -> impl Strategy<Value = Option<f32>> {
    let common = select(vec![0.5, 15.0, 50.0]);
    prop_oneof![Just(None), prop_oneof![common, 0.5..60.0f32].prop_map(Some)]
}

fn layout() -> impl Strategy<Value = Layout> {
    select(vec![Layout::Bshd, Layout::Bhsd])
}

pub(super) fn arrangement() -> impl Strategy<Value = Arrangement> {
    let order = Just(Arrangement::BSHD.order).prop_shuffle();
    let pad = || prop_oneof![select(vec![0, 0, 1, 4, 8]), 0..9usize];
    let padding = [pad(), pad(), pad(), pad()];
    let backwards = || weighted(0.25);
    let reversed = [backwards(), backwards(), backwards(), backwards()];
    let strided = (order, padding, reversed).prop_map(|(order, padding, reversed)| Arrangement {
        order,
        padding,
        reversed,
    });
    prop_oneof![Just(Arrangement::BSHD), strided]
}

#[cfg(test)]
mod tests {
    use ferroflash::{Backend, Sim, Variant};

    use super::*;

    #[test]
    fn a_seed_makes_the_same_cases_again() {
        let cases = |seed| -> Vec<CaseSpec> {
            let cases = drawn(&DType::ALL, Limits::SIMULATED, seed);
            cases.take(20).collect()
        };
        assert_eq!(cases(7), cases(7));
        assert_ne!(cases(7), cases(8));
    }

    /// Every kind of problem occurs among 400 cases, so that none is lost.
    #[test]
    fn all_kinds_are_drawn() {
        let cases: Vec<_> = drawn(&DType::ALL, Limits::FAST, 0).take(400).collect();
        let share = |what: &str, is: fn(&CaseSpec) -> bool| {
            let count = cases.iter().filter(|case| is(case)).count();
            assert!(count >= 8, "{what}: {count} of {}", cases.len());
        };
        let longest = |case: &CaseSpec| case.lengths.each().map(|(q, kv)| q.max(kv)).max();
        share("packed", |case| matches!(case.lengths, Lengths::Varlen(_)));
        share("empty", |case| {
            case.lengths.each().any(|(q, kv)| q * kv == 0)
        });
        assert!(
            cases
                .iter()
                .any(|case| longest(case) > Some(Limits::FAST.seq / 2))
        );
        share("grouped", |case| case.group > 5);
        share("wide v", |case| case.head_dim_v > case.head_dim);
        share("windows", |case| matches!(case.mask, Mask::Window { .. }));
        share("bands", |case| matches!(case.mask, Mask::Band { .. }));
        share("negative scales", |case| {
            case.scale_factor.is_some_and(|scale| scale < 0.0)
        });
        share("capped", |case| case.softcap.is_some());
        share("slopes", |case| case.alibi.is_some());
        share("masks", |case| case.modifiers.mask.is_some());
        share("biases", |case| case.modifiers.bias.is_some());
        share("blocks", |case| case.modifiers.blocks.is_some());
        share("documents", |case| case.modifiers.documents.is_some());
        share("prefixes", |case| case.modifiers.prefix.is_some());
        share("chunks", |case| case.modifiers.chunk.is_some());
        share("dilations", |case| case.modifiers.dilation.is_some());
        share("sinks", |case| case.modifiers.sinks);
        share("dropout", |case| case.modifiers.dropout.is_some());
        share("backwards", |case| {
            case.arrangements[0].reversed != [false; 4]
        });
        for kind in InputKind::ANY_DTYPE {
            assert!(cases.iter().any(|case| case.kind == kind), "{kind}");
        }
    }

    /// Heads that share a tile of the Hopper kernels, if they can run the case.
    fn heads_per_tile(sim: &Sim, spec: &CaseSpec) -> Option<u32> {
        let mut case = spec.build().unwrap();
        case.options.force = Some(Variant::Wgmma);
        sim.plan(&case.problem().unwrap())
            .ok()
            .map(|plan| plan.heads_per_tile())
    }

    #[test]
    fn packed_gqa_is_drawn() {
        let sim = Sim::new();
        let mut cases = [0; 2];
        for spec in drawn(&[DType::Bf16], Limits::SIMULATED, 0).take(400) {
            if let Some(heads) = heads_per_tile(&sim, &spec) {
                cases[usize::from(heads > 1)] += 1;
            }
        }
        let [unpacked, packed] = cases;
        assert!(unpacked >= 20 && packed >= 20, "{cases:?}");
    }
}
