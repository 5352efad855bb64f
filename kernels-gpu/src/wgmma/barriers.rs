//! Every barrier of the Hopper kernels, named for its event.

// Most operations of an unsafe function here need exactly the conditions under its `# Safety`.
#![allow(unsafe_op_in_unsafe_fn)]

use cuda_std::{mbarrier, named_barrier};

use crate::config::wgmma::{WARPGROUP, WARPS, WORK_STAGES, WgmmaConfig};
use crate::wgmma::pipeline::init_stages;

/// Addresses of the mbarriers; those of a ring's stages are consecutive.
#[derive(Clone, Copy)]
pub struct Barriers {
    /// Q of a tile is in shared memory.
    pub q_full: u32,
    /// All consumers are done with Q.
    pub q_empty: u32,
    pub k_full: u32,
    pub k_empty: u32,
    pub v_full: u32,
    pub v_empty: u32,
    /// A tile has been published.
    pub work_full: u32,
    /// All warps of the cluster that want it are done with the tile.
    pub work_empty: u32,
}

impl Barriers {
    #[inline(always)]
    pub fn new(config: &WgmmaConfig, base: u32) -> Self {
        let at = |number: u32| base + number * mbarrier::BYTES;
        let (q, k, v) = (config.q_stages, config.k_stages, config.v_stages);
        Self {
            q_full: at(0),
            q_empty: at(q),
            k_full: at(2 * q),
            k_empty: at(2 * q + k),
            v_full: at(2 * (q + k)),
            v_empty: at(2 * (q + k) + v),
            work_full: at(2 * (q + k + v)),
            work_empty: at(2 * (q + k + v) + WORK_STAGES),
        }
    }

    /// Initialises all of them, of a launch in which so many warps make a keep mask.
    ///
    /// # Safety
    /// One thread of the block calls it, before any other uses a barrier; a barrier of the cluster follows.
    #[inline(always)]
    pub unsafe fn init(&self, config: &WgmmaConfig, keep_warps: u32) {
        /// The producer's arrival, in addition to the bytes.
        const PRODUCER: u32 = 1;
        let consumers = WARPS * config.consumers;
        let pipeline = |full: u32, empty: u32, stages: u32, readers: u32| {
            init_stages([full, empty], stages, [PRODUCER, readers]);
        };
        pipeline(self.q_full, self.q_empty, config.q_stages, consumers);
        // Those who make a keep mask read which block a stage of K holds, and tiles.
        pipeline(
            self.k_full,
            self.k_empty,
            config.k_stages,
            consumers * config.cluster + keep_warps,
        );
        pipeline(
            self.v_full,
            self.v_empty,
            config.v_stages,
            consumers * config.cluster,
        );
        let readers = (consumers + config.producers()) * config.cluster + keep_warps;
        pipeline(self.work_full, self.work_empty, WORK_STAGES, readers);
        mbarrier::fence_init();
    }
}

/// Consumer warpgroups that the hardware barriers are numbered for.
const MAX_CONSUMERS: u32 = 4;

/// Hardware barriers of a consumer warpgroup, by its index. Barrier 0 is the whole block's.
#[derive(Clone, Copy)]
pub struct WarpSchedulerBarrier {
    warpgroup: u32,
    /// Consumer warpgroups; known at compile time, once inlined.
    consumers: u32,
}

impl WarpSchedulerBarrier {
    /// `WARP_SCHEDULER + w`: warpgroup `w` may issue its GEMMs.
    const WARP_SCHEDULER: u32 = 1;
    /// `WARPGROUP_SYNC + w`: the four warps of warpgroup `w` are together.
    const WARPGROUP_SYNC: u32 = Self::WARP_SCHEDULER + MAX_CONSUMERS;
    /// One warpgroup arrives, the next one waits.
    const WARP_SCHEDULER_THREADS: u32 = 2 * WARPGROUP;

    /// The barriers of warpgroup `warpgroup` among `consumers`.
    #[inline(always)]
    pub fn new(warpgroup: u32, consumers: u32) -> Self {
        Self {
            warpgroup,
            consumers,
        }
    }

    /// Lets warpgroup 0 issue first.
    ///
    /// # Safety
    /// All consumer warps reach the same call, before any [`Self::sync`].
    #[inline(always)]
    pub unsafe fn init(&self) {
        if self.warpgroup == self.consumers - 1 {
            // SAFETY: the whole warpgroup takes the branch.
            unsafe { named_barrier::arrive(Self::WARP_SCHEDULER, Self::WARP_SCHEDULER_THREADS) }
        }
    }

    /// Waits until this warpgroup may issue its GEMMs.
    ///
    /// # Safety
    /// All warps of the group reach it; every [`Self::arrive`] follows one.
    #[inline(always)]
    pub unsafe fn sync(&self) {
        named_barrier::sync(
            Self::WARP_SCHEDULER + self.warpgroup,
            Self::WARP_SCHEDULER_THREADS,
        )
    }

    /// Lets the next warpgroup issue its GEMMs.
    ///
    /// # Safety
    /// As [`Self::sync`].
    #[inline(always)]
    pub unsafe fn arrive(&self) {
        let next = if self.warpgroup + 1 == self.consumers {
            0
        } else {
            self.warpgroup + 1
        };
        named_barrier::arrive(Self::WARP_SCHEDULER + next, Self::WARP_SCHEDULER_THREADS)
    }

    /// Waits for the four warps of this warpgroup.
    ///
    /// # Safety
    /// All of them reach the same call.
    #[inline(always)]
    pub unsafe fn warpgroup_sync(&self) {
        named_barrier::sync(Self::WARPGROUP_SYNC + self.warpgroup, WARPGROUP)
    }
}
