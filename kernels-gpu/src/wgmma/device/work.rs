//! Handing out tiles: the leading block's producer draws tile numbers and announces them to the cluster.

use cuda_std::warp::uniform;
use cuda_std::{cluster, global, mbarrier, shared};

use crate::barriers::Barriers;
use crate::config::wgmma::{WORK_BYTES, WORK_SLOTS};
use crate::pipeline::Ring;
use crate::wgmma::schedule::{Schedule, Tile};

/// One warp's (or the producer thread's) view of the announcements.
pub struct Inbox {
    slots: u32,
    ring: Ring,
}

/// What stands in a slot.
pub type Announcement = Option<Tile>;

impl Inbox {
    #[inline(always)]
    pub fn new(slots: u32, barriers: &Barriers) -> Self {
        Self {
            slots,
            ring: Ring::consumer(barriers.work_full, barriers.work_empty, WORK_SLOTS),
        }
    }

    /// The next announcement, for a consumer warp: the same uniform values in every lane.
    ///
    /// # Safety
    /// All lanes of the warp reach the same call.
    #[inline(always)]
    pub unsafe fn receive(&mut self, lane: u32) -> Announcement {
        // SAFETY: the slot is full after the wait, and stays so until every reader has arrived.
        unsafe {
            self.ring.wait_published();
            let [super_block, head, batch, valid] = self.read();
            let tile = Tile {
                super_block: uniform(super_block),
                head: uniform(head),
                batch: uniform(batch),
            };
            let valid = uniform(valid) != 0;
            mbarrier::arrive_at_if(lane == 0, self.ring.empty(), LEADER);
            self.ring.advance();
            valid.then_some(tile)
        }
    }

    /// The next announcement, for the producer thread.
    ///
    /// # Safety
    /// One thread of the block calls it.
    #[inline(always)]
    pub unsafe fn receive_as_producer(&mut self) -> Announcement {
        // SAFETY: as in `receive`.
        unsafe {
            self.ring.wait_published();
            let [super_block, head, batch, valid] = self.read();
            mbarrier::arrive_at_if(true, self.ring.empty(), LEADER);
            self.ring.advance();
            (valid != 0).then_some(Tile {
                super_block,
                head,
                batch,
            })
        }
    }

    #[inline(always)]
    unsafe fn read(&self) -> [u32; 4] {
        // SAFETY: inside the slots.
        unsafe { shared::load4_words(self.slots + self.ring.stage * WORK_BYTES) }
    }
}

/// Rank of the block that draws tiles.
const LEADER: u32 = 0;

/// The leader's side: draws numbers and fills slots.
pub struct Dispatcher {
    slots: u32,
    ring: Ring,
    /// Global address of the counter: 0 before the launch, and again after it.
    counter: u64,
    /// Clusters of the launch; the first tile of each needs no draw.
    clusters: u32,
    /// Blocks of a cluster.
    cluster: u32,
}

impl Dispatcher {
    #[inline(always)]
    pub fn new(slots: u32, barriers: &Barriers, counter: u64, clusters: u32, cluster: u32) -> Self {
        Self {
            slots,
            ring: Ring::producer(barriers.work_full, barriers.work_empty, WORK_SLOTS),
            counter,
            clusters,
            cluster,
        }
    }

    /// Draws the next number: one atomic, not waited for before the number is used.
    ///
    /// Every cluster draws until it gets a number past the end. That makes `count` draws in all, after which
    /// the counter wraps to 0 for the next launch.
    ///
    /// # Safety
    /// `counter` is a live allocation that no concurrent launch uses.
    #[inline(always)]
    pub unsafe fn draw(&self, schedule: &Schedule) -> u32 {
        // SAFETY: forwarded to the caller.
        unsafe { self.clusters + global::fetch_increment(self.counter, schedule.count - 1) }
    }

    /// Announces tile `number`, or the end, to every block of the cluster.
    ///
    /// # Safety
    /// Called by the leader's producer thread.
    #[inline(always)]
    pub unsafe fn announce(&mut self, schedule: &Schedule, number: u32) {
        let message = if number < schedule.count {
            let tile = schedule.get(number);
            [tile.super_block, tile.head, tile.batch, 1]
        } else {
            [0; 4]
        };
        // SAFETY: the slot is empty after the wait; all blocks exit together.
        unsafe {
            self.ring.wait_empty();
            let slot = self.slots + self.ring.stage * WORK_BYTES;
            let mut rank = 0;
            while rank < self.cluster {
                cluster::store4(slot, rank, message);
                mbarrier::arrive_publish(self.ring.full(), rank);
                rank += 1;
            }
        }
        self.ring.advance();
    }
}

/// Whether this block draws for its cluster.
#[inline(always)]
pub fn leads(rank: u32) -> bool {
    rank == LEADER
}
