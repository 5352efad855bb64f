//! A warp's scores once more.
//!
//! A warp that finds its probabilities out of range needs the block's scores again, but has overwritten them. `wgmma`
//! would take the whole warpgroup, and with it a barrier in every block to ask whether anybody needs it. The warp's own
//! `mma.sync` takes nobody else: its fragments are laid out like those of `wgmma`.

use cuda_std::ldmatrix;
use cuda_std::mma_sync::MmaSync;

use super::lanes::{Lanes, swizzled};
use super::policy::{Query, STEP};
use crate::config::wgmma::{PANEL_COLS, WgmmaTile};

/// Accumulator registers of that many keys.
const REGISTERS: usize = 8;
/// Rows of a matrix.
const MATRIX: u32 = 8;

/// S = Q Kᵀ of the warp's 16 rows, with K at shared address `k_smem`.
///
/// # Safety
/// All lanes of the warp reach the same call; Q and K are in shared memory, where they stay until it returns.
#[inline(always)]
pub unsafe fn rescore<E: MmaSync, Q: Query<S>, const S: usize>(
    tile: &WgmmaTile,
    query: &Q,
    acc_s: &mut [f32; S],
    k_smem: u32,
    lanes: Lanes,
) {
    let lanes = lanes.anew();
    // Matrices 0 and 1: the left and right eight columns of the first eight keys; 2 and 3: of the next eight.
    let key = lanes.lane / 16 * MATRIX + lanes.lane % MATRIX;
    let right = lanes.lane / MATRIX % 2;
    let mut i = 0;
    while i < S {
        acc_s[i] = 0.0;
        i += 1;
    }
    let mut step = 0;
    while step < tile.head_dim / STEP {
        let panel = k_smem + step * STEP / PANEL_COLS * tile.kv_panel_bytes();
        let chunk = step * STEP % PANEL_COLS / MATRIX + right;
        // SAFETY: forwarded to the caller; inside Q and inside the stage.
        unsafe {
            let a = query.fragment(step, k_smem, lanes);
            let mut keys = 0;
            while keys < S / REGISTERS {
                let row = keys as u32 * STEP + key;
                let b = ldmatrix::load_x4(panel + swizzled(row, chunk));
                accumulate::<E, S>(acc_s, REGISTERS * keys, a, [b[0], b[1]]);
                accumulate::<E, S>(acc_s, REGISTERS * keys + 4, a, [b[2], b[3]]);
                keys += 1;
            }
        }
        step += 1;
    }
}

/// Adds `a · b` to the four registers from `r` on.
#[inline(always)]
unsafe fn accumulate<E: MmaSync, const S: usize>(
    acc_s: &mut [f32; S],
    r: usize,
    a: [u32; 4],
    b: [u32; 2],
) {
    let c = [acc_s[r], acc_s[r + 1], acc_s[r + 2], acc_s[r + 3]];
    // SAFETY: forwarded to the caller.
    let d = unsafe { E::multiply_add(a, b, c) };
    acc_s[r] = d[0];
    acc_s[r + 1] = d[1];
    acc_s[r + 2] = d[2];
    acc_s[r + 3] = d[3];
}
