//! The exact gradients of one query or one key.

use std::ops::Range;

use super::super::row::{Head, Inputs, Rules};
use super::super::score::sum_of_products;
use super::bound::{self, Pair, Precision};
use ferroflash::{DType, HostTensor, Problem};

/// The inputs of the backward pass; packed tensors have batch 1.
#[derive(Clone, Copy, Debug)]
pub struct BackwardInputs<'a> {
    /// q, k and v.
    pub inputs: Inputs<'a>,
    /// `[batch, heads_q, seq_q, head_dim_v]`.
    pub o: &'a HostTensor,
    /// `[batch, heads_q, seq_q, 1]`.
    pub lse: &'a HostTensor,
    /// `[batch, heads_q, seq_q, head_dim_v]`.
    pub d_o: &'a HostTensor,
    /// `[batch, heads_q, seq_q, 1]`.
    pub d_lse: Option<&'a HostTensor>,
}

/// A value and how far from it a right result may lie.
#[derive(Clone, Debug)]
pub(super) struct Bounded {
    pub exact: Vec<f64>,
    pub allowed: Vec<f64>,
    /// Components that leave out a NaN or an infinity of vanishing weight: an f32 weight of 0 may or may not let it
    /// through.
    pub may_not_be_finite: Vec<bool>,
}

impl Bounded {
    /// Some of the components.
    pub fn part(&self, dims: Range<usize>) -> Self {
        Self {
            exact: self.exact[dims.clone()].to_vec(),
            allowed: self.allowed[dims.clone()].to_vec(),
            may_not_be_finite: self.may_not_be_finite[dims].to_vec(),
        }
    }
}

/// Probabilities below this vanish in f32 arithmetic: beside its smallest normal number, with room for an error in the
/// exponent.
const VANISHING: f64 = 1e-36;

/// One query head of one sequence, widened to f64, and the head of k and v that it reads.
pub(super) struct QueryHead<'a> {
    rules: Rules<'a>,
    keys: Head,
    /// `[seq_q][head_dim]`, `[seq_q][head_dim_v]`.
    q: Vec<f64>,
    d_o: Vec<f64>,
    /// One a row.
    lse: Vec<f64>,
    delta: Vec<f64>,
    /// `Σ_c |d_o · o| + |d_lse|`.
    delta_size: Vec<f64>,
    /// The largest |d_o|, of those that are finite.
    pub largest_d_o: f64,
}

impl<'a> QueryHead<'a> {
    /// Query head `head` of batch entry number `index`.
    pub fn new(problem: &'a Problem, given: BackwardInputs<'_>, index: usize, head: usize) -> Self {
        let sequence = problem.sequence(index);
        let rows = |tensor: &HostTensor| tensor.head(sequence.batch, head, sequence.q_rows.clone());
        let d_o = rows(given.d_o);
        let o = rows(given.o);
        let lse = rows(given.lse);
        let d_lse = given.d_lse.map_or_else(|| vec![0.0; lse.len()], rows);
        let dims = problem.v().shape.dim;
        let row_sums = |term: fn(f64, f64) -> f64| {
            let rows = d_o.chunks_exact(dims).zip(o.chunks_exact(dims));
            rows.map(move |(d_o, o)| {
                d_o.iter()
                    .zip(o)
                    .map(|(&d_o, &o)| term(d_o, o))
                    .sum::<f64>()
            })
            .collect::<Vec<f64>>()
        };
        let mut delta = row_sums(|d_o, o| d_o * o);
        let mut delta_size = row_sums(|d_o, o| (d_o * o).abs());
        for ((delta, size), d_lse) in delta.iter_mut().zip(&mut delta_size).zip(d_lse) {
            *delta -= d_lse;
            *size += d_lse.abs();
        }
        let finite = d_o.iter().filter(|value| value.is_finite());
        Self {
            rules: Rules::new(problem, index, head),
            keys: Head::new(problem, given.inputs, &sequence, head),
            q: rows(given.inputs.q),
            lse,
            delta,
            delta_size,
            largest_d_o: finite.fold(0.0, |largest, value| value.abs().max(largest)),
            d_o,
        }
    }

    fn q_row(&self, i: usize) -> &[f64] {
        let dims = self.rules.problem.q().shape.dim;
        &self.q[i * dims..][..dims]
    }

    fn d_o_row(&self, i: usize) -> &[f64] {
        let dims = self.rules.problem.v().shape.dim;
        &self.d_o[i * dims..][..dims]
    }

    fn k_row(&self, j: usize) -> &[f64] {
        let dims = self.rules.problem.q().shape.dim;
        &self.keys.k[j * dims..][..dims]
    }

    fn v_row(&self, j: usize) -> &[f64] {
        let dims = self.rules.problem.v().shape.dim;
        &self.keys.v[j * dims..][..dims]
    }

    /// Contribution of query `i` and key `j`, which it sees, to the gradients.
    fn pair(&self, i: usize, j: usize, precision: &Precision) -> Pair {
        let score = self.rules.score_with_slope(&self.keys, self.q_row(i), i, j);
        let lse = self.lse[i];
        // A row that sees no key has no gradient, whatever its scores are said to be.
        let p = if lse == f64::NEG_INFINITY {
            0.0
        } else {
            (score.exact - lse).exp()
        };
        let (dp, dp_size) = sum_of_products(self.d_o_row(i), self.v_row(j));
        let kept = self.rules.dropout(i, j);
        // What is dropped has no gradient, whatever it would have been.
        let (dp, dp_size) = match kept {
            0.0 => (0.0, 0.0),
            _ => (kept * dp, kept * dp_size),
        };
        let sizes = dp_size + self.delta_size[i];
        Pair::new(&score, lse, p, dp - self.delta[i], sizes, precision)
    }

    /// dq of query `i`.
    pub fn dq(&self, i: usize) -> Bounded {
        let problem = self.rules.problem;
        let precision = Precision::of(problem.q().dtype, self.largest_d_o);
        let mut sum = Sum::new(problem.q().shape.dim);
        for j in self.rules.keys(i) {
            let pair = self.pair(i, j, &precision);
            sum.add(pair.p, pair.dx, pair.dx_error, self.k_row(j));
        }
        let scale = f64::from(problem.softmax_scale());
        sum.finish(scale, self.rules.seq_kv(), self.largest_d_o, &precision)
    }

    /// What the pairs of this head add to the gradient by its slope.
    pub fn slope_sum(&self) -> ParameterSum {
        // Nothing is rounded to the inputs' dtype.
        let precision = Precision::of(DType::F32, self.largest_d_o);
        let mut sum = ParameterSum {
            sum: Sum::new(1),
            rows: self.rules.seq_q() + self.rules.seq_kv(),
            largest_d_o: self.largest_d_o,
        };
        for i in 0..self.rules.seq_q() {
            for j in self.rules.keys(i) {
                let pair = self.pair(i, j, &precision);
                let distance = self.rules.distance(i, j).unsigned_abs() as f64;
                sum.sum.add(pair.p, -pair.dz, pair.dz_error, &[distance]);
            }
        }
        sum
    }

    /// What the pairs of this head add to a plane of the gradient by a bias, which has `rows` rows of `keys` elements: a row a
    /// query, or one for all.
    pub fn bias_sum(&self, rows: usize, keys: usize) -> ParameterSum {
        let precision = Precision::of(DType::F32, self.largest_d_o);
        let mut sum = ParameterSum {
            sum: Sum::new(rows * keys),
            rows: BIAS_ADDITIONS * self.rules.seq_q(),
            largest_d_o: self.largest_d_o,
        };
        for i in 0..self.rules.seq_q() {
            let row = if rows == 1 { 0 } else { i };
            for j in self.rules.keys(i) {
                let pair = self.pair(i, j, &precision);
                sum.sum
                    .add_at(row * keys + j, pair.p, pair.dz, pair.dz_error, 1.0);
            }
        }
        sum
    }

    /// Adds what the queries of this head make of key `j` to its dk and dv.
    fn add_key(&self, j: usize, precision: &Precision, dk: &mut Sum, dv: &mut Sum) {
        for i in (0..self.rules.seq_q()).filter(|&i| self.rules.sees(i, j)) {
            let pair = self.pair(i, j, precision);
            dk.add(pair.p, pair.dx, pair.dx_error, self.q_row(i));
            let kept = self.rules.dropout(i, j);
            match kept {
                0.0 => dv.leave_out(pair.p, self.d_o_row(i)),
                _ => dv.add(pair.p, kept * pair.p, kept * pair.p_error, self.d_o_row(i)),
            }
        }
    }
}

/// dk and dv of key `j` of the head that `heads` share.
pub(super) fn of_key(heads: &[QueryHead<'_>], j: usize) -> [Bounded; 2] {
    let rules = &heads[0].rules;
    let problem = rules.problem;
    let largest_d_o = heads
        .iter()
        .fold(0.0f64, |largest, head| largest.max(head.largest_d_o));
    let precision = Precision::of(problem.q().dtype, largest_d_o);
    let mut dk = Sum::new(problem.k().shape.dim);
    let mut dv = Sum::new(problem.v().shape.dim);
    for head in heads {
        head.add_key(j, &precision, &mut dk, &mut dv);
    }
    let scale = f64::from(problem.softmax_scale());
    let terms = heads.len() * rules.seq_q();
    [(dk, scale), (dv, 1.0)].map(|(sum, scale)| sum.finish(scale, terms, largest_d_o, &precision))
}

/// What some heads add to the gradient by parameters that they share: a slope, or a bias.
pub(super) struct ParameterSum {
    sum: Sum,
    /// Of q, and of k and v; more where a value passes through more additions ([`bound::of_parameter`]).
    rows: usize,
    largest_d_o: f64,
}

/// Rows for which a query counts in the gradient by a bias: a value may pass through as many additions as there are blocks of 16
/// queries.
const BIAS_ADDITIONS: usize = 4;

impl ParameterSum {
    /// That of no heads, of `count` parameters.
    pub fn none(count: usize) -> Self {
        Self {
            sum: Sum::new(count),
            rows: 0,
            largest_d_o: 0.0,
        }
    }

    pub fn merge(mut self, other: Self) -> Self {
        let (sum, of) = (&mut self.sum, &other.sum);
        for index in 0..sum.exact.len() {
            sum.exact[index] += of.exact[index];
            sum.size[index] += of.size[index];
            sum.error[index] += of.error[index];
            sum.may_not_be_finite[index] |= of.may_not_be_finite[index];
        }
        self.rows += other.rows;
        self.largest_d_o = self.largest_d_o.max(other.largest_d_o);
        self
    }

    /// The gradient.
    pub fn finish(self) -> Bounded {
        let parts = self.sum.size.iter().zip(&self.sum.error);
        let allowed = parts
            .map(|(&size, &error)| bound::of_parameter(size, error, self.rows, self.largest_d_o));
        Bounded {
            allowed: allowed.collect(),
            exact: self.sum.exact,
            may_not_be_finite: self.sum.may_not_be_finite,
        }
    }
}

/// `Σ weight · value` of each component, and what its bound needs.
struct Sum {
    exact: Vec<f64>,
    /// `Σ |weight| |value|`.
    size: Vec<f64>,
    /// `Σ error |value|`.
    error: Vec<f64>,
    may_not_be_finite: Vec<bool>,
}

impl Sum {
    fn new(dims: usize) -> Self {
        Self {
            exact: vec![0.0; dims],
            size: vec![0.0; dims],
            error: vec![0.0; dims],
            may_not_be_finite: vec![false; dims],
        }
    }

    /// Adds a row with `weight`, which may be off by `error` and is of a pair of probability `p`.
    fn add(&mut self, p: f64, weight: f64, error: f64, row: &[f64]) {
        if p < VANISHING {
            for (dim, &value) in row.iter().enumerate() {
                self.add_at(dim, p, weight, error, value);
            }
            return;
        }
        // As `add_at` has it, without a question.
        let sums = self.exact.iter_mut().zip(&mut self.size);
        for (((exact, size), of_error), value) in sums.zip(&mut self.error).zip(row) {
            *exact += weight * value;
            *size += (weight * value).abs();
            *of_error += error * value.abs();
        }
    }

    /// The same of component `dim`, which is `value`.
    fn add_at(&mut self, dim: usize, p: f64, weight: f64, error: f64, value: f64) {
        if p < VANISHING && !(value.is_finite() && weight.is_finite()) {
            self.may_not_be_finite[dim] = true;
            return;
        }
        self.exact[dim] += weight * value;
        self.size[dim] += (weight * value).abs();
        self.error[dim] += error * value.abs();
    }

    /// Leaves out a row whose weight `p` is dropped. It is times 0: what is not finite may or may not come through.
    fn leave_out(&mut self, p: f64, row: &[f64]) {
        for (dim, value) in row.iter().enumerate() {
            self.may_not_be_finite[dim] |= !(p.is_finite() && value.is_finite());
        }
    }

    /// The sum of `terms` products, scaled.
    fn finish(self, scale: f64, terms: usize, largest_d_o: f64, precision: &Precision) -> Bounded {
        let size = scale.abs();
        let parts = self.exact.iter().zip(&self.size).zip(&self.error);
        let allowed = parts.map(|((exact, sizes), error)| {
            let (exact, sizes, error) = (size * exact.abs(), size * sizes, size * error);
            bound::of_gradient(exact, sizes, error, terms, largest_d_o, precision)
        });
        Bounded {
            allowed: allowed.collect(),
            exact: self.exact.iter().map(|value| scale * value).collect(),
            may_not_be_finite: self.may_not_be_finite,
        }
    }
}
