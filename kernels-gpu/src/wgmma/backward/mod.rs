//! Backward on Hopper: one kernel, built twice.
//!
//! A tile keeps 64 rows a warpgroup of one side and passes over the other ([`Side`]), as the fp32 kernels do: K and V over
//! the queries for dk and dv, Q and dO over the keys for dq. A gradient is summed by one thread in one order. A block takes one
//! tile after the other, as many as it gets, so that operands of the next come while gradients of the present one are stored.
//!
//! ```text
//! S  = A aᵀ      A, B kept in shared memory or registers; a, b by TMA, block by block
//! dP = B bᵀ      issued under S; P = 2^(S − lse) runs under it
//! dB += P b      dV alone, issued before dS = P ∘ (dP − delta) is computed
//! dA += dS a     dQ or dK
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `tiles.rs` | which tile a block takes next |
//! | `tile.rs` | which rows a tile keeps and which blocks pass |
//! | `barriers.rs` | the mbarriers |
//! | `producer.rs` | the producer: TMA loads; lse, delta and biases of passing queries |
//! | `consumer.rs` | a consumer warpgroup: the products |
//! | `fused.rs` | a consumer that adds up dq too: its blocks overlap |
//! | `pairs.rs` | from products to P and dS |
//! | `scaled_sum.rs` | sums where dS is rounded times a power of two |
//! | `dq.rs` | dq of a kernel that keeps keys: dS through shared memory, sums in global memory |
//! | `walk.rs`, `modified.rs` | with modifiers: which blocks pass, as the producer tells; what becomes of their pairs |
//! | `biases.rs` | biases that are copied beside the queries that pass |
//! | `epilogue.rs`, `gradient.rs` | the gradients to global memory |
//! | `traits.rs` | one instance as a type |
//! | `split/` | two kernels with dS between them, for a head_dim beyond 128 |

// Most operations of an unsafe function here need exactly the conditions under its `# Safety`. Where more has to be
// shown, an unsafe block says what.
#![allow(unsafe_op_in_unsafe_fn)]

mod barriers;
mod biases;
mod consumer;
mod dq;
mod epilogue;
mod fused;
mod gradient;
mod modified;
mod pairs;
mod producer;
mod scaled_sum;
pub mod split;
mod tile;
mod tiles;
pub mod traits;
mod walk;

use core::marker::PhantomData;

use cuda_std::thread::{sync_threads, thread_idx_x};
use cuda_std::warp::sync_warp;
use cuda_std::wgmma::InFlight;
use cuda_std::{grid, shared, tma, warpgroup};

use self::barriers::Barriers;
use self::tiles::Tiles;
use self::traits::BackwardKernel;
use crate::abi::BackwardParams;
use crate::wgmma::tensor_map::parameter;

/// The whole kernel: a block that takes one tile after the other, split into producer and consumers.
///
/// # Safety
/// `params` and the tensor maps describe the same live allocations, of which no concurrent launch uses the count of tiles; the
/// launch has no more blocks than tiles, and the instance's block size and shared memory.
#[inline(always)]
pub unsafe fn backward<
    K,
    const PRODUCER_REGISTERS: u32,
    const CONSUMER_REGISTERS: u32,
    const S_REGS: usize,
    const P_REGS: usize,
    const SUM_REGS: usize,
>(
    params: &BackwardParams,
    modifiers: &K::Modifiers,
) where
    K: BackwardKernel<S_REGS, P_REGS, SUM_REGS>,
    [f32; S_REGS]: InFlight,
    [f32; SUM_REGS]: InFlight,
{
    let config = &K::CONFIG;
    let smem = shared::dynamic_base();
    let barriers = Barriers::new(config, smem + config.barriers_offset());
    let tiles = Tiles::<K::Side, K::Modifiers> {
        params,
        modifiers,
        config,
        barriers,
        words: smem + config.tile_offset(),
        side: PhantomData,
    };
    if thread_idx_x() == 0 {
        tma::prefetch(K::address::<{ parameter::K }>());
        tma::prefetch(K::address::<{ parameter::V }>());
        tma::prefetch(K::address::<{ parameter::Q }>());
        tma::prefetch(K::address::<{ parameter::D_O }>());
        barriers.init::<K::Side>(config);
    }
    grid::wait_for_launch_before();
    sync_threads();
    // The branches below are taken by whole warpgroups.
    let warpgroup = warpgroup::index();
    if warpgroup == 0 {
        warpgroup::release_registers::<PRODUCER_REGISTERS>();
        producer::produce::<K, K::Element, K::Side, K::Modifiers>(&tiles, smem);
        sync_warp();
    } else {
        warpgroup::acquire_registers::<CONSUMER_REGISTERS>();
        consumer::consume::<K, S_REGS, P_REGS, SUM_REGS>(&tiles, smem, warpgroup - 1);
    }
}
