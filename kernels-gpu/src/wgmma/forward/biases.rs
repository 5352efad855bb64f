//! Biases on their way to scores: copied to shared memory by the warp that adds them, while scores are multiplied.
//!
//! ```text
//! a warp's biases    [16 rows][block_n], 16 bits each, swizzled by vec16s (layout/swizzle.rs)
//! ```

use cuda_std::cp_async::{commit_group, copy16, wait_group};
use cuda_std::half::{Bf16, F16, Half};
use cuda_std::shared;
use cuda_std::thread::thread_idx_x;
use cuda_std::warp::{WARP_SIZE, lane_id, sync_warp};

use super::mask::{below, col};
use crate::config::wgmma::{WARP_ROWS, WARPGROUP, WgmmaConfig};
use crate::layout::swizzle::{VEC16_BYTES, VEC16_ELEMS, offset, row_bytes, row_vec16s};
use crate::modifiers::BiasRows;
use crate::tile::black_box;
use crate::units::F32_BYTES;

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
    let columns = config.block_n as usize;
    let row_vec16s = row_vec16s(columns) as u32;
    let lane = black_box(lane_id());
    let rows_at_once = WARP_SIZE / row_vec16s;
    let base = warp_base(smem, config);
    // Nobody reads those of the block before any more.
    sync_warp();
    for step in 0..WARP_ROWS / rows_at_once {
        let row = step * rows_at_once + lane / row_vec16s;
        let vec16 = lane % row_vec16s;
        let to = base + offset(columns, row, vec16);
        let from = biases
            .base
            .wrapping_add_signed(row as i64 * biases.row_bytes)
            .wrapping_add((vec16 * VEC16_BYTES) as u64);
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
        add_pairs::<F16, S_REGS>(scores, smem, config);
    } else {
        add_pairs::<Bf16, S_REGS>(scores, smem, config);
    }
}

/// The same of biases of type `E`.
///
/// # Safety
/// As [`add`]; they are there.
#[inline(always)]
unsafe fn add_pairs<E: Half, const S_REGS: usize>(
    scores: &mut [f32; S_REGS],
    smem: u32,
    config: &WgmmaConfig,
) {
    let columns = config.block_n as usize;
    let lane = black_box(lane_id());
    let row = lane / 4;
    // `offset`, in which the mask of a row below 8 is its number. Further vec16s are in places that differ in bits which are 0 in the
    // rest, and rows 8 below in the same places.
    let first = warp_base(smem, config)
        + row * row_bytes(columns)
        + row * VEC16_BYTES
        + lane % 4 * F32_BYTES;
    for register in (0..S_REGS).step_by(2) {
        let vec16 = (col(register) as usize / VEC16_ELEMS) as u32;
        let from = (first ^ vec16 * VEC16_BYTES) + below(register) as u32 * row_bytes(columns);
        let [a, b] = E::widen_pair(shared::load_bits(from));
        scores[register] += a;
        scores[register + 1] += b;
    }
}
