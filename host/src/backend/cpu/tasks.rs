//! Cuts a problem into independent tasks.

use rayon::prelude::*;

use super::modifiers::CpuModifiers;
use super::pack::Matrix;
use super::tile::{BLOCK_M, Scratch, Task};
use crate::{Lengths, Operands, Problem, Sequence};

/// Runs `problem`, whose lengths and slopes the host knows, on rayon's current thread pool.
///
/// The query rows of all heads that share one head of K and V are queued one after the other, and a
/// task takes up to [`BLOCK_M`] of them: short queries of many heads then fill a tile, as in decode.
///
/// # Safety
/// As for [`Backend::launch`](crate::Backend::launch).
pub(super) unsafe fn run(problem: &Problem, operands: &Operands) {
    if problem.is_empty() {
        return;
    }
    let numbering = Numbering::of(problem);
    let modifiers = CpuModifiers::new(problem, operands);
    // The last rows see the most keys under a causal mask: starting with them leaves the short
    // tasks to even out the end.
    let order = (0..numbering.count()).into_par_iter().rev();
    order.for_each_init(
        || Scratch::new(problem),
        |scratch, number| {
            let (index, task) = numbering.place(number);
            let sequence = &problem.sequence(index);
            let blocks = blocks(problem, sequence);
            let (head_kv, block) = (task / blocks, task % blocks);
            let first_row = block * BLOCK_M;
            let rows = problem.group() * sequence.seq_q();
            let first_key = sequence.kv_rows.start;
            let task = Task {
                problem,
                operands,
                modifiers: modifiers.as_ref(),
                index,
                sequence,
                head_kv,
                first_row,
                rows: BLOCK_M.min(rows - first_row),
                k: Matrix::new(problem.k(), operands.k, sequence.batch, head_kv, first_key),
                v: Matrix::new(problem.v(), operands.v, sequence.batch, head_kv, first_key),
            };
            // SAFETY: the operands are as the caller promised, and the tasks partition the rows of
            // o and lse.
            unsafe { task.run(scratch) };
        },
    );
}

/// Which sequence a task belongs to. Tasks are numbered sequence by sequence.
enum Numbering {
    /// All sequences have the same lengths, so no list is needed, however many there are.
    Alike {
        sequences: usize,
        tasks_of_each: usize,
    },
    /// Number of tasks before each sequence, then the number of all tasks.
    Listed(Vec<usize>),
}

impl Numbering {
    fn of(problem: &Problem) -> Self {
        let heads_kv = problem.k().shape.heads;
        let tasks = |sequence: Sequence| heads_kv * blocks(problem, &sequence);
        if matches!(problem.lengths(), Lengths::Dense) {
            return Self::Alike {
                sequences: problem.batch(),
                tasks_of_each: tasks(problem.sequence(0)),
            };
        }
        let mut before = Vec::with_capacity(problem.batch() + 1);
        before.push(0);
        for sequence in problem.sequences() {
            before.push(before[before.len() - 1] + tasks(sequence));
        }
        Self::Listed(before)
    }

    /// Tasks of all sequences.
    fn count(&self) -> usize {
        match self {
            Self::Alike {
                sequences,
                tasks_of_each,
            } => sequences * tasks_of_each,
            Self::Listed(before) => before[before.len() - 1],
        }
    }

    /// The sequence of task `number`, and the task's number among those of that sequence.
    fn place(&self, number: usize) -> (usize, usize) {
        match self {
            Self::Alike { tasks_of_each, .. } => (number / tasks_of_each, number % tasks_of_each),
            Self::Listed(before) => {
                let index = before.partition_point(|&before| before <= number) - 1;
                (index, number - before[index])
            }
        }
    }
}

/// Tasks of one head of K and V of a sequence.
fn blocks(problem: &Problem, sequence: &Sequence) -> usize {
    (problem.group() * sequence.seq_q()).div_ceil(BLOCK_M)
}
