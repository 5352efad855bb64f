use super::pairs::PairRules;
use super::score::{ExactScore, ScoreRule, ScoreWithSlope};
use ferroflash::{HostTensor, Mask, Problem, Sequence};

/// Inputs of the kernel; packed tensors have batch 1.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// `[batch, heads_q, seq_q, head_dim]`.
    pub q: &'a HostTensor,
    /// `[batch, heads_kv, seq_kv, head_dim]`.
    pub k: &'a HostTensor,
    /// `[batch, heads_kv, seq_kv, head_dim_v]`.
    pub v: &'a HostTensor,
}

/// The exact result of one query row, and what its error bound needs.
#[derive(Clone, Debug, PartialEq)]
pub struct RowReference {
    /// `Σⱼ pⱼ vⱼ`, head_dim_v values.
    pub o: Vec<f64>,
    /// `Σⱼ pⱼ |vⱼ|`.
    pub abs_pv: Vec<f64>,
    /// `Σⱼ |vⱼ| / l` over visible keys, with `l = Σⱼ exp(sⱼ - max s)`.
    pub abs_v_over_sum: Vec<f64>,
    /// Components whose o leaves out a NaN or an infinity that a key of vanishing weight holds: an
    /// f32 weight of 0 may or may not let it through.
    pub may_not_be_finite: Vec<bool>,
    /// `ln Σⱼ exp(sⱼ)`, in nats.
    pub lse: f64,
    /// `Σⱼ pⱼ eⱼ`, with `eⱼ` the error allowed of a score.
    pub score_errors: f64,
    /// `Σⱼ pⱼ eⱼ |vⱼ − o|`.
    pub score_errors_v: Vec<f64>,
}

impl RowReference {
    /// Adds a key's values, of probability `p` and `share` of what the weights' sum divides.
    fn add(&mut self, p: f64, share: f64, v: &[f64]) {
        let sums = self.o.iter_mut().zip(&mut self.abs_pv);
        for (((o, abs_pv), abs_v_over_sum), v) in sums.zip(&mut self.abs_v_over_sum).zip(v) {
            *o += p * v;
            *abs_pv += p * v.abs();
            *abs_v_over_sum += share * v.abs();
        }
    }
}

fn finite_or_0(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}

/// Weights below this, relative to the row's largest, vanish in f32 arithmetic: near f32's smallest normal number, with
/// room for an error in the exponent.
const VANISHING: f64 = 1e-36;

/// Definition of the computation for one query head of one sequence: mask, lengths and score.
pub(super) struct Rules<'a> {
    pub problem: &'a Problem,
    seq_q: usize,
    seq_kv: usize,
    score: ScoreRule,
    pairs: PairRules<'a>,
}

impl<'a> Rules<'a> {
    /// The rules for query head `head` of batch entry number `index`.
    pub fn new(problem: &'a Problem, index: usize, head: usize) -> Self {
        let sequence = problem.sequence(index);
        Self {
            problem,
            seq_q: sequence.seq_q(),
            seq_kv: sequence.seq_kv(),
            score: ScoreRule::new(problem.score(), problem.q().dtype, index, head),
            pairs: PairRules::new(problem, index, head),
        }
    }

    /// Where query `i` stands among the keys: the last query at the last key.
    fn center(&self, i: usize) -> i64 {
        i as i64 + self.seq_kv as i64 - self.seq_q as i64
    }

    /// Whether key `j` is visible to query `i`, by the definitions of [`Mask`] and of the modifiers.
    pub fn sees(&self, i: usize, j: usize) -> bool {
        let center = self.center(i);
        self.pairs.sees(i, j, center, self.in_band(i, j))
    }

    /// Whether the mask, with nothing else, shows key `j` to query `i`.
    fn in_band(&self, i: usize, j: usize) -> bool {
        let distance = j as i64 - i as i64;
        let (j, center) = (j as i64, self.center(i));
        match self.problem.mask() {
            Mask::None => true,
            Mask::Causal => j <= center,
            Mask::Window { left, right } => {
                left.is_none_or(|left| j >= center - i64::from(left))
                    && right.is_none_or(|right| j <= center + i64::from(right))
            }
            Mask::Band { lower, upper } => {
                lower.is_none_or(|lower| distance >= i64::from(lower))
                    && upper.is_none_or(|upper| distance <= i64::from(upper))
            }
            // The enum may grow: a mask that has no definition here must not pass unseen.
            unknown => panic!("the oracle has no definition of {unknown:?}"),
        }
    }

    /// The keys that query `i` sees.
    pub fn keys(&self, i: usize) -> Vec<usize> {
        (0..self.seq_kv).filter(|&j| self.sees(i, j)).collect()
    }

    /// Queries of the sequence.
    pub fn seq_q(&self) -> usize {
        self.seq_q
    }

    /// Keys of the sequence.
    pub fn seq_kv(&self) -> usize {
        self.seq_kv
    }

    /// How many keys before query `i` key `j` is.
    pub fn distance(&self, i: usize, j: usize) -> i64 {
        self.center(i) - j as i64
    }

    /// Biases added to the score of query `i` and key `j`: ALiBi's, and the problem's own.
    pub fn biases(&self, i: usize, j: usize) -> [f64; 2] {
        let of_alibi = self.score.bias(self.center(i) - j as i64);
        [of_alibi, self.pairs.bias(i, j)]
    }

    /// What `score` of query `i` and key `j` becomes by a modification of the caller's own, if there is one.
    pub fn own(&self, score: f64, i: usize, j: usize) -> Option<f64> {
        self.pairs.own(score, i, j).map(|[changed, _]| changed)
    }

    /// What dropout multiplies the probability of query `i` and key `j` with; 1 without.
    pub fn dropout(&self, i: usize, j: usize) -> f64 {
        self.pairs.dropout(i, j)
    }

    /// The sink of the head, if it has one.
    pub fn sink(&self) -> Option<f64> {
        self.pairs.sink()
    }

    /// The score of query `i`, whose q is `q_row`, and key `j` of `head`.
    fn score(&self, head: &Head, q_row: &[f64], i: usize, j: usize) -> ExactScore {
        self.score_with_slope(head, q_row, i, j).exact()
    }
}

impl Rules<'_> {
    /// The score of query `i`, whose q is `q_row`, and key `j` of `head`, and its derivative.
    pub fn score_with_slope(
        &self,
        head: &Head,
        q_row: &[f64],
        i: usize,
        j: usize,
    ) -> ScoreWithSlope {
        let k_row = &head.k[j * q_row.len()..][..q_row.len()];
        let bias = self.pairs.bias(i, j);
        let distance = self.center(i) - j as i64;
        let mut score = self.score.with_slope(q_row, k_row, distance, bias);
        if let Some(changed) = self.pairs.own(score.exact, i, j) {
            score.change(changed);
        }
        score
    }
}

/// K and V of one head of one sequence, `[seq_kv][dim]`, widened to f64.
pub(super) struct Head {
    pub k: Vec<f64>,
    pub v: Vec<f64>,
}

impl Head {
    /// The K and V that query head `head` of `sequence` reads.
    pub fn new(problem: &Problem, inputs: Inputs<'_>, sequence: &Sequence, head: usize) -> Self {
        let head_kv = head / problem.group();
        let widened =
            |tensor: &HostTensor| tensor.head(sequence.batch, head_kv, sequence.kv_rows.clone());
        Self {
            k: widened(inputs.k),
            v: widened(inputs.v),
        }
    }
}

/// The exact result of query row `i`, whose q is `q_row`.
///
/// A row whose weights sum to 0, because it sees no key or only scores of −∞, has o = 0 and
/// lse = −∞.
pub(super) fn reference(rules: &Rules<'_>, head: &Head, q_row: &[f64], i: usize) -> RowReference {
    let problem = rules.problem;
    let head_dim_v = problem.v().shape.dim;
    let keys = rules.keys(i);
    let scores: Vec<ExactScore> = keys
        .iter()
        .map(|&j| rules.score(head, q_row, i, j))
        .collect();
    let exact = || scores.iter().map(|score| score.exact);
    let max = exact().fold(f64::NEG_INFINITY, f64::max);
    let mut row = RowReference {
        o: vec![0.0; head_dim_v],
        abs_pv: vec![0.0; head_dim_v],
        abs_v_over_sum: vec![0.0; head_dim_v],
        may_not_be_finite: vec![false; head_dim_v],
        lse: f64::NEG_INFINITY,
        score_errors: 0.0,
        score_errors_v: vec![0.0; head_dim_v],
    };
    // `f64::max` ignores NaN: with only −∞ and NaN left, the NaN decides.
    let nothing_weighs = exact().all(|score| score == f64::NEG_INFINITY);
    let shift = if max.is_finite() { max } else { 0.0 };
    let weights: Vec<f64> = exact().map(|score| (score - shift).exp()).collect();
    let of_keys: f64 = weights.iter().sum();
    let sink = rules.sink().unwrap_or(f64::NEG_INFINITY);
    // A sink far above all scores makes this infinite, and every p the 0 that it then is.
    let sum = of_keys + (sink - shift).exp();
    let top = shift.max(sink);
    row.lse = top + (of_keys * (shift - top).exp() + (sink - top).exp()).ln();
    let v_row = |j: usize| &head.v[j * head_dim_v..][..head_dim_v];
    for (&j, &weight) in keys.iter().zip(&weights) {
        let kept = rules.dropout(i, j);
        let (p, share) = (weight / sum * kept, kept / sum);
        let v = v_row(j);
        let vanishes = nothing_weighs || weight < VANISHING || kept == 0.0;
        if !vanishes {
            row.add(p, share, v);
            continue;
        }
        for (may_not, v) in row.may_not_be_finite.iter_mut().zip(v) {
            *may_not |= !v.is_finite();
        }
        if !nothing_weighs {
            let finite: Vec<f64> = v.iter().map(|&v| finite_or_0(v)).collect();
            row.add(p, share, &finite);
        }
    }
    for ((&j, &weight), score) in keys.iter().zip(&weights).zip(&scores) {
        // A score of −∞ may have an infinite error; most have none.
        if weight == 0.0 || score.error == 0.0 {
            continue;
        }
        let error = weight / sum * score.error;
        row.score_errors += error;
        let kept = rules.dropout(i, j);
        let sums = row.score_errors_v.iter_mut().zip(&row.o);
        for ((sum, o), v) in sums.zip(v_row(j)) {
            *sum += if v.is_finite() {
                error * (kept * v - o).abs()
            } else {
                0.0
            };
        }
    }
    row
}

/// The scores of query `row` of a query head of batch entry number `batch`, of every key it sees.
#[cfg(test)]
pub(crate) fn scores(
    problem: &Problem,
    inputs: Inputs<'_>,
    batch: usize,
    head: usize,
    row: usize,
) -> Vec<f64> {
    let sequence = problem.sequence(batch);
    let rules = Rules::new(problem, batch, head);
    let keys = Head::new(problem, inputs, &sequence, head);
    let place = sequence.q_rows.start + row;
    let q_row = inputs.q.head(sequence.batch, head, place..place + 1);
    let score = |j| rules.score(&keys, &q_row, row, j).exact;
    rules.keys(row).into_iter().map(score).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::bound;
    use ferroflash::{
        AlibiSlopes, CuSeqlens, DType, ForwardOptions, Layout, Shape, Sinks, TensorSpec,
    };

    fn problem(seq_q: usize, seq_kv: usize, options: &ForwardOptions) -> Problem {
        let spec = |seq| {
            let shape = Shape {
                batch: 1,
                heads: 1,
                seq,
                dim: 1,
            };
            TensorSpec::contiguous(DType::F32, shape, Layout::Bshd).unwrap()
        };
        let (q, kv) = (spec(seq_q), spec(seq_kv));
        Problem::new(q, kv, kv, q, options).unwrap()
    }

    /// Query row `i` of the only head of the first sequence.
    fn reference_of(problem: &Problem, head: &Head, q_row: &[f64], i: usize) -> RowReference {
        reference(&Rules::new(problem, 0, 0), head, q_row, i)
    }

    #[test]
    fn a_row_by_hand() {
        let head = Head {
            k: vec![0.0, 3f64.ln(), 100.0],
            v: vec![1.0, -2.0, 50.0],
        };
        // The first of two causal rows over three keys sees two: weights 1/4 and 3/4.
        let causal = problem(2, 3, &ForwardOptions::new().mask(Mask::Causal));
        let row = reference_of(&causal, &head, &[1.0], 0);
        assert!((row.o[0] - (0.25 - 1.5)).abs() < 1e-15);
        assert!((row.abs_pv[0] - 1.75).abs() < 1e-15);
        assert!((row.lse - 4f64.ln()).abs() < 1e-15);
        assert!((row.abs_v_over_sum[0] - 3.0 / (4.0 / 3.0)).abs() < 1e-15);
        let capped = problem(3, 3, &ForwardOptions::new().softcap(2.0));
        let row = reference_of(&capped, &head, &[1.0], 0);
        let scores = head.k.iter().map(|k| 2.0 * (k / 2.0).tanh());
        assert!((row.lse - scores.map(f64::exp).sum::<f64>().ln()).abs() < 1e-14);
    }

    #[test]
    fn a_vanishing_weight_may_or_may_not_carry_nan() {
        let head = Head {
            k: vec![0.0, -90.0, -10.0],
            v: vec![1.0, f64::NAN, 2.0],
        };
        let plain = problem(3, 3, &ForwardOptions::new());
        let row = reference_of(&plain, &head, &[1.0], 0);
        assert!((row.o[0] - 1.0).abs() < 1e-4);
        assert_eq!(row.may_not_be_finite, [true]);
        let row = reference_of(&plain, &head, &[0.5], 0);
        assert!(row.o[0].is_nan() && !row.may_not_be_finite[0]);
    }

    #[test]
    fn scores_of_minus_infinity_weigh_nothing() {
        let head = Head {
            k: vec![f64::NEG_INFINITY; 2],
            v: vec![1.0, 2.0],
        };
        let row = reference_of(&problem(2, 2, &ForwardOptions::new()), &head, &[1.0], 0);
        assert_eq!((row.o[0], row.lse), (0.0, f64::NEG_INFINITY));
        assert_eq!(row.may_not_be_finite, [false]);
    }

    #[test]
    fn a_sink_may_outweigh_keys_beyond_what_an_exponential_holds() {
        let head = Head {
            k: vec![-4000.0, -4001.0],
            v: vec![1.0, 2.0],
        };
        let row_beside = |sink| {
            let mut options = ForwardOptions::new();
            options.modifiers.sinks = Some(Sinks::per_head(&[sink]).unwrap());
            let row = reference_of(&problem(2, 2, &options), &head, &[1.0], 0);
            (row.o[0], row.lse)
        };
        assert_eq!(row_beside(-1.0), (0.0, -1.0));
        let sum = 1.0 + (-1.0f64).exp();
        let (o, lse) = row_beside(-9000.0);
        assert!((o - (1.0 + 2.0 * (-1.0f64).exp()) / sum).abs() < 1e-12);
        assert!((lse - (-4000.0 + sum.ln())).abs() < 1e-12);
    }

    #[test]
    fn rows_without_keys_and_with_nan() {
        let head = Head {
            k: vec![1.0, f64::NAN],
            v: vec![1.0, 2.0],
        };
        let causal = problem(3, 2, &ForwardOptions::new().mask(Mask::Causal));
        let row = reference_of(&causal, &head, &[1.0], 0);
        assert_eq!((row.o[0], row.lse), (0.0, f64::NEG_INFINITY));
        assert_eq!(reference_of(&causal, &head, &[1.0], 1).o[0], 1.0);
        let row = reference_of(&causal, &head, &[1.0], 2);
        assert!(row.o[0].is_nan() && row.lse.is_nan());
    }

    #[test]
    fn a_bias_is_added_last_and_counted_from_the_corner() {
        let head = Head {
            k: vec![0.0, 4.0, 0.0],
            v: vec![1.0, 2.0, 3.0],
        };
        let options = ForwardOptions::new()
            .softcap(2.0)
            .alibi(AlibiSlopes::per_head(&[0.5]).unwrap());
        // The first of two queries stands at key 1.
        let row = reference_of(&problem(2, 3, &options), &head, &[1.0], 0);
        let scores = [-0.5, 2.0 * 2f64.tanh(), -0.5];
        let sum: f64 = scores.iter().map(|score| score.exp()).sum();
        assert!((row.lse - sum.ln()).abs() < 1e-14);
        let o = 4.0 * (-0.5f64).exp() + 2.0 * scores[1].exp();
        assert!((row.o[0] - o / sum).abs() < 1e-14);
        // The errors of the first and the last key, whose weights are the same.
        let error = (-0.5f64).exp() / sum * bound::of_score(0.0, 0.5);
        assert!((row.score_errors - 2.0 * error).abs() < 1e-20);
        let distances = (1.0 - row.o[0]).abs() + (3.0 - row.o[0]).abs();
        assert!((row.score_errors_v[0] - error * distances).abs() < 1e-20);
    }

    #[test]
    fn a_score_may_be_off_by_what_its_products_cost() {
        // q · k = 2 in both, of 2 and of 2000 + 1998; scaled by 1/2 and then capped.
        let head = Head {
            k: vec![2.0, 0.0, 2000.0, -1998.0],
            v: vec![1.0, 5.0],
        };
        let row = |options: &ForwardOptions| {
            let options = options.clone().softmax_scale(0.5);
            reference_of(&problem(1, 2, &options), &head, &[1.0; 2], 0)
        };
        let plain = row(&ForwardOptions::new());
        let roundings = bound::of_products(DType::F32, 2, 1.0, 1999.0);
        let error = 0.5 * bound::of_score(roundings, 0.0);
        assert_eq!(plain.score_errors, error);
        assert_eq!(plain.score_errors_v, [2.0 * error]);
        let capped = row(&ForwardOptions::new().softcap(0.5));
        let slope = 1.0 / 2f64.cosh().powi(2);
        let error = 0.5 * bound::of_score(roundings * slope, 0.0);
        assert!((capped.score_errors - error).abs() < 1e-14);
    }

    #[test]
    fn packed_sequences_have_corners_of_their_own() {
        let options = ForwardOptions::new()
            .mask(Mask::Causal)
            .cu_seqlens(CuSeqlens::from_lengths([(1, 1), (2, 3)]).unwrap());
        let packed = problem(3, 4, &options);
        let keys = |index, i| Rules::new(&packed, index, 0).keys(i);
        assert_eq!(keys(0, 0), [0]);
        assert_eq!((keys(1, 0), keys(1, 1)), (vec![0, 1], vec![0, 1, 2]));
    }
}
