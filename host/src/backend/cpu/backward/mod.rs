//! The backward pass on the CPU.
//!
//! First delta of every row; then dk and dv, a task taking a block of keys against every query that sees them; then dq, a
//! task taking a block of queries against every key they see. Scores are computed in both: seven matrix products for
//! five, but every element of a gradient is summed by one task in one order, so results do not depend on the number of
//! threads, and nothing is added across them.
//!
//! | file | what it does |
//! |---|---|
//! | `rows` | lse and delta of each query row |
//! | `pairs` | P and dS of a tile of keys and queries, which both passes need |
//! | `keys` | dk and dv of a block of keys |
//! | `queries` | dq of a block of queries |
//! | `slopes` | the gradient by ALiBi's slopes, where it is asked for |
//! | `bias` | the gradient by a bias, where it is asked for: a task takes rows of it |

mod bias;
mod keys;
mod pairs;
mod queries;
mod rows;
mod slopes;

use std::sync::Arc;

use rayon::prelude::*;

use self::keys::KeyBlock;
use self::queries::QueryBlock;
use self::rows::Rows;
use self::slopes::SlopeRows;
use super::modifiers::CpuModifiers;
use super::pack::Matrix;
use crate::{GradientOperands, GradientSpecs, Operands, Problem, Sequence};

/// Data that all tasks read.
pub(super) struct Pass<'a> {
    pub problem: &'a Problem,
    pub specs: &'a GradientSpecs,
    pub operands: &'a Operands,
    pub gradients: &'a GradientOperands,
    pub rows: Rows,
    /// Sums of the gradient by slopes, if it is asked for.
    pub slope_rows: Option<SlopeRows>,
    /// Of the problem, if it has any.
    pub modifiers: Option<Arc<CpuModifiers>>,
}

/// One head of k and v of one sequence, and the query heads that share it.
#[derive(Clone, Copy)]
pub(super) struct Head<'a> {
    pub pass: &'a Pass<'a>,
    /// Number of the batch entry.
    pub index: usize,
    pub sequence: &'a Sequence,
    pub head_kv: usize,
}

/// Runs the backward pass of `problem`, whose lengths and slopes the host knows, on rayon's current thread pool.
///
/// # Safety
/// As for [`Backend::launch`](crate::Backend::launch), whose checks `operands` have passed.
///
/// # Panics
/// If `problem` is not a backward pass.
pub(super) unsafe fn run(problem: &Problem, operands: &Operands) {
    let specs = problem.gradients().expect("a backward pass");
    let gradients = operands.gradients.as_ref().expect("checked operands");
    let sequences: Vec<Sequence> = problem.sequences().collect();
    let pass = Pass {
        problem,
        specs,
        operands,
        gradients,
        // SAFETY: the caller vouches for the operands, and `sequences` are the problem's.
        rows: unsafe { Rows::new(problem, &sequences, operands, gradients) },
        slope_rows: SlopeRows::new(problem),
        modifiers: CpuModifiers::new(problem, operands).map(Arc::new),
    };
    // SAFETY: the caller vouches for the operands; each task writes only its own rows of dk and dv, or of dq.
    unsafe {
        pass.run_tasks::<KeyBlock>(&sequences);
        pass.run_tasks::<QueryBlock>(&sequences);
        if let (Some(rows), Some(address)) = (&pass.slope_rows, gradients.d_alibi_slopes) {
            rows.write(problem, &sequences, address);
        }
        if let (Some(_), Some(address), Some(modifiers)) =
            (problem.d_sinks(), gradients.d_sinks, &pass.modifiers)
        {
            pass.rows.write_sink_gradient(problem, modifiers, address);
        }
        if let (Some(spec), Some(address)) = (problem.d_bias(), gradients.d_bias) {
            bias::write(&pass, &sequences, spec.shape, address);
        }
    }
}

/// A task of one pass: consecutive rows of one head.
pub(super) trait Block {
    /// Rows of a task.
    const ROWS: usize;

    /// The rows of a head that tasks share out.
    fn rows_of(head: &Head<'_>) -> usize;

    /// Tiles, none of which grows with the sequence length.
    fn new(problem: &Problem) -> Self;

    /// Computes and writes rows `first..first + rows` of `head`.
    ///
    /// # Safety
    /// As for [`Backend::launch`](crate::Backend::launch), and nobody else may run a task on these rows at the same time.
    unsafe fn run(&mut self, head: Head<'_>, first: usize, rows: usize);
}

impl Pass<'_> {
    /// # Safety
    /// As for [`run`].
    unsafe fn run_tasks<B: Block>(&self, sequences: &[Sequence]) {
        let heads_kv = self.problem.k().shape.heads;
        let head = |number: usize| Head {
            pass: self,
            index: number / heads_kv,
            sequence: &sequences[number / heads_kv],
            head_kv: number % heads_kv,
        };
        // Tasks before each head, and of all.
        let mut ends = Vec::with_capacity(sequences.len() * heads_kv);
        let mut tasks = 0;
        for number in 0..sequences.len() * heads_kv {
            tasks += B::rows_of(&head(number)).div_ceil(B::ROWS);
            ends.push(tasks);
        }
        (0..tasks).into_par_iter().for_each_init(
            || B::new(self.problem),
            |block, task| {
                let number = ends.partition_point(|&end| end <= task);
                let head = head(number);
                let before = if number == 0 { 0 } else { ends[number - 1] };
                let first = (task - before) * B::ROWS;
                let rows = B::ROWS.min(B::rows_of(&head) - first);
                // SAFETY: the caller vouches for the operands; the tasks partition the rows.
                unsafe { block.run(head, first, rows) };
            },
        );
    }
}

impl Head<'_> {
    /// Query rows of all heads that share this head of k and v.
    fn queries(&self) -> usize {
        self.pass.problem.group() * self.sequence.seq_q()
    }

    /// (query head, position in its sequence) of query row `row` among the rows of all query heads that share this head
    /// of k and v, concatenated head by head: with 10 queries, row 23 is row 3 of the third head.
    fn query(&self, row: usize) -> (usize, usize) {
        let seq_q = self.sequence.seq_q();
        let head = self.head_kv * self.pass.problem.group() + row / seq_q;
        (head, row % seq_q)
    }

    /// Rows of this sequence in query head `head` of the operand at `address`.
    fn query_rows(&self, spec: &crate::TensorSpec, address: u64, head: usize) -> Matrix {
        let Sequence { batch, q_rows, .. } = self.sequence;
        Matrix::new(spec, address, *batch, head, q_rows.start)
    }

    /// Rows of this sequence in this head of the operand at `address`.
    fn key_rows(&self, spec: &crate::TensorSpec, address: u64) -> Matrix {
        let Sequence { batch, kv_rows, .. } = self.sequence;
        Matrix::new(spec, address, *batch, self.head_kv, kv_rows.start)
    }
}
