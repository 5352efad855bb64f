//! Scores that outgrow the reference a row began with.
//!
//! All but [`enlarge_q`] work through the last component of q and k: 1 in every query, so that a key's own component
//! is its score before softmax_scale. It is the last one because a sum that is large early rounds all that is added
//! later. The other components stay random: zeros would spare a GPU power, and flatter its clock.

use super::spec::Case;

/// Factor of q in [`enlarge_q`].
const LARGE: f32 = 60.0;
/// Nats of a sink's score: rounded in any dtype, it still has to exceed all others, which are N(0, 1), by 90.
const SINK: f32 = 110.0;
/// Nats by which scores are lowered.
const LOW: f32 = 8.0;
/// Nats by which scores grow along a sequence: more than f32's range in all, little from one block to the next.
pub(super) const GROWTH: f32 = 113.0;
/// Nats by which they grow fast: beyond f16's range within a block, beyond f32's within a few.
pub(super) const FAST_GROWTH: f32 = 2260.0;

/// Queries whose scores change.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Queries {
    All,
    /// Two of sixteen of each sequence, from the first on: one, and not both, of two that are eight apart, as those of a thread are.
    SomeOfSixteen,
}

/// Multiplies q.
pub(super) fn enlarge_q(case: &mut Case) {
    let shape = case.q.spec().shape;
    for batch in 0..shape.batch {
        for head in 0..shape.heads {
            for row in 0..shape.seq {
                for dim in 0..shape.dim {
                    let value = LARGE * case.q.get(batch, head, row, dim);
                    case.q.set(batch, head, row, dim, value);
                }
            }
        }
    }
}

/// Lowers every score.
pub(super) fn lower(case: &mut Case) {
    raise(case, Queries::All, |_, _| Some(-LOW));
}

/// Raises the key of each sequence that `place` names, of its number of keys.
pub(super) fn sink(case: &mut Case, place: impl Fn(usize) -> usize) {
    let nats = |key, seq_kv| (key == place(seq_kv)).then_some(SINK);
    raise(case, Queries::All, nats);
}

/// Raises the keys of each sequence along a straight line by `growth` nats from the first to the last, 0 at the lower end.
pub(super) fn slope(case: &mut Case, queries: Queries, growth: f32) {
    let first = (-growth).max(0.0);
    raise(case, queries, |key, seq_kv| {
        Some(first + growth * (key as f32 / (seq_kv as f32 - 1.0).max(1.0)))
    });
}

/// Raises the score of key number `key` of the `seq_kv` of its sequence by `nats(key, seq_kv)` over the score that the
/// other components give, for these queries; `None` leaves it as it is.
fn raise(case: &mut Case, queries: Queries, nats: impl Fn(usize, usize) -> Option<f32>) {
    let Ok(problem) = case.problem() else {
        return;
    };
    let last = problem.q().shape.dim - 1;
    let per_nat = (problem.q().shape.dim as f32).sqrt();
    for sequence in problem.sequences() {
        for head in 0..problem.q().shape.heads {
            for (query, row) in sequence.q_rows.clone().enumerate() {
                let is_raised = queries == Queries::All || matches!(query % 16, 0 | 12);
                let component = if is_raised { 1.0 } else { 0.0 };
                case.q.set(sequence.batch, head, row, last, component);
            }
        }
        for head in 0..problem.k().shape.heads {
            for (key, row) in sequence.kv_rows.clone().enumerate() {
                if let Some(nats) = nats(key, sequence.seq_kv()) {
                    case.k.set(sequence.batch, head, row, last, nats * per_nat);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Arrangement, Case, CaseSpec, InputKind, Lengths};
    use crate::cases::ModifierSpec;
    use crate::oracle::{self, Inputs};
    use ferroflash::{DType, Layout, Mask};

    const HEADS_KV: usize = 2;
    const GROUP: usize = 2;

    /// Two sequences, one of them with other queries than keys.
    fn case(kind: InputKind, dtype: DType, head_dim: usize) -> Case {
        let spec = CaseSpec {
            dtype,
            lengths: Lengths::Varlen(vec![(40, 40), (9, 200)]),
            heads_kv: HEADS_KV,
            group: GROUP,
            head_dim,
            head_dim_v: 8,
            mask: Mask::None,
            scale_factor: None,
            softcap: None,
            alibi: None,
            modifiers: ModifierSpec::default(),
            kind,
            arrangements: [Arrangement::BSHD; 3],
            o_layout: Layout::Bshd,
            o: None,
            seed: 5,
        };
        spec.build().unwrap()
    }

    /// Calls `check` with the oracle's scores of each row, of inputs of `kind` in both dtypes and of several dimensions.
    fn each_row(kind: InputKind, mut check: impl FnMut(&[f64])) {
        for (dtype, head_dim) in [(DType::F16, 256), (DType::Bf16, 128), (DType::Bf16, 17)] {
            let Case {
                q, k, v, options, ..
            } = &case(kind, dtype, head_dim);
            for tensor in [q, k, v] {
                let values = tensor.to_f32(Layout::Bshd);
                assert!(values.iter().all(|value| value.is_finite()), "{kind}");
            }
            let problem =
                ferroflash::Problem::with_dense_output(*q.spec(), *k.spec(), *v.spec(), options);
            let problem = problem.unwrap();
            for (batch, sequence) in problem.sequences().enumerate() {
                for head in 0..HEADS_KV * GROUP {
                    for row in 0..sequence.seq_q() {
                        let inputs = Inputs { q, k, v };
                        check(&oracle::scores(&problem, inputs, batch, head, row));
                    }
                }
            }
        }
    }

    #[test]
    fn large_scores_are_sixty_times_as_large() {
        let deviation = |kind| {
            let (mut sum, mut count) = (0.0, 0);
            each_row(kind, |scores| {
                sum += scores.iter().map(|score| score * score).sum::<f64>();
                count += scores.len();
            });
            (sum / count as f64).sqrt()
        };
        let ratio = deviation(InputKind::Large) / deviation(InputKind::Random);
        assert!((ratio - 60.0).abs() < 0.1, "{ratio}");
    }

    #[test]
    fn low_scores_have_a_negative_log_sum_exp() {
        each_row(InputKind::Low, |scores| {
            let sum: f64 = scores.iter().map(|score| score.exp()).sum();
            assert!(sum.ln() < 0.0, "{sum}");
        });
    }

    #[test]
    fn a_sink_exceeds_all_others() {
        for (kind, quarters) in [(InputKind::SinkFirst, 0), (InputKind::SinkMiddle, 1)] {
            each_row(kind, |scores| {
                let sink = scores.len() * quarters / 4;
                let others = scores.iter().enumerate().filter(|(key, _)| *key != sink);
                let largest = others.fold(f64::MIN, |largest, (_, score)| largest.max(*score));
                assert!(
                    scores[sink] >= largest + 90.0,
                    "{kind}: {} {largest}",
                    scores[sink]
                );
            });
        }
    }

    #[test]
    fn scores_grow_from_one_end_to_the_other() {
        for (kind, nats) in [
            (InputKind::Growing, 113.0),
            (InputKind::GrowingFast, 2260.0),
            (InputKind::Falling, -113.0),
            (InputKind::FallingFast, -2260.0),
        ] {
            each_row(kind, |scores| {
                // Over any stretch, as much of the growth as it is of the sequence.
                let keys = scores.len() - 1;
                for (from, to) in [(0, keys / 3), (keys / 3, keys), (0, keys)] {
                    let expected = nats * (to - from) as f64 / keys as f64;
                    // Two N(0, 1), and 8 bits of the largest score.
                    let slack = 8.0 + nats.abs() / 256.0;
                    let grown = scores[to] - scores[from];
                    assert!(
                        (grown - expected).abs() < slack,
                        "{kind}: {grown} for {expected}"
                    );
                }
            });
        }
    }

    #[test]
    fn scores_of_two_of_sixteen_queries_grow() {
        for (kind, nats) in [
            (InputKind::GrowingSome, 2260.0),
            (InputKind::FallingSome, -2260.0),
        ] {
            let mut counts = [0; 2];
            each_row(kind, |scores| {
                let grown = scores[scores.len() - 1] - scores[0];
                let is_raised = (grown - nats).abs() < 20.0;
                assert!(is_raised || grown.abs() < 20.0, "{kind}: {grown}");
                counts[usize::from(is_raised)] += 1;
            });
            // 5 of 40 queries and 1 of 9.
            assert_eq!(43 * counts[1], 6 * counts[0], "{kind}");
        }
    }

    #[test]
    fn other_kinds_promise_none_of_this() {
        each_row(InputKind::Random, |scores| {
            assert!(scores.iter().all(|score| score.abs() < 10.0));
        });
    }
}
