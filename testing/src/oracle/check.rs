use std::fmt;

use rayon::prelude::*;

use super::bound;
use super::naive::naive;
use super::row::{Head, Inputs, Rules, reference};
use super::sample::{RowTask, Rows, row_tasks};
use super::worst::{At, Worst};
use ferroflash::{DType, HostTensor, Problem};

/// How a result compares with the exact one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Verdict {
    /// Rows that were compared.
    pub rows: usize,
    /// Worst element of o.
    pub o: Worst,
    /// Worst element of lse.
    pub lse: Worst,
    /// Largest error of o, and that of plain attention in the same dtype; see
    /// [`quality`](Self::quality).
    pub max_error: f64,
    /// Largest error of plain attention in the same dtype.
    pub max_naive_error: f64,
}

impl Verdict {
    /// Whether every compared element lies within its bound.
    pub fn passed(&self) -> bool {
        self.o.ratio <= 1.0 && self.lse.ratio <= 1.0
    }

    /// FlashAttention's quality figure: largest error over that of plain attention in the same dtype;
    /// 2 or less is good. `None` where plain attention is exact.
    pub fn quality(&self) -> Option<f64> {
        (self.max_naive_error > 0.0).then(|| self.max_error / self.max_naive_error)
    }

    fn merge(self, other: Self) -> Self {
        Self {
            rows: self.rows + other.rows,
            o: self.o.larger(other.o),
            lse: self.lse.larger(other.lse),
            max_error: self.max_error.max(other.max_error),
            max_naive_error: self.max_naive_error.max(other.max_naive_error),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "o: {}; lse: {}", self.o, self.lse)
    }
}

/// Compares a result with the exact one, on all cores.
///
/// # Panics
/// If a tensor's shape is not the problem's.
pub fn check(
    problem: &Problem,
    inputs: Inputs<'_>,
    o: &HostTensor,
    lse: &HostTensor,
    rows: Rows,
) -> Verdict {
    check_as(problem, inputs, o, lse, rows, problem.q().dtype)
}

/// As [`check`], with the bound for probabilities and outputs of `dtype`, whatever that of the inputs.
///
/// # Panics
/// As [`check`].
pub fn check_as(
    problem: &Problem,
    inputs: Inputs<'_>,
    o: &HostTensor,
    lse: &HostTensor,
    rows: Rows,
    dtype: DType,
) -> Verdict {
    assert_eq!(inputs.q.spec().shape, problem.q().shape);
    assert_eq!(inputs.k.spec().shape, problem.k().shape);
    assert_eq!(inputs.v.spec().shape, problem.v().shape);
    assert_eq!(o.spec().shape, problem.o().shape);
    let check_head = |task: &RowTask| check_head(problem, inputs, o, lse, task, dtype);
    row_tasks(
        problem,
        problem.q().shape.heads,
        |sequence| sequence.seq_q(),
        rows,
    )
    .par_iter()
    .map(check_head)
    .reduce(Verdict::default, Verdict::merge)
}

fn check_head(
    problem: &Problem,
    inputs: Inputs<'_>,
    o: &HostTensor,
    lse: &HostTensor,
    task: &RowTask,
    dtype: DType,
) -> Verdict {
    let &RowTask {
        batch,
        head,
        ref rows,
    } = task;
    let rules = Rules::new(problem, batch, head);
    let sequence = problem.sequence(batch);
    let keys = Head::new(problem, inputs, &sequence, head);
    let mut verdict = Verdict::default();
    for &row in rows {
        let place = sequence.q_rows.start + row;
        let q_row = inputs.q.head(sequence.batch, head, place..place + 1);
        let exact = reference(&rules, &keys, &q_row, row);
        let naive = naive(&rules, &keys, &q_row, row);
        let value =
            |tensor: &HostTensor, dim| f64::from(tensor.get(sequence.batch, head, place, dim));
        let worst = |got, exact, allowed, dim| Worst {
            ratio: bound::ratio(got, exact, allowed),
            at: At {
                batch,
                head,
                row,
                dim,
            },
            got,
            exact,
        };
        let lse = worst(value(lse, 0), exact.lse, bound::of_lse(&exact), 0);
        verdict.lse = verdict.lse.larger(lse);
        for (dim, &naive) in naive.iter().enumerate() {
            let got = value(o, dim);
            let allowed = bound::of_o(dtype, &exact, dim);
            if !exact.may_not_be_finite[dim] || got.is_finite() {
                verdict.o = verdict.o.larger(worst(got, exact.o[dim], allowed, dim));
            }
            // Values without a finite distance, which the bound judges alone, stay out of the quality figure.
            let error = |value: f64| match (value - exact.o[dim]).abs() {
                distance if distance.is_finite() => distance,
                _ => 0.0,
            };
            verdict.max_error = verdict.max_error.max(error(got));
            let naive_error = error(f64::from(naive));
            verdict.max_naive_error = verdict.max_naive_error.max(naive_error);
        }
        verdict.rows += 1;
    }
    verdict
}
