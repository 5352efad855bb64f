//! The score of a query and a key in f64, by its definition.

use super::bound;
use ferroflash::Score;

/// A score in nats.
pub(super) struct ExactScore {
    pub exact: f64,
    /// Bound on its error.
    pub error: f64,
}

/// A score in nats, and how it depends on the product of q and k.
pub(super) struct ScoreWithSlope {
    pub exact: f64,
    /// Its derivative by the scaled product: a softcap's, else 1.
    pub slope: f64,
    /// `|softmax_scale| · Σ |q · k|`.
    pub sizes: f64,
    /// Of all biases.
    pub bias_size: f64,
    pub softcap: Option<f64>,
}

/// Scale, softcap and ALiBi slope of one query head of one batch entry.
pub(super) struct ScoreRule {
    scale: f64,
    softcap: Option<f64>,
    /// ALiBi's slope, 0 without ALiBi.
    slope: f64,
}

impl ScoreRule {
    /// The rule for query head `head` of batch entry `batch`.
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

    /// Bias added to the score of a key `distance` keys before the query, by the definition of
    /// [`AlibiSlopes`](ferroflash::AlibiSlopes).
    pub fn bias(&self, distance: i64) -> f64 {
        -self.slope * distance.abs() as f64
    }

    /// The score of a query and a key `distance` keys before it, with `bias` beside ALiBi's.
    pub fn score(&self, q_row: &[f64], k_row: &[f64], distance: i64, bias: f64) -> ExactScore {
        let score = self.with_slope(q_row, k_row, distance, bias);
        ExactScore {
            exact: score.exact,
            error: bound::of_score(score.slope * score.sizes, score.bias_size),
        }
    }

    /// As [`score`](Self::score), with its derivative by the scaled product.
    pub fn with_slope(
        &self,
        q_row: &[f64],
        k_row: &[f64],
        distance: i64,
        bias: f64,
    ) -> ScoreWithSlope {
        let products = q_row.iter().zip(k_row).map(|(q, k)| q * k);
        let (dot, sizes) = products.fold((0.0, 0.0), |(dot, sizes), product| {
            (dot + product, sizes + f64::abs(product))
        });
        let scaled = self.scale * dot;
        let (capped, slope) = match self.softcap {
            Some(cap) => {
                let tanh = (scaled / cap).tanh();
                (cap * tanh, 1.0 - tanh * tanh)
            }
            None => (scaled, 1.0),
        };
        let of_alibi = self.bias(distance);
        ScoreWithSlope {
            exact: capped + of_alibi + bias,
            slope,
            sizes: self.scale.abs() * sizes,
            bias_size: of_alibi.abs() + bias.abs(),
            softcap: self.softcap,
        }
    }
}
