//! The products of a block of keys in f32's own arithmetic, for what the tensor cores' parts of an f32 cannot be: numbers that are
//! not finite, or above 2¹¹⁵. Rare, and so short rather than fast.

use cuda_std::math::fma;
use cuda_std::shared;
use cuda_std::warp::broadcast;

use super::MmaKernel;
use super::tf32::{PART_COLS, column};
use crate::layout::fragment::{ROW_STEP, row_column};
use crate::layout::swizzle::{offset, row_vec16s};
use crate::tile::black_box;
use crate::tile::mask::MASKED_OUT;

/// Q Kᵀ of the warp's rows at `q_smem` and the block of keys at `k_smem`.
///
/// # Safety
/// Both are in shared memory and visible to the warp.
#[inline(always)]
pub unsafe fn qk<K: MmaKernel, const ROWS: usize, const COLS: usize>(
    q_smem: u32,
    k_smem: u32,
    lane: u32,
) -> [[f32; COLS]; ROWS] {
    let columns = K::CONFIG.columns();
    let mut acc_s = [[0.0; COLS]; ROWS];
    let mut vec16 = 0;
    while vec16 < black_box(row_vec16s(columns) as u32) {
        let mut q = [[0.0; 4]; ROWS];
        for i in 0..ROWS {
            let row = lane / 4 + i as u32 * ROW_STEP;
            q[i] = shared::load4(q_smem + offset(columns, row, vec16));
        }
        for j in 0..COLS {
            let key = row_column(lane, j as u32);
            let k = shared::load4(k_smem + offset(columns, key, vec16));
            for i in 0..ROWS {
                for dim in 0..4 {
                    acc_s[i][j] = fma(q[i][dim], k[dim], acc_s[i][j]);
                }
            }
        }
        vec16 += 1;
    }
    acc_s
}

/// O += P V, of the block of V at `v_smem`, where P marks keys that a row does not see by [`MASKED_OUT`].
///
/// # Safety
/// V is in shared memory and visible to the warp; all 32 lanes must reach the same call.
#[inline(always)]
pub unsafe fn pv<K: MmaKernel, const ROWS: usize, const S_COLS: usize, const O_COLS: usize>(
    acc_o: &mut [[f32; O_COLS]; ROWS],
    p: &[[f32; S_COLS]; ROWS],
    v_smem: u32,
    lane: u32,
) {
    let columns = K::CONFIG.columns();
    let mut key = 0;
    while key < black_box(K::CONFIG.block_n as u32) {
        // The lane of four that has the key, and where.
        let (owner, index) = (key % 8 / 2, key / 8 * 2 + key % 2);
        let mut weights = [0.0; ROWS];
        for i in 0..ROWS {
            let mut own = p[i][0];
            for j in 1..S_COLS {
                if index == j as u32 {
                    own = p[i][j];
                }
            }
            weights[i] = broadcast(own, lane / 4 * 4 + owner);
        }
        for part in 0..O_COLS / PART_COLS {
            let vec16 = (part * PART_COLS) as u32 + lane % 4;
            let v = shared::load4(v_smem + offset(columns, key, vec16));
            for i in 0..ROWS {
                for dim in 0..v.len() {
                    let o = &mut acc_o[i][part * PART_COLS + column(dim)];
                    let sum = fma(weights[i], v[dim], *o);
                    if weights[i].to_bits() != MASKED_OUT.to_bits() {
                        *o = sum;
                    }
                }
            }
        }
        key += 1;
    }
}
