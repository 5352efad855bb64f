//! The two products of a group, chunk by chunk.
//!
//! Each product is in the code once, whichever chunk comes next: what is called from two places may stay a function in machine
//! code, with the sums in memory. The kernels without groups have two copies, which takes them fewer registers.

use super::super::super::gemm::{pv_maybe_masked, qk};
use super::super::super::{Scores, SimtKernel, ThreadLayout};
use super::super::passing::{Operand, Passing, Step};
use crate::backward::side::Side;
use crate::units::F32_BYTES;

/// `acc += kept · operandᵀ`, chunk by chunk of dimensions; `then` starts loading what comes after, to a free stage.
///
/// # Safety
/// All of the group call it; the first chunk is asked for.
#[inline(always)]
pub unsafe fn by_dims<K: SimtKernel, S: Side, const ROWS: usize>(
    passing: &mut Passing<K, S>,
    acc: &mut Scores<ROWS>,
    kept: u32,
    operand: Operand,
    now: Step,
    then: impl Fn(&Passing<K, S>, u32),
) {
    let dims = passing.dims(operand);
    let k_chunk = K::CONFIG.k_chunk as u32;
    let chunks = dims.div_ceil(k_chunk);
    let layout = ThreadLayout::new::<K>(K::thread());
    let mut chunk = 0;
    while chunk < chunks {
        let free = passing.stages.wait();
        let begin = chunk * k_chunk;
        chunk += 1;
        if chunk < chunks {
            passing.load_dims(free, operand, now, chunk);
        } else {
            then(passing, free);
        }
        let kept = kept + begin * F32_BYTES;
        let (smem, dims) = (passing.stages.chunk_smem(), dims - begin);
        qk::<K, ROWS>(acc, kept, smem, layout, dims);
        passing.stages.advance();
    }
}

/// `sum += P · operand`, chunk by chunk of rows; `then` starts loading what comes after, to a free stage.
///
/// # Safety
/// All of the group call it; the first chunk is asked for, and P is stored.
#[inline(always)]
pub unsafe fn by_rows<K: SimtKernel, S: Side, const ROWS: usize, const COLS: usize>(
    passing: &mut Passing<K, S>,
    sum: &mut [[f32; COLS]; ROWS],
    p_smem: u32,
    operand: Operand,
    now: Step,
    needs_mask: bool,
    then: impl Fn(&Passing<K, S>, u32),
) {
    let v_chunk = K::CONFIG.v_chunk() as u32;
    let rows = passing.rows(now);
    let chunks = rows.div_ceil(v_chunk);
    let mut chunk = 0;
    while chunk < chunks {
        let free = passing.stages.wait();
        let begin = chunk * v_chunk;
        chunk += 1;
        if chunk < chunks {
            passing.load_rows(free, operand, now, chunk);
        } else {
            then(passing, free);
        }
        let layout = ThreadLayout::new::<K>(K::thread());
        let p_chunk = p_smem + begin * F32_BYTES;
        let (smem, rows) = (passing.stages.chunk_smem(), (rows - begin).min(v_chunk));
        pv_maybe_masked::<K, _, _>(sum, p_chunk, smem, layout, rows, needs_mask);
        passing.stages.advance();
    }
}
