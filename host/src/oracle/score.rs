//! The score of a query and a key in f64, by its definition.

use super::bound;
use crate::problem::Score;

/// A score in nats.
pub(super) struct ExactScore {
    pub exact: f64,
    /// How far it may be off.
    pub error: f64,
}

/// What the scores of one query head of one batch entry are made with.
pub(super) struct ScoreRule {
    scale: f64,
    softcap: Option<f64>,
    /// ALiBi's, 0 without it.
    slope: f64,
}

impl ScoreRule {
    /// That of query head `head` of batch entry `batch`.
    pub fn new(score: &Score, batch: usize, head: usize) -> Self {
        let Score {
            softmax_scale,
            softcap,
            alibi,
        } = score;
        let slope = alibi.as_ref().map_or(0.0, |slopes| slopes.get(batch, head));
        Self {
            scale: f64::from(*softmax_scale),
            softcap: softcap.map(f64::from),
            slope: f64::from(slope),
        }
    }

    /// What is added to the score of a key `distance` keys before the query, by the definition of
    /// [`AlibiSlopes`](crate::AlibiSlopes).
    pub fn bias(&self, distance: i64) -> f64 {
        -self.slope * distance.abs() as f64
    }

    /// The score of a query and a key `distance` keys before it.
    pub fn score(&self, q_row: &[f64], k_row: &[f64], distance: i64) -> ExactScore {
        let products = q_row.iter().zip(k_row).map(|(q, k)| q * k);
        let (dot, sizes) = products.fold((0.0, 0.0), |(dot, sizes), product| {
            (dot + product, sizes + f64::abs(product))
        });
        let (scaled, sizes) = (self.scale * dot, self.scale.abs() * sizes);
        let (capped, slope) = match self.softcap {
            Some(cap) => {
                let tanh = (scaled / cap).tanh();
                (cap * tanh, 1.0 - tanh * tanh)
            }
            None => (scaled, 1.0),
        };
        let bias = self.bias(distance);
        ExactScore {
            exact: capped + bias,
            error: bound::of_score(slope * sizes, bias.abs()),
        }
    }
}
