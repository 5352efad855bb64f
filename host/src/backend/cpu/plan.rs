//! Cuts a problem into independent tasks.

use rayon::prelude::*;

use super::pack::Matrix;
use super::tile::{BLOCK_M, Scratch, Task};
use crate::{Operands, Problem};

/// Runs `problem` on rayon's current thread pool.
///
/// The query rows of all heads that share one head of K and V are queued one after the other, and a
/// task takes up to [`BLOCK_M`] of them: short queries of many heads then fill a tile, as in decode.
///
/// # Safety
/// As for [`Backend::forward_raw`](crate::Backend::forward_raw).
pub(super) unsafe fn run(problem: &Problem, operands: &Operands) {
    let shape = problem.q().shape;
    let rows = problem.group() * shape.seq;
    let blocks = rows.div_ceil(BLOCK_M);
    let heads_kv = problem.k().shape.heads;
    let tasks = shape.batch * heads_kv * blocks;
    // The last rows see the most keys under a causal mask: starting with them leaves the short
    // tasks to even out the end.
    let order = (0..tasks).into_par_iter().rev();
    order.for_each_init(
        || Scratch::new(problem),
        |scratch, task| {
            let (head, block) = (task / blocks, task % blocks);
            let (batch, head_kv) = (head / heads_kv, head % heads_kv);
            let first_row = block * BLOCK_M;
            let task = Task {
                problem,
                operands,
                batch,
                head_kv,
                first_row,
                rows: BLOCK_M.min(rows - first_row),
                k: Matrix::new(problem.k(), operands.k, batch, head_kv),
                v: Matrix::new(problem.v(), operands.v, batch, head_kv),
            };
            // SAFETY: the operands are as the caller promised, and the tasks partition the rows of
            // o and lse.
            unsafe { task.run(scratch) };
        },
    );
}
