//! The kernel itself.

mod blocks;
mod consumer;
mod epilogue;
mod gemm;
mod lanes;
mod mask;
pub mod policy;
mod producer;
mod repair;
mod rescore;
mod softmax;
mod step;
mod work;

use core::hint::assert_unchecked;

use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::warp::sync_warp;
use cuda_std::wgmma::InFlight;
use cuda_std::{cluster, shared, tma, warpgroup};

use super::gqa::Packing;
use super::schedule::{Schedule, Tile};
use super::tensor_map::parameter;
use crate::abi::ForwardParams;
use crate::barriers::Barriers;
use crate::tile::sequence::Sequence;
use policy::Policy;

/// What a launch gives every thread.
#[derive(Clone, Copy)]
pub struct Launch<'a> {
    pub params: &'a ForwardParams,
    pub schedule: &'a Schedule,
    /// Device address of the launch's [`Workspace`](super::tile_list::Workspace).
    pub workspace: u64,
    /// Start of dynamic shared memory.
    smem: u32,
    barriers: Barriers,
    /// Of this block in its cluster.
    rank: u32,
}

impl Launch<'_> {
    /// How heads share the rows of tiles.
    #[inline(always)]
    fn packing(&self) -> Packing {
        self.schedule.packing
    }

    /// The query head that a row of tile `place` belongs to.
    #[inline(always)]
    fn query_head(&self, place: Tile, row: u32) -> u32 {
        let packing = self.packing();
        place.head_kv * packing.group() + place.head + packing.head(row)
    }

    /// Whether a row of tile `place` has a query and a head.
    #[inline(always)]
    fn has_row(&self, place: Tile, sequence: &Sequence, row: u32) -> bool {
        let packing = self.packing();
        packing.query(row) < sequence.seq_q && place.head + packing.head(row) < packing.group()
    }
}

/// The whole kernel: splits the block into producer and consumers.
///
/// # Safety
/// `params`, the schedule and the tensor maps describe live allocations, those of a varlen launch if and only if the tile
/// is for one; `schedule` is one that [`Schedule`] made; `workspace` is live, used by no concurrent launch, with a counter
/// of 0 and, in a varlen launch, the launch's list of tiles; and the launch has the instance's block size, cluster size and
/// shared memory.
#[inline(always)]
pub unsafe fn forward<
    K,
    const PRODUCER_REGISTERS: u32,
    const CONSUMER_REGISTERS: u32,
    const S: usize,
    const P: usize,
    const O: usize,
>(
    params: &ForwardParams,
    schedule: &Schedule,
    workspace: u64,
) where
    K: Policy<S, P, O>,
    [f32; S]: InFlight,
    [f32; O]: InFlight,
{
    let tile = &K::TILE;
    // SAFETY: forwarded to the caller. What is known here is not asked, and kept in predicates, at every tile.
    unsafe {
        assert_unchecked(tile.varlen || !params.attention.lengths.is_packed());
        assert_unchecked(schedule.packing.is_possible());
    }
    let smem = shared::dynamic_base();
    let launch = Launch {
        params,
        schedule,
        workspace,
        smem,
        barriers: Barriers::new(tile, smem + tile.barriers_offset()),
        rank: if tile.cluster == 1 {
            0
        } else {
            cluster::rank()
        },
    };

    // SAFETY: forwarded to the caller. The branches below are taken by whole warpgroups.
    unsafe {
        if thread_idx_x() == 0 {
            tma::prefetch(K::address::<{ parameter::Q }>());
            tma::prefetch(K::address::<{ parameter::K }>());
            tma::prefetch(K::address::<{ parameter::V }>());
            tma::prefetch(K::address::<{ parameter::O }>());
            launch.barriers.init(tile);
            let slots = smem + tile.work_offset();
            let number = block_idx_x() / tile.cluster;
            work::announce_first(slots, &launch.barriers, schedule, workspace, tile, number);
        }
        meet(tile.cluster);
        let warpgroup = warpgroup::index();
        if warpgroup == 0 {
            warpgroup::release_registers::<PRODUCER_REGISTERS>();
            if thread_idx_x() == 0 {
                producer::produce::<K>(&launch, tile);
            }
            // The barrier below wants whole warps.
            sync_warp();
        } else {
            warpgroup::acquire_registers::<CONSUMER_REGISTERS>();
            consumer::consume::<K, S, P, O>(&launch, warpgroup - 1);
        }
        // A block must outlive arrivals and copies from the others.
        if tile.cluster > 1 {
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
    // SAFETY: forwarded to the caller.
    unsafe {
        if cluster_blocks > 1 {
            cluster::sync();
        } else {
            sync_threads();
        }
    }
}
