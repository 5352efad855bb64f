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
    /// Largest error of o.
    pub max_error: f64,
}

impl Verdict {
    /// Whether every compared element lies within its bound.
    pub fn passed(&self) -> bool {
        self.o.ratio <= 1.0 && self.lse.ratio <= 1.0
    }

    fn merge(self, other: Self) -> Self {
        Self {
            rows: self.rows + other.rows,
            o: self.o.larger(other.o),
            lse: self.lse.larger(other.lse),
            max_error: self.max_error.max(other.max_error),
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
        for dim in 0..exact.o.len() {
            let got = value(o, dim);
            let allowed = bound::of_o(dtype, &exact, dim);
            if !exact.may_not_be_finite[dim] || got.is_finite() {
                verdict.o = verdict.o.larger(worst(got, exact.o[dim], allowed, dim));
            }
            verdict.max_error = verdict.max_error.max(error(got, exact.o[dim]));
        }
        verdict.rows += 1;
    }
    verdict
}

/// An element's distance from the exact one; 0 where that is not finite, which the bound judges alone.
fn error(value: f64, exact: f64) -> f64 {
    let distance = (value - exact).abs();
    if distance.is_finite() { distance } else { 0.0 }
}

/// FlashAttention's quality figure of a result whose verdict on all rows is given: its largest error over that of plain attention in
/// the same dtype; 2 or less is good. `None` where plain attention is exact.
pub fn quality(problem: &Problem, inputs: Inputs<'_>, verdict: &Verdict) -> Option<f64> {
    let heads = problem.q().shape.heads;
    let tasks = row_tasks(problem, heads, |sequence| sequence.seq_q(), Rows::All);
    let errors = tasks.par_iter().map(|task| {
        let rules = Rules::new(problem, task.batch, task.head);
        let sequence = problem.sequence(task.batch);
        let keys = Head::new(problem, inputs, &sequence, task.head);
        let of_row = |&row: &usize| {
            let place = sequence.q_rows.start + row;
            let q_row = inputs.q.head(sequence.batch, task.head, place..place + 1);
            let exact = reference(&rules, &keys, &q_row, row);
            let naive = naive(&rules, &keys, &q_row, row);
            let of_elements = naive.iter().zip(&exact.o);
            let errors = of_elements.map(|(&naive, &exact)| error(f64::from(naive), exact));
            errors.fold(0.0, f64::max)
        };
        task.rows.iter().map(of_row).fold(0.0, f64::max)
    });
    let of_plain = errors.reduce(|| 0.0, f64::max);
    (of_plain > 0.0).then(|| verdict.max_error / of_plain)
}
