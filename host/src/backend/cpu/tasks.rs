//! Cuts a problem into independent tasks.

use rayon::prelude::*;

use super::pack::Matrix;
use super::tile::{BLOCK_M, Scratch, Task};
use crate::{Operands, Problem, Sequence};

/// Runs `problem`, whose lengths and slopes the host knows, on rayon's current thread pool.
///
/// The query rows of all heads that share one head of K and V are queued one after the other, and a
/// task takes up to [`BLOCK_M`] of them: short queries of many heads then fill a tile, as in decode.
///
/// # Safety
/// As for [`Backend::launch`](crate::Backend::launch).
pub(super) unsafe fn run(problem: &Problem, operands: &Operands) {
    let heads_kv = problem.k().shape.heads;
    let sequences: Vec<Sequence> = problem.sequences().collect();
    // Tasks of the sequences before each one.
    let mut tasks = 0;
    let first_tasks: Vec<usize> = sequences
        .iter()
        .map(|sequence| {
            let first = tasks;
            tasks += heads_kv * blocks(problem, sequence);
            first
        })
        .collect();
    // The last rows see the most keys under a causal mask: starting with them leaves the short
    // tasks to even out the end.
    let order = (0..tasks).into_par_iter().rev();
    order.for_each_init(
        || Scratch::new(problem),
        |scratch, task| {
            let index = first_tasks.partition_point(|&first| first <= task) - 1;
            let sequence = &sequences[index];
            let blocks = blocks(problem, sequence);
            let task = task - first_tasks[index];
            let (head_kv, block) = (task / blocks, task % blocks);
            let first_row = block * BLOCK_M;
            let rows = problem.group() * sequence.seq_q();
            let first_key = sequence.kv_rows.start;
            let task = Task {
                problem,
                operands,
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

/// Tasks of one head of K and V of a sequence.
fn blocks(problem: &Problem, sequence: &Sequence) -> usize {
    (problem.group() * sequence.seq_q()).div_ceil(BLOCK_M)
}
