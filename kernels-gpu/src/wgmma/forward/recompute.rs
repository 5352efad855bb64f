//! Recomputes a warp's scores.
//!
//! A warp that finds its probabilities out of range needs the block's scores again, but has overwritten them. `wgmma`
//! would occupy the whole warpgroup, and need a barrier in every block to ask whether any warp wants it. The warp's own
//! `mma.sync` involves no other warp: its fragments are laid out like those of `wgmma`.

use cuda_std::ldmatrix;
use cuda_std::mma_sync::MmaSync;

use super::lanes::{Lanes, swizzled};
use super::traits::{QkOperand, STEP};
use crate::config::wgmma::{ATOM_COLS, WgmmaConfig};

/// Accumulator registers that a lane holds for [`STEP`] keys: 16 rows · 16 keys / 32 lanes.
const REGISTERS: usize = 8;
/// Rows of a matrix.
const MATRIX: u32 = 8;

/// S = Q Kᵀ of the warp's 16 rows, with K at shared address `k_smem`.
///
/// # Safety
/// All lanes of the warp reach the same call; Q and K are in shared memory, where they stay until it returns.
#[inline(always)]
pub unsafe fn recompute_scores<E: MmaSync, Q: QkOperand<S_REGS>, const S_REGS: usize>(
    config: &WgmmaConfig,
    query: &Q,
    acc_s: &mut [f32; S_REGS],
    k_smem: u32,
    lanes: Lanes,
) {
    let lanes = lanes.reload();
    // Matrices 0 and 1: the left and right eight columns of the first eight keys; 2 and 3: of the next eight.
    let key = lanes.lane / 16 * MATRIX + lanes.lane % MATRIX;
    let right = lanes.lane / MATRIX % 2;
    let mut i = 0;
    while i < S_REGS {
        acc_s[i] = 0.0;
        i += 1;
    }
    let mut step = 0;
    while step < config.head_dim / STEP {
        let atom_column = k_smem + step * STEP / ATOM_COLS * config.kv_atom_column_bytes();
        let vec16 = step * STEP % ATOM_COLS / MATRIX + right;
        // SAFETY: inside Q and inside the stage.
        unsafe {
            let a = query.fragment(step, k_smem, lanes);
            let mut keys = 0;
            while keys < S_REGS / REGISTERS {
                let row = keys as u32 * STEP + key;
                let b = ldmatrix::load_x4(atom_column + swizzled(row, vec16));
                accumulate::<E, S_REGS>(acc_s, REGISTERS * keys, a, [b[0], b[1]]);
                accumulate::<E, S_REGS>(acc_s, REGISTERS * keys + 4, a, [b[2], b[3]]);
                keys += 1;
            }
        }
        step += 1;
    }
}

/// Adds `a · b` to the four registers from `r` on.
#[inline(always)]
unsafe fn accumulate<E: MmaSync, const S_REGS: usize>(
    acc_s: &mut [f32; S_REGS],
    r: usize,
    a: [u32; 4],
    b: [u32; 2],
) {
    let c = [acc_s[r], acc_s[r + 1], acc_s[r + 2], acc_s[r + 3]];
    let d = E::multiply_add(a, b, c);
    acc_s[r] = d[0];
    acc_s[r + 1] = d[1];
    acc_s[r + 2] = d[2];
    acc_s[r + 3] = d[3];
}
