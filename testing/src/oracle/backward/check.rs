use std::fmt;

use rayon::prelude::*;

use super::super::bound::ratio;
use super::super::sample::{RowTask, Rows, row_tasks};
use super::super::worst::{At, Worst};
use super::exact::{BackwardInputs, Bounded, ParameterSum, QueryHead, of_key};
use ferroflash::{DType, HostTensor, Problem, Shape};

/// The results of a backward pass.
#[derive(Clone, Copy, Debug)]
pub struct GradientTensors<'a> {
    /// `[batch, heads_q, seq_q, head_dim]`.
    pub dq: &'a HostTensor,
    /// `[batch, heads_kv, seq_kv, head_dim]`.
    pub dk: &'a HostTensor,
    /// `[batch, heads_kv, seq_kv, head_dim_v]`.
    pub dv: &'a HostTensor,
    /// f32 `[1, heads_q, 1, 1]` or `[batch, heads_q, 1, 1]`, if it was asked for.
    pub d_alibi_slopes: Option<&'a HostTensor>,
    /// f32, of the bias's shape, if it was asked for.
    pub d_bias: Option<&'a HostTensor>,
}

/// How gradients compare with the exact ones.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BackwardVerdict {
    /// Rows of q, and of k and v, that were compared.
    pub rows: usize,
    /// Worst element of dq.
    pub dq: Worst,
    /// Worst element of dk; its head and row are a key's.
    pub dk: Worst,
    /// Worst element of dv; its head and row are a key's.
    pub dv: Worst,
    /// Worst gradient by a slope, if all rows were compared and there is one; its row and component are 0, and so is its batch
    /// entry where batch entries share slopes.
    pub d_alibi_slopes: Worst,
    /// Worst element of the gradient by a bias, if all rows were compared and there is one; its place is that in the bias.
    pub d_bias: Worst,
}

impl BackwardVerdict {
    /// Whether every compared element lies within its bound.
    pub fn passed(&self) -> bool {
        [self.dq, self.dk, self.dv, self.d_alibi_slopes, self.d_bias]
            .iter()
            .all(|worst| worst.ratio <= 1.0)
    }

    fn merge(self, other: Self) -> Self {
        Self {
            rows: self.rows + other.rows,
            dq: self.dq.larger(other.dq),
            dk: self.dk.larger(other.dk),
            dv: self.dv.larger(other.dv),
            d_alibi_slopes: self.d_alibi_slopes.larger(other.d_alibi_slopes),
            d_bias: self.d_bias.larger(other.d_bias),
        }
    }
}

impl fmt::Display for BackwardVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dq: {}; dk: {}; dv: {}", self.dq, self.dk, self.dv)?;
        for (name, worst) in [
            ("d_alibi_slopes", self.d_alibi_slopes),
            ("d_bias", self.d_bias),
        ] {
            if worst != Worst::default() {
                write!(f, "; {name}: {worst}")?;
            }
        }
        Ok(())
    }
}

/// Compares gradients with the exact ones, on all cores. Every pair counts in the gradients by slopes and by a bias: they are
/// compared where all rows are.
///
/// # Panics
/// If a tensor's shape is not the problem's.
pub fn check_backward(
    problem: &Problem,
    given: BackwardInputs<'_>,
    computed: GradientTensors<'_>,
    rows: Rows,
) -> BackwardVerdict {
    let inputs = given.inputs;
    for (tensor, spec) in [
        (inputs.q, problem.q()),
        (inputs.k, problem.k()),
        (inputs.v, problem.v()),
        (given.o, problem.o()),
        (given.d_o, problem.o()),
        (computed.dq, problem.q()),
        (computed.dk, problem.k()),
        (computed.dv, problem.v()),
    ] {
        assert_eq!(tensor.spec().shape, spec.shape);
    }
    let of_queries = row_tasks(problem, problem.q().shape.heads, |s| s.seq_q(), rows);
    let of_keys = row_tasks(problem, problem.k().shape.heads, |s| s.seq_kv(), rows);
    let queries = of_queries
        .par_iter()
        .map(|task| check_queries(problem, given, computed, task));
    let keys = of_keys
        .par_iter()
        .map(|task| check_keys(problem, given, computed, task));
    let verdict = queries
        .chain(keys)
        .reduce(BackwardVerdict::default, BackwardVerdict::merge);
    if !matches!(rows, Rows::All) {
        return verdict;
    }
    let of_slopes = || check_slopes(problem, given, computed.d_alibi_slopes);
    let of_bias = || check_bias(problem, given, computed.d_bias);
    verdict.merge(BackwardVerdict {
        d_alibi_slopes: problem
            .d_alibi_slopes()
            .map_or(Worst::default(), |_| of_slopes()),
        d_bias: problem.d_bias().map_or(Worst::default(), |_| of_bias()),
        ..BackwardVerdict::default()
    })
}

/// The worst element of the gradient by a bias.
///
/// # Panics
/// If there is no tensor of it, or it is of another shape.
fn check_bias(
    problem: &Problem,
    given: BackwardInputs<'_>,
    computed: Option<&HostTensor>,
) -> Worst {
    let computed = computed.expect("a gradient by a bias is asked for");
    assert_eq!(Some(computed.spec()), problem.d_bias());
    let Shape {
        batch,
        heads,
        seq,
        dim,
    } = computed.spec().shape;
    let of_axis = |size: usize, extent: usize, at: usize| match size {
        1 => 0..extent,
        _ => at..at + 1,
    };
    let of_plane = |plane: usize| {
        let (batch_at, head_at) = (plane / heads, plane % heads);
        let mut sum = ParameterSum::none(seq * dim);
        for entry in of_axis(batch, problem.batch(), batch_at) {
            for head in of_axis(heads, problem.q().shape.heads, head_at) {
                let of_head = QueryHead::new(problem, given, entry, head);
                sum = sum.merge(of_head.bias_sum(seq, dim));
            }
        }
        let gradient = sum.finish();
        let mut worst = Worst::default();
        for row in 0..seq {
            let task = RowTask {
                batch: batch_at,
                head: head_at,
                rows: vec![row],
            };
            let place = (batch_at, head_at, row);
            let of_row = gradient.part(row * dim..(row + 1) * dim);
            worst = worst.larger(worst_of(computed, place, &of_row, &task, row));
        }
        worst
    };
    let planes = (0..batch * heads).into_par_iter().map(of_plane);
    planes.reduce(Worst::default, Worst::larger)
}

/// The worst gradient by a slope.
///
/// # Panics
/// If there is no tensor of them, or it is of another shape.
fn check_slopes(
    problem: &Problem,
    given: BackwardInputs<'_>,
    computed: Option<&HostTensor>,
) -> Worst {
    let computed = computed.expect("a gradient by slopes is asked for");
    let Shape { batch, heads, .. } = computed.spec().shape;
    assert_eq!(Some(computed.spec()), problem.d_alibi_slopes());
    let is_batched = problem.alibi().is_some_and(|slopes| slopes.is_batched());
    let of_slope = |index: usize| {
        let (row, head) = (index / heads, index % heads);
        let entries = if is_batched {
            row..row + 1
        } else {
            0..problem.batch()
        };
        let sums = entries.map(|entry| QueryHead::new(problem, given, entry, head).slope_sum());
        let gradient = sums
            .fold(ParameterSum::none(1), ParameterSum::merge)
            .finish();
        let task = RowTask {
            batch: row,
            head,
            rows: vec![0],
        };
        worst_of(computed, (row, head, 0), &gradient, &task, 0)
    };
    let slopes = (0..batch * heads).into_par_iter().map(of_slope);
    slopes.reduce(Worst::default, Worst::larger)
}

fn check_queries(
    problem: &Problem,
    given: BackwardInputs<'_>,
    computed: GradientTensors<'_>,
    task: &RowTask,
) -> BackwardVerdict {
    let head = QueryHead::new(problem, given, task.batch, task.head);
    let sequence = problem.sequence(task.batch);
    let mut verdict = BackwardVerdict::default();
    for &row in &task.rows {
        let place = (sequence.batch, task.head, sequence.q_rows.start + row);
        let dq = worst_of(computed.dq, place, &head.dq(row), task, row);
        verdict.dq = verdict.dq.larger(dq);
        verdict.rows += 1;
    }
    verdict
}

fn check_keys(
    problem: &Problem,
    given: BackwardInputs<'_>,
    computed: GradientTensors<'_>,
    task: &RowTask,
) -> BackwardVerdict {
    let group = problem.group();
    let heads = task.head * group..(task.head + 1) * group;
    let heads: Vec<_> = heads
        .map(|head| QueryHead::new(problem, given, task.batch, head))
        .collect();
    let sequence = problem.sequence(task.batch);
    let mut verdict = BackwardVerdict::default();
    for &row in &task.rows {
        let place = (sequence.batch, task.head, sequence.kv_rows.start + row);
        let [dk, dv] = of_key(&heads, row);
        verdict.dk = verdict
            .dk
            .larger(worst_of(computed.dk, place, &dk, task, row));
        verdict.dv = verdict
            .dv
            .larger(worst_of(computed.dv, place, &dv, task, row));
        verdict.rows += 1;
    }
    verdict
}

/// The worst element of one row, which lies at `place` (batch, head, position) of `tensor`.
fn worst_of(
    tensor: &HostTensor,
    (batch, head, position): (usize, usize, usize),
    row: &Bounded,
    task: &RowTask,
    number: usize,
) -> Worst {
    let mut worst = Worst::default();
    for (dim, (&exact, &allowed)) in row.exact.iter().zip(&row.allowed).enumerate() {
        let got = f64::from(tensor.get(batch, head, position, dim));
        if row.may_not_be_finite[dim] && !got.is_finite() {
            continue;
        }
        worst = worst.larger(Worst {
            ratio: gradient_ratio(got, exact, allowed, tensor.spec().dtype),
            at: At {
                batch: task.batch,
                head: task.head,
                row: number,
                dim,
            },
            got,
            exact,
        });
    }
    worst
}

/// Error over allowed error. A value that no number of `dtype` is near may be infinite; one that is not finite in f64 may be
/// NaN or infinite, as sums of infinities and of products with them are.
fn gradient_ratio(got: f64, exact: f64, allowed: f64, dtype: DType) -> f64 {
    let overflows = exact.abs() + allowed >= largest(dtype);
    let right = match (exact.is_finite(), got.is_finite()) {
        (true, true) => return ratio(got, exact, allowed),
        (true, false) => overflows && got == f64::INFINITY.copysign(exact),
        (false, is_finite) => !is_finite,
    };
    if right { 0.0 } else { f64::INFINITY }
}

/// The largest finite number.
fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => f64::from(f32::MAX),
        DType::F16 => f64::from(half::f16::MAX),
        DType::Bf16 => f64::from(half::bf16::MAX),
        DType::E4m3 => f64::from(kernels_gpu::e4m3::MAX),
    }
}
