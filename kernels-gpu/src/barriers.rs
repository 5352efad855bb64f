//! Every barrier of the Hopper kernels, named for its event.

use cuda_std::{mbarrier, named_barrier};

use crate::config::wgmma::{WARPGROUP, WORK_SLOTS, WgmmaTile};

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
    /// A tile has been announced.
    pub work_full: u32,
    /// All warps of the cluster that want it have read the announcement.
    pub work_empty: u32,
}

impl Barriers {
    #[inline(always)]
    pub fn new(tile: &WgmmaTile, base: u32) -> Self {
        let at = |number: u32| base + number * mbarrier::BYTES;
        let (q, k, v) = (tile.q_stages, tile.k_stages, tile.v_stages);
        Self {
            q_full: at(0),
            q_empty: at(q),
            k_full: at(2 * q),
            k_empty: at(2 * q + k),
            v_full: at(2 * (q + k)),
            v_empty: at(2 * (q + k) + v),
            work_full: at(2 * (q + k + v)),
            work_empty: at(2 * (q + k + v) + WORK_SLOTS),
        }
    }

    /// Initialises all of them.
    ///
    /// # Safety
    /// One thread of the block calls it, before any other uses a barrier; a barrier of the cluster follows.
    #[inline(always)]
    pub unsafe fn init(&self, tile: &WgmmaTile) {
        /// One arrival, the producer's, beside the bytes.
        const PRODUCER: u32 = 1;
        const WARPS: u32 = 4;
        let consumers = WARPS * tile.consumers;
        let ring = |full: u32, empty: u32, stages: u32, readers: u32| {
            let mut stage = 0;
            while stage < stages {
                // SAFETY: forwarded to the caller.
                unsafe {
                    mbarrier::init(full + stage * mbarrier::BYTES, PRODUCER);
                    mbarrier::init(empty + stage * mbarrier::BYTES, readers);
                }
                stage += 1;
            }
        };
        ring(self.q_full, self.q_empty, tile.q_stages, consumers);
        ring(
            self.k_full,
            self.k_empty,
            tile.k_stages,
            consumers * tile.cluster,
        );
        ring(
            self.v_full,
            self.v_empty,
            tile.v_stages,
            consumers * tile.cluster,
        );
        let readers = (consumers + PRODUCER) * tile.cluster;
        ring(self.work_full, self.work_empty, WORK_SLOTS, readers);
        mbarrier::fence_init();
    }
}

/// Consumer warpgroups that the hardware barriers are numbered for.
const MAX_CONSUMERS: u32 = 4;

/// Hardware barriers of a consumer warpgroup, by its index. Barrier 0 is the whole block's.
#[derive(Clone, Copy)]
pub struct Turns {
    warpgroup: u32,
    /// Consumer warpgroups; known at compile time, once inlined.
    consumers: u32,
}

impl Turns {
    /// `GEMM_TURN + w`: warpgroup `w` may issue its GEMMs.
    const GEMM_TURN: u32 = 1;
    /// `GROUP + w`: the four warps of warpgroup `w` are together.
    const GROUP: u32 = Self::GEMM_TURN + MAX_CONSUMERS;
    /// One warpgroup hands the turn over, the next one waits for it.
    const TURN_THREADS: u32 = 2 * WARPGROUP;

    /// The turns of warpgroup `warpgroup` among `consumers`.
    #[inline(always)]
    pub fn new(warpgroup: u32, consumers: u32) -> Self {
        Self {
            warpgroup,
            consumers,
        }
    }

    /// Gives the first turn to warpgroup 0.
    ///
    /// # Safety
    /// All consumer warps reach the same call, before any turn.
    #[inline(always)]
    pub unsafe fn start(&self) {
        if self.warpgroup == self.consumers - 1 {
            // SAFETY: the whole warpgroup takes the branch.
            unsafe { named_barrier::arrive(Self::GEMM_TURN, Self::TURN_THREADS) }
        }
    }

    /// Waits for this warpgroup's turn to issue GEMMs.
    ///
    /// # Safety
    /// All warps of the group reach it; every [`Self::hand_over`] follows one.
    #[inline(always)]
    pub unsafe fn take(&self) {
        // SAFETY: forwarded to the caller.
        unsafe { named_barrier::sync(Self::GEMM_TURN + self.warpgroup, Self::TURN_THREADS) }
    }

    /// Gives the turn to the next warpgroup.
    ///
    /// # Safety
    /// As [`Self::take`].
    #[inline(always)]
    pub unsafe fn hand_over(&self) {
        let next = if self.warpgroup + 1 == self.consumers {
            0
        } else {
            self.warpgroup + 1
        };
        // SAFETY: forwarded to the caller.
        unsafe { named_barrier::arrive(Self::GEMM_TURN + next, Self::TURN_THREADS) }
    }

    /// Waits for the four warps of this warpgroup.
    ///
    /// # Safety
    /// All of them reach the same call.
    #[inline(always)]
    pub unsafe fn gather(&self) {
        // SAFETY: forwarded to the caller.
        unsafe { named_barrier::sync(Self::GROUP + self.warpgroup, WARPGROUP) }
    }
}
