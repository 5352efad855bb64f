//! The score of a query and a key in f64, by its definition.

use super::bound;
use ferroflash::{DType, Score};

/// A score in nats.
pub(super) struct ExactScore {
    pub exact: f64,
    /// Bound on its error.
    pub error: f64,
}

/// A score in nats, and how it depends on the product of q and k.
pub(super) struct ScoreWithSlope {
    pub exact: f64,
    /// Its derivative by the scaled product, but for `own_slope`: a softcap's, else 1.
    pub slope: f64,
    /// The derivative of a score modification of the caller's own, else 1, and how far it may be off.
    pub own_slope: f64,
    pub own_slope_error: f64,
    /// Roundings of the scaled product ([`bound::of_products`]).
    pub roundings: f64,
    /// Of all biases, and of what else is rounded but for the products.
    pub bias_size: f64,
    pub softcap: Option<f64>,
}

impl ScoreWithSlope {
    /// Without its derivative.
    pub fn exact(&self) -> ExactScore {
        let roundings = self.own_slope.abs() * self.slope * self.roundings;
        ExactScore {
            exact: self.exact,
            error: bound::of_score(roundings, self.bias_size),
        }
    }

    /// Makes it `changed`, by a function of the caller's own whose derivative is `slope`.
    pub fn change(&mut self, [changed, slope]: [f64; 2]) {
        let sizes = changed.abs() + (slope * self.exact).abs();
        self.bias_size = slope.abs() * self.bias_size + bound::OWN_ROUNDINGS * sizes;
        self.exact = changed;
        self.own_slope = slope;
        self.own_slope_error = bound::SCORE_UNIT * bound::OWN_ROUNDINGS * (1.0 + slope.abs());
    }
}

/// Scale, softcap and ALiBi slope of one query head of one batch entry.
pub(super) struct ScoreRule {
    /// Of q and k.
    dtype: DType,
    scale: f64,
    softcap: Option<f64>,
    /// ALiBi's slope, 0 without ALiBi.
    slope: f64,
}

impl ScoreRule {
    /// The rule for query head `head` of batch entry `batch`.
    pub fn new(score: &Score, dtype: DType, batch: usize, head: usize) -> Self {
        let Score {
            softmax_scale,
            softcap,
            alibi,
        } = score;
        let slope = alibi.as_ref().map_or(0.0, |slopes| slopes.get(batch, head));
        Self {
            dtype,
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

    /// The score of a query and a key `distance` keys before it, with `bias` beside ALiBi's, and its derivative by the scaled
    /// product.
    pub fn with_slope(
        &self,
        q_row: &[f64],
        k_row: &[f64],
        distance: i64,
        bias: f64,
    ) -> ScoreWithSlope {
        let (dot, sizes) = sum_of_products(q_row, k_row);
        let (scaled, sizes) = (self.scale * dot, self.scale.abs() * sizes);
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
            own_slope: 1.0,
            own_slope_error: 0.0,
            roundings: bound::of_products(self.dtype, q_row.len(), scaled, sizes),
            bias_size: of_alibi.abs() + bias.abs(),
            softcap: self.softcap,
        }
    }
}

/// `Σ aᵢ bᵢ` and `Σ |aᵢ bᵢ|`. A product is added to one of several sums in turn, which do not wait for one another.
pub(super) fn sum_of_products(a: &[f64], b: &[f64]) -> (f64, f64) {
    const SUMS: usize = 8;
    let (mut sums, mut sizes) = ([0.0; SUMS], [0.0; SUMS]);
    let (a, a_rest) = a.as_chunks::<SUMS>();
    let (b, b_rest) = b.as_chunks::<SUMS>();
    for (a, b) in a.iter().zip(b) {
        for i in 0..SUMS {
            let product = a[i] * b[i];
            sums[i] += product;
            sizes[i] += f64::abs(product);
        }
    }
    for (i, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        sums[i] += a * b;
        sizes[i] += f64::abs(a * b);
    }
    (sums.iter().sum(), sizes.iter().sum())
}
