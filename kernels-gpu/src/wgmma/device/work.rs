//! Handing out tiles: the leading block's producer draws tile numbers and announces them to the cluster.
//!
//! An announcement stays in its slot until every reader is done with the tile, so that nobody keeps it in
//! registers.

use cuda_std::thread::grid_dim_x;
use cuda_std::warp::uniform;
use cuda_std::{cluster, global, mbarrier, shared};

use crate::barriers::Barriers;
use crate::config::wgmma::{WORK_BYTES, WORK_SLOTS, WgmmaTile};
use crate::pipeline::Ring;
use crate::tile::opaque;
use crate::wgmma::schedule::{Schedule, Tile};

/// Rank of the block that draws tiles.
const LEADER: u32 = 0;

/// Words of a slot: a tile, its last word one above `head_kv`; all zero for the end.
fn message(schedule: &Schedule, number: u32) -> [u32; 4] {
    if number <= schedule.last {
        let tile = schedule.get(number);
        [tile.super_block, tile.head, tile.batch, tile.head_kv + 1]
    } else {
        [0; 4]
    }
}

/// One consumer warp's, or the producer thread's, place among the announcements.
pub struct Inbox {
    slots: u32,
    ring: Ring,
    /// Blocks of the cluster.
    cluster: u32,
}

impl Inbox {
    #[inline(always)]
    pub fn new(slots: u32, barriers: &Barriers, cluster: u32) -> Self {
        Self {
            slots,
            ring: Ring::consumer(barriers.work_full, barriers.work_empty, WORK_SLOTS),
            cluster,
        }
    }

    /// Waits for the next announcement. Returns whether it is a tile, the same uniform value in every lane.
    ///
    /// # Safety
    /// All lanes of the warp reach the same call.
    #[inline(always)]
    pub unsafe fn wait(&mut self) -> bool {
        // SAFETY: forwarded to the caller.
        unsafe {
            self.wait_full();
            uniform(self.read()[3]) != 0
        }
    }

    /// The announced tile, the same uniform values in every lane.
    ///
    /// # Safety
    /// As [`Self::wait`], which has returned true.
    #[inline(always)]
    pub unsafe fn tile(&self) -> Tile {
        // SAFETY: forwarded to the caller; the slot is full.
        unsafe {
            let [super_block, head, batch, above_head_kv] = self.read();
            Tile {
                super_block: uniform(super_block),
                head: uniform(head),
                batch: uniform(batch),
                head_kv: uniform(above_head_kv) - 1,
            }
        }
    }

    /// As [`Self::wait`] and [`Self::tile`], for the producer thread.
    ///
    /// # Safety
    /// The producer thread calls it.
    #[inline(always)]
    pub unsafe fn wait_alone(&mut self) -> Option<Tile> {
        // SAFETY: forwarded to the caller.
        unsafe {
            self.wait_full();
            let [super_block, head, batch, above_head_kv] = self.read();
            above_head_kv.checked_sub(1).map(|head_kv| Tile {
                super_block,
                head,
                head_kv,
                batch,
            })
        }
    }

    /// This reader is done with the slot, if `condition` holds, which it does for one lane of a warp.
    ///
    /// # Safety
    /// Once for each announcement.
    #[inline(always)]
    pub unsafe fn release(&mut self, condition: bool) {
        // SAFETY: forwarded to the caller.
        unsafe { mbarrier::arrive_at_if(condition, self.ring.empty(), LEADER) };
        self.ring.advance();
    }

    #[inline(always)]
    unsafe fn wait_full(&self) {
        // SAFETY: forwarded to the caller.
        unsafe {
            if self.cluster == 1 {
                self.ring.wait_full();
            } else {
                self.ring.wait_published();
            }
        }
    }

    #[inline(always)]
    unsafe fn read(&self) -> [u32; 4] {
        // SAFETY: inside the slots.
        unsafe { shared::load4_bits(self.slots + self.ring.stage * WORK_BYTES) }
    }
}

/// Announces a block's first tile to itself: the clusters start with one each, which needs no draw.
///
/// # Safety
/// One thread of the block calls it, with its cluster's number, after initialising the barriers and before any
/// other thread uses them.
#[inline(always)]
pub unsafe fn announce_first(slots: u32, barriers: &Barriers, schedule: &Schedule, cluster: u32) {
    // SAFETY: forwarded to the caller.
    unsafe {
        shared::store4_bits(slots, message(schedule, cluster));
        mbarrier::arrive_if(true, barriers.work_full);
    }
}

/// The leader's side: draws numbers and fills slots.
pub struct Dispatcher<'a> {
    pub schedule: &'a Schedule,
    pub tile: &'a WgmmaTile,
    /// Global address of the counter: 0 before the launch, and again after it.
    pub counter: u64,
}

impl Dispatcher<'_> {
    /// Draws the next tile and announces it, or the end, to every block of the cluster, in the slot after the one
    /// that `inbox` reads.
    ///
    /// Every cluster draws until it gets a number past the end. That makes as many draws as tiles, after which
    /// the counter wraps to 0 for the next launch.
    ///
    /// # Safety
    /// `counter` is a live allocation that no concurrent launch uses; called by the leader's producer thread, once
    /// for each tile.
    #[inline(always)]
    pub unsafe fn announce_next(&self, inbox: &Inbox) {
        let schedule = self.schedule;
        // SAFETY: forwarded to the caller.
        let drawn = unsafe { global::fetch_increment(self.counter, opaque(schedule.last)) };
        let message = message(schedule, grid_dim_x() / self.tile.cluster + drawn);
        let next = inbox.ring.next_as_producer();
        let slot = inbox.slots + next.stage * WORK_BYTES;
        // SAFETY: the slot is empty after the wait; all blocks exit together.
        unsafe {
            next.wait_empty();
            shared::store4_bits(slot, message);
            mbarrier::arrive_if(true, next.full());
            let mut rank = LEADER + 1;
            while rank < self.tile.cluster {
                cluster::store4(slot, rank, message);
                mbarrier::arrive_publish(next.full(), rank);
                rank += 1;
            }
        }
    }
}

/// Whether this block draws for its cluster.
#[inline(always)]
pub fn leads(rank: u32) -> bool {
    rank == LEADER
}
