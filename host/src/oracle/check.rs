use std::fmt;

use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use rayon::prelude::*;

use super::bound;
use super::naive::naive;
use super::row::{Head, Inputs, Rules, reference};
use crate::{HostTensor, Problem};

/// Which query rows to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Every row.
    All,
    /// The first and last row of some heads and random rows of others, for problems that are too
    /// large to check whole.
    Sampled {
        /// Rows in all.
        count: usize,
        /// Which rows.
        seed: u64,
    },
}

/// The place of one value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct At {
    /// Batch entry, or number of a packed sequence.
    pub batch: usize,
    /// Query head.
    pub head: usize,
    /// Query row, counted in its sequence.
    pub row: usize,
    /// Component; 0 for lse.
    pub dim: usize,
}

/// The value that used up most of its allowed error.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Worst {
    /// Error over allowed error; above 1 is wrong.
    pub ratio: f64,
    /// Where.
    pub at: At,
    /// What the backend computed.
    pub got: f64,
    /// The exact value.
    pub exact: f64,
}

impl Worst {
    fn larger(self, other: Self) -> Self {
        if other.ratio > self.ratio {
            other
        } else {
            self
        }
    }
}

impl fmt::Display for Worst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let At {
            batch,
            head,
            row,
            dim,
        } = self.at;
        write!(
            f,
            "{:.3} of the allowed error at batch {batch}, head {head}, row {row}, dim {dim}: {} for {}",
            self.ratio, self.got, self.exact
        )
    }
}

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
    assert_eq!(inputs.q.spec().shape, problem.q().shape);
    assert_eq!(inputs.k.spec().shape, problem.k().shape);
    assert_eq!(inputs.v.spec().shape, problem.v().shape);
    assert_eq!(o.spec().shape, problem.o().shape);
    let check_head = |task: &HeadTask| check_head(problem, inputs, o, lse, task);
    tasks(problem, rows)
        .par_iter()
        .map(check_head)
        .reduce(Verdict::default, Verdict::merge)
}

/// Rows of one query head of one batch entry.
struct HeadTask {
    batch: usize,
    head: usize,
    rows: Vec<usize>,
}

fn tasks(problem: &Problem, rows: Rows) -> Vec<HeadTask> {
    let heads = 0..problem.q().shape.heads;
    // (batch entry, head, rows), without those that have no row.
    let places = problem
        .sequences()
        .enumerate()
        .flat_map(|(batch, sequence)| {
            let seq_q = sequence.seq_q();
            let heads = heads.clone().filter(move |_| seq_q > 0);
            heads.map(move |head| (batch, head, seq_q))
        });
    let places: Vec<_> = places.collect();
    let task = |(batch, head, _), rows| HeadTask { batch, head, rows };
    let all_rows: usize = places.iter().map(|&(_, _, seq_q)| seq_q).sum();
    let (count, seed) = match rows {
        Rows::Sampled { count, seed } if count < all_rows => (count, seed),
        _ => {
            let of_place = |place: (usize, usize, usize)| {
                let starts = (0..place.2).step_by(ROWS_PER_TASK);
                starts.map(move |start| {
                    task(place, (start..place.2.min(start + ROWS_PER_TASK)).collect())
                })
            };
            return places.into_iter().flat_map(of_place).collect();
        }
    };
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut tasks = Vec::new();
    let mut left = count;
    while left > 0 {
        let &place = places.choose(&mut rng).expect("a row has a head");
        let seq_q = place.2;
        let mut rows = vec![0, seq_q - 1];
        rows.extend((0..ROWS_PER_HEAD - 2).map(|_| rng.random_range(0..seq_q)));
        rows.truncate(left);
        left -= rows.len();
        tasks.push(task(place, rows));
    }
    tasks
}

/// Rows of one head that are compared together where all are: few enough that one long head keeps every core busy,
/// enough that widening its K and V does not dominate.
const ROWS_PER_TASK: usize = 64;

/// Sampled rows of one head: enough that widening its K and V does not dominate.
const ROWS_PER_HEAD: usize = 8;

fn check_head(
    problem: &Problem,
    inputs: Inputs<'_>,
    o: &HostTensor,
    lse: &HostTensor,
    task: &HeadTask,
) -> Verdict {
    let &HeadTask {
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
            let allowed = bound::of_o(problem.q().dtype, &exact, dim);
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
