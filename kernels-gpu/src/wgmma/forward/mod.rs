//! Forward.
//!
//! | file | holds |
//! |---|---|
//! | `producer.rs` | the producer: `setup`, `load` |
//! | `consumer.rs` | a consumer warpgroup: `setup`, `compute`, `finish` |
//! | `gemm.rs`, `step.rs`, `softmax.rs`, `softcap.rs`, `mask.rs` | what `compute` does with a block of keys |
//! | `recompute.rs` | recomputes a warp's scores that outgrew a stale maximum |
//! | `epilogue.rs`, `non_finite.rs` | what `finish` does |
//! | `blocks.rs`, `lanes.rs`, `traits.rs` | which key blocks, which elements, which instance |
//! | `block_walk.rs`, `modified.rs` | which key blocks with modifiers, and `compute` of those |
//! | `keep_mask.rs` | dropout's keep mask, made by warps beside the consumers |

// Most operations of an unsafe function here need exactly the conditions under its `# Safety`. Where more has to be
// shown, an unsafe block says what.
#![allow(unsafe_op_in_unsafe_fn)]

mod biases;
mod block_walk;
mod blocks;
mod consumer;
mod epilogue;
mod gemm;
mod keep_mask;
pub(crate) mod lanes;
pub(crate) mod mask;
#[allow(clippy::needless_range_loop)]
mod modified;
mod non_finite;
mod producer;
mod recompute;
mod softcap;
mod softmax;
mod step;
pub mod traits;

use core::hint::assert_unchecked;

use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::warp::{elect, sync_warp, uniform, warp_id};
use cuda_std::wgmma::InFlight;
use cuda_std::{cluster, grid, shared, tma, warpgroup};

use super::pack_gqa::PackGqa;
use super::scheduler::tile_pipe::TileScheduler;
use super::scheduler::{Schedule, TileCoord};
use super::tensor_map::parameter;
use crate::abi::{CachePages, ForwardParams};
use crate::config::wgmma::{KEEP_REGISTERS, WgmmaConfig};
use crate::modifiers::{Modifiers, Place};
use crate::tile::sequence::Sequence;
use crate::wgmma::barriers::Barriers;
use traits::ForwardKernel;

/// A launch as every thread sees it.
#[derive(Clone, Copy)]
pub struct Launch<'a> {
    pub params: &'a ForwardParams,
    pub schedule: &'a Schedule,
    /// Device address of the launch's [`Workspace`](super::tile_list::Workspace).
    pub workspace: u64,
    /// The cache that k and v are, of a kernel for one.
    pub pages: &'a CachePages,
    /// Start of dynamic shared memory.
    smem: u32,
    barriers: Barriers,
    /// Rank of this block in its cluster.
    rank: u32,
}

impl Launch<'_> {
    /// Its tiles, of a kernel of shape `config`.
    #[inline(always)]
    fn tile_scheduler<'a>(&'a self, config: &'a WgmmaConfig) -> TileScheduler<'a> {
        TileScheduler {
            schedule: self.schedule,
            attention: &self.params.attention,
            pages: self.pages,
            config,
            workspace: self.workspace,
        }
    }

    /// How heads share the rows of tiles.
    #[inline(always)]
    fn pack_gqa(&self) -> PackGqa {
        self.schedule.pack_gqa
    }

    /// The query head that a row of tile `work_tile` belongs to.
    #[inline(always)]
    fn query_head(&self, work_tile: TileCoord, row: u32) -> u32 {
        let pack_gqa = self.pack_gqa();
        work_tile.head_kv * pack_gqa.group() + work_tile.head + pack_gqa.head(row)
    }

    /// The head of `sequence` that tile `work_tile` belongs to, where a tile has one, as those with modifiers have.
    #[inline(always)]
    fn place(&self, work_tile: TileCoord, sequence: &Sequence) -> Place {
        let head = self.query_head(work_tile, 0);
        Place::new(
            sequence,
            work_tile.batch,
            head,
            self.params.attention.heads_q,
        )
    }

    /// Whether a row of tile `work_tile` has a query and a head.
    #[inline(always)]
    fn has_row(&self, work_tile: TileCoord, sequence: &Sequence, row: u32) -> bool {
        let pack_gqa = self.pack_gqa();
        pack_gqa.query(row) < sequence.seq_q
            && work_tile.head + pack_gqa.head(row) < pack_gqa.group()
    }
}

/// The whole kernel: splits the block into producer and consumers.
///
/// # Safety
/// `params`, the schedule and the tensor maps describe live allocations, those of a varlen launch if and only if the
/// instance is for one; `schedule` is one that [`Schedule`] made; `workspace` is live, used by no concurrent launch,
/// with a semaphore of 0 and, in a listed launch, the launch's list of tiles; `pages` describes the cache of an instance for
/// one, whose lens have been checked; and the launch has the instance's block size, cluster size and shared memory.
#[inline(always)]
pub unsafe fn forward<
    K,
    const PRODUCER_REGISTERS: u32,
    const CONSUMER_REGISTERS: u32,
    const S_REGS: usize,
    const P_REGS: usize,
    const O_REGS: usize,
>(
    params: &ForwardParams,
    schedule: &Schedule,
    workspace: u64,
    modifiers: &K::Modifiers,
    pages: &CachePages,
) where
    K: ForwardKernel<S_REGS, P_REGS, O_REGS>,
    [f32; S_REGS]: InFlight,
    [f32; O_REGS]: InFlight,
{
    let config = &K::CONFIG;
    // SAFETY: the caller vouches for both. Stated here, so that no tile tests them, nor keeps them in predicates.
    unsafe {
        assert_unchecked(config.varlen || !params.attention.lengths.has_cu_seqlens());
        assert_unchecked(schedule.pack_gqa.is_possible());
    }
    let smem = shared::dynamic_base();
    let launch = Launch {
        params,
        schedule,
        workspace,
        pages,
        smem,
        barriers: Barriers::new(config, smem + config.barriers_offset()),
        rank: if config.cluster == 1 {
            0
        } else {
            cluster::rank()
        },
    };

    // SAFETY: the branches below are taken by whole warpgroups.
    unsafe {
        if thread_idx_x() == 0 {
            tma::prefetch(K::address::<{ parameter::Q }>());
            tma::prefetch(K::address::<{ parameter::K }>());
            tma::prefetch(K::address::<{ parameter::V }>());
            tma::prefetch(K::address::<{ parameter::O }>());
            let keep_warps = if modifiers.drops() {
                config.keep_warps
            } else {
                0
            };
            launch.barriers.init(config, keep_warps);
            if keep_warps > 0 {
                keep_mask::init_barriers(smem, config);
            }
        }
        // What a dense launch without modifiers reads is there when it begins.
        if config.varlen || !K::Modifiers::IS_NONE {
            grid::wait_for_launch_before();
        }
        meet(config.cluster);
        let warpgroup = warpgroup::index();
        if warpgroup == 0 {
            warpgroup::release_registers::<PRODUCER_REGISTERS>();
            // An elected thread's copies need no loop over the lanes that are there (`elect`), which counts where there are many of
            // them. Others gain nothing from it: 0.997 of before, by 18 cells.
            if config.cached {
                let warp = uniform(warp_id());
                if warp == 0 && elect() {
                    producer::produce::<K, K::Modifiers, true, false>(&launch, config, modifiers);
                } else if warp == 1 && elect() {
                    producer::produce::<K, K::Modifiers, false, true>(&launch, config, modifiers);
                }
            } else if modifiers.drops() && uniform(warp_id()) > 0 {
                keep_mask::make(&launch, config, modifiers);
            } else if thread_idx_x() == 0 {
                producer::produce::<K, K::Modifiers, true, true>(&launch, config, modifiers);
            }
            // The barrier below wants whole warps.
            sync_warp();
        } else if config.keep_warpgroups() > 0 && warpgroup > config.consumers {
            warpgroup::release_registers::<KEEP_REGISTERS>();
            if modifiers.drops() {
                keep_mask::make(&launch, config, modifiers);
            }
        } else {
            warpgroup::acquire_registers::<CONSUMER_REGISTERS>();
            consumer::consume::<K, S_REGS, P_REGS, O_REGS>(&launch, modifiers, warpgroup - 1);
        }
        // A block must outlive arrivals and copies from the others.
        if config.cluster > 1 {
            cluster::sync();
        }
    }
}

/// A barrier of the whole cluster.
///
/// # Safety
/// All of its threads reach the same call.
#[inline(always)]
unsafe fn meet(cluster_blocks: u32) {
    if cluster_blocks > 1 {
        cluster::sync();
    } else {
        sync_threads();
    }
}
