//! `mma.sync` from registers: every warp adds A · B to its D, once a step.

use cuda_std::global::{load_u16, load_u32, store};
use cuda_std::half::Bf16;
use cuda_std::mma_sync::MmaSync;
use cuda_std::thread::block_idx_x;
use cuda_std::warp::{lane_id, warp_id};

use super::at;
use super::params::ProbeParams;
use crate::config::probe::{MMA_K, MMA_M, MMA_N, WARPS};
use kernels_gpu::layout::fragment::{TILE_M, TILE_N, accumulator, operand_a, operand_b};
use kernels_gpu::tile::black_box;

const ROW_TILES: usize = MMA_M as usize / TILE_M;
const COLUMN_TILES: usize = MMA_N as usize / TILE_N;

/// # Safety
/// `params` describes live allocations.
#[inline(always)]
pub unsafe fn multiply(params: &ProbeParams) {
    let lane = lane_id();
    // A lane's elements lie as far from its first as those of lane 0: one address each for A, B and D.
    let (row, column) = operand_a(lane, 0, 0);
    let first = at::<u16>(params.a, (row * MMA_K + column) as u64);
    let mut a = [[0; 4]; ROW_TILES];
    for tile in 0..ROW_TILES {
        for register in 0..4 {
            let (row, column) = operand_a(0, register as u32, 0);
            let index = (tile as u32 * TILE_M as u32 + row) * MMA_K + column;
            // SAFETY: the elements exist.
            a[tile][register] = unsafe { load_u32(at::<u16>(first, index as u64)) };
        }
    }
    let (row, column) = operand_b(lane, 0, 0);
    let first = at::<u16>(params.b, (row * MMA_N + column) as u64);
    let mut b = [[0; 2]; COLUMN_TILES];
    for tile in 0..COLUMN_TILES {
        for register in 0..2 {
            let half = |half| {
                let (row, column) = operand_b(0, register as u32, half);
                let index = row * MMA_N + tile as u32 * TILE_N as u32 + column;
                // SAFETY: the element exists.
                unsafe { load_u16(at::<u16>(first, index as u64)) as u32 }
            };
            b[tile][register] = half(0) | half(1) << 16;
        }
    }

    let mut d = [[[0.0; 4]; COLUMN_TILES]; ROW_TILES];
    let mut step = 0;
    while step < black_box(params.count as u32) {
        for row in 0..ROW_TILES {
            for column in 0..COLUMN_TILES {
                // SAFETY: all lanes take as many steps.
                d[row][column] = unsafe { Bf16::multiply_add(a[row], b[column], d[row][column]) };
            }
        }
        step += 1;
    }

    let warp = block_idx_x() as u64 * WARPS as u64 + warp_id() as u64;
    let (row, column) = accumulator(lane, 0);
    let index = warp * (MMA_M * MMA_N) as u64 + (row * MMA_N + column) as u64;
    let first = at::<f32>(params.out, index);
    for row_tile in 0..ROW_TILES {
        for column_tile in 0..COLUMN_TILES {
            for register in 0..4 {
                let (row, column) = accumulator(0, register as u32);
                let row = row_tile as u32 * TILE_M as u32 + row;
                let column = column_tile as u32 * TILE_N as u32 + column;
                let place = at::<f32>(first, (row * MMA_N + column) as u64);
                // SAFETY: the element exists and is this lane's.
                unsafe { store(place, d[row_tile][column_tile][register]) };
            }
        }
    }
}
