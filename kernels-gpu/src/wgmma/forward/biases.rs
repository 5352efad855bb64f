//! Biases on their way to scores: copied to shared memory by the warp that adds them, while scores are multiplied.
//!
//! ```text
//! a warp's biases    [16 rows][block_n], 16 bits each, in pieces of 16 bytes; piece p of row r in place p xor (r mod 8)
//! ```

use cuda_std::cp_async::{commit_group, copy16, wait_group};
use cuda_std::shared;
use cuda_std::thread::thread_idx_x;
use cuda_std::warp::{WARP_SIZE, lane_id, sync_warp};

use super::mask::{below, col};
use crate::config::wgmma::{WARP_ROWS, WARPGROUP, WgmmaConfig};
use crate::layout::swizzle::VEC16_BYTES;
use crate::modifiers::BiasRows;
use crate::modifiers::load::{widen_bf16_pair, widen_f16_pair};
use crate::tile::black_box;
use crate::units::{F32_BYTES, HALF_BYTES};

/// Elements of a piece.
const PIECE: u32 = VEC16_BYTES / HALF_BYTES;

/// Which biases of a block a warp has started to copy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Copied {
    /// None: if there are some, they are read one by one.
    No,
    F16,
    Bf16,
}

/// Address of this warp's biases; `smem` is that of the launch's shared memory.
#[inline(always)]
fn warp_base(smem: u32, config: &WgmmaConfig) -> u32 {
    let warp = (black_box(thread_idx_x()) - WARPGROUP) / WARP_SIZE;
    smem + config.bias_offset() + warp * config.bias_bytes()
}

/// Starts copying the biases of this warp's rows and a block of keys.
///
/// # Safety
/// All 32 lanes reach the same call with the same biases, which are live; those of the block before have been added.
#[inline(always)]
pub unsafe fn start(biases: &BiasRows, smem: u32, config: &WgmmaConfig) -> Copied {
    let (row_pieces, row_bytes) = (config.block_n / PIECE, config.block_n * HALF_BYTES);
    let lane = black_box(lane_id());
    let rows_at_once = WARP_SIZE / row_pieces;
    let base = warp_base(smem, config);
    // Nobody reads those of the block before any more.
    sync_warp();
    for step in 0..WARP_ROWS / rows_at_once {
        let (row, piece) = (step * rows_at_once + lane / row_pieces, lane % row_pieces);
        let to = base + row * row_bytes + (piece ^ row % 8) * VEC16_BYTES;
        let from = biases
            .base
            .wrapping_add_signed(row as i64 * biases.row_bytes)
            .wrapping_add((piece * VEC16_BYTES) as u64);
        copy16(to, from);
    }
    commit_group();
    if biases.is_f16 {
        Copied::F16
    } else {
        Copied::Bf16
    }
}

/// Adds to a thread's scores the biases that [`start`] has copied, which are `copied`.
///
/// # Safety
/// All 32 lanes reach the same call, after `start` with the same block, which has copied some.
#[inline(always)]
pub unsafe fn add<const S_REGS: usize>(
    scores: &mut [f32; S_REGS],
    copied: Copied,
    smem: u32,
    config: &WgmmaConfig,
) {
    wait_group::<0>();
    sync_warp();
    if copied == Copied::F16 {
        add_pairs(scores, widen_f16_pair, smem, config);
    } else {
        add_pairs(scores, widen_bf16_pair, smem, config);
    }
}

/// The same of biases of which `widen` makes f32.
///
/// # Safety
/// As [`add`]; they are there.
#[inline(always)]
unsafe fn add_pairs<const S_REGS: usize>(
    scores: &mut [f32; S_REGS],
    widen: impl Fn(u32) -> [f32; 2],
    smem: u32,
    config: &WgmmaConfig,
) {
    let row_bytes = config.block_n * HALF_BYTES;
    let lane = black_box(lane_id());
    let row = lane / 4;
    // Places of further pieces differ in bits that are 0 in the rest.
    let first =
        warp_base(smem, config) + row * row_bytes + row * VEC16_BYTES + lane % 4 * F32_BYTES;
    for register in (0..S_REGS).step_by(2) {
        let piece = col(register) as u32 / PIECE;
        let from = (first ^ piece * VEC16_BYTES) + below(register) as u32 * row_bytes;
        let [a, b] = widen(shared::load_bits(from));
        scores[register] += a;
        scores[register + 1] += b;
    }
}
