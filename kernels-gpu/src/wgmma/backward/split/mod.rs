//! Backward on Hopper where a thread has no room for two sums: two kernels, and dS between them in a workspace.
//!
//! The first owns 64 keys and passes over the queries, two warpgroups for the same keys; the second multiplies the dS that
//! it left with K. Every product is computed once, and every sum by one thread in one order.
//!
//! ```text
//! P warpgroup     S = K Qᵀ    P = 2^(S − lse)          dV += P dO
//!                                 ↓ f16, or three bytes an element, through shared memory
//! dS warpgroup    dP = V dOᵀ  dS = P ∘ (dP − delta)    dK += dS Q
//!                                 ↓ tiles of 64 × 64, through the workspace
//! second kernel                                        dQ += dS K
//! ```
//!
//! A warpgroup issues its sum's product and then the next block's scores: while it computes P, or dS, tensor cores have the
//! other one's products.
//!
//! dS is rounded to f16 times 2^−κ, with the κ of its query head, as in kernels that do not split
//! ([`exponent`](crate::backward::exponent)).
//!
//! | barrier | completes when |
//! |---|---|
//! | `kept` | K and V are in shared memory |
//! | full and empty of a stage | Q with its lse and delta, or dO, is there; both warpgroups have read it |
//! | full and empty of P | a block's P is in shared memory; the dS warpgroup has read it |
//!
//! | file | holds |
//! |---|---|
//! | `probabilities.rs` | the P warpgroup |
//! | `differences.rs` | the dS warpgroup |
//! | `passed.rs` | P between them |
//! | `shared.rs` | what both have: barriers, the order of blocks |
//! | `sums.rs` | the sums of dk and dv between the parts of a unit |
//! | `queries.rs` | the second kernel |

mod differences;
mod passed;
mod probabilities;
mod queries;
mod shared;
mod sums;

pub use queries::{SplitQueriesKernel, queries};

use cuda_std::shared::dynamic_base;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, sync_warp};
use cuda_std::wgmma::InFlight;
use cuda_std::{grid, tma, warpgroup};

use self::shared::Shared;
use super::producer;
use super::tile::Tile;
use super::traits::BackwardKernel;
use crate::abi::BackwardParams;
use crate::backward::side::KeepKeys;
use crate::config::wgmma_backward_split::SplitKeysConfig;
use crate::layout::ds_tile;
use crate::modifiers::NoModifiers;
use crate::tile::ds_tiles::DsTiles;
use crate::tile::grid::divide;
use crate::units::HALF_BYTES;
use crate::wgmma::tensor_map::parameter;

/// One instance of the kernel of dk and dv.
pub trait SplitKeysKernel<const S_REGS: usize, const P_REGS: usize, const SUM_REGS: usize>:
    BackwardKernel<S_REGS, P_REGS, SUM_REGS, Side = KeepKeys>
{
    const SPLIT: SplitKeysConfig;
}

/// The extents of the chunk's dS.
#[inline(always)]
fn ds_tiles(params: &BackwardParams) -> DsTiles {
    ds_tiles_of_unit(params).of_part(&params.ds)
}

/// The extents of a whole unit's.
#[inline(always)]
fn ds_tiles_of_unit(params: &BackwardParams) -> DsTiles {
    DsTiles::new(&params.attention, ds_tile::ROWS, ds_tile::ROWS, HALF_BYTES)
}

/// The kernel of dk and dv.
///
/// # Safety
/// `params` and the tensor maps describe the same live allocations, and the workspace holds the chunk's dS; the launch has a
/// block for each tile of the chunk, and the instance's block size and shared memory.
#[inline(always)]
pub unsafe fn keys<
    K,
    const PRODUCER_REGISTERS: u32,
    const CONSUMER_REGISTERS: u32,
    const S_REGS: usize,
    const P_REGS: usize,
    const SUM_REGS: usize,
>(
    params: &BackwardParams,
) where
    K: SplitKeysKernel<S_REGS, P_REGS, SUM_REGS>,
    [f32; S_REGS]: InFlight,
    [f32; SUM_REGS]: InFlight,
{
    let config = &K::SPLIT;
    let smem = dynamic_base();
    let shared = Shared::new(config, smem);
    let tile = Tile::<KeepKeys>::at(params, &NoModifiers, smem + config.blocks.tile_offset());
    let tiles_of_unit = params.attention.seq_kv.div_ceil(config.blocks.block_m());
    // Two warps, so that one's work hides the other's.
    if thread_idx_x() == WARP_SIZE {
        tma::prefetch(K::address::<{ parameter::K }>());
        tma::prefetch(K::address::<{ parameter::V }>());
        tma::prefetch(K::address::<{ parameter::Q }>());
        tma::prefetch(K::address::<{ parameter::D_O }>());
        shared.init(config);
    } else if thread_idx_x() == 0 {
        let first = params.ds.first_unit * tiles_of_unit as u64;
        tile.write(first as u32 + block_idx_x(), &config.blocks);
        let chunk = &params.ds;
        let blocks = (chunk.first_q_block, chunk.end_q_block);
        tile.restrict(blocks, (chunk.first_head, chunk.end_head));
    }
    // Lengths were there before the launches of this pass began.
    grid::wait_for_launch_before();
    sync_threads();
    // Tiles beyond a sequence's rows: the whole block leaves.
    if !tile.has_rows() {
        return;
    }
    // The branches below are taken by whole warpgroups.
    let warpgroup = warpgroup::index();
    if warpgroup == 0 {
        warpgroup::release_registers::<PRODUCER_REGISTERS>();
        producer::produce_one::<K, K::Element, _, _>(&tile, &shared.blocks, &config.blocks, smem);
        sync_warp();
    } else {
        warpgroup::acquire_registers::<CONSUMER_REGISTERS>();
        if warpgroup == 1 {
            probabilities::consume::<K, S_REGS, P_REGS, SUM_REGS>(&tile, &shared, smem);
        } else {
            let (unit, _) = divide(block_idx_x(), tiles_of_unit);
            differences::consume::<K, S_REGS, P_REGS, SUM_REGS>(&tile, &shared, smem, unit as u64);
        }
    }
}
