//! Handing out tiles: the leading block's producer draws tile numbers and announces them to the cluster.
//!
//! An announcement stays in its slot until every reader is done with the tile, so that nobody keeps it in
//! registers.

use core::mem::offset_of;

use cuda_std::warp::uniform;
use cuda_std::{cluster, global, mbarrier, shared};

use crate::abi::AttentionParams;
use crate::barriers::Barriers;
use crate::config::wgmma::{WORK_PART_BYTES, WORK_SLOTS, WgmmaTile};
use crate::pipeline::Ring;
use crate::tile::sequence::Sequence;
use crate::tile::{opaque, opaque64};
use crate::wgmma::schedule::{Schedule, Tile};
use crate::wgmma::tile_list::{ListHeader, ListedTile, Workspace};

/// Rank of the block that draws tiles.
const LEADER: u32 = 0;

/// The header of the launch's list.
///
/// # Safety
/// `workspace` is that of a varlen launch.
#[inline(always)]
unsafe fn list_header(workspace: u64) -> ListHeader {
    // SAFETY: forwarded to the caller; nobody writes the list during the launch.
    bytemuck::must_cast(unsafe { global::load4_bits(workspace + Workspace::HEADER) })
}

/// First words of a slot: a tile, the last word one above `head_kv`; all zero for the end. In a varlen launch the
/// [`SequenceRows`](crate::abi::SequenceRows) of its sequence follow, those of the entry at the address given beside.
///
/// # Safety
/// `schedule` and `workspace` are the launch's.
#[inline(always)]
unsafe fn message(
    schedule: &Schedule,
    workspace: u64,
    tile: &WgmmaTile,
    number: u32,
) -> ([u32; 4], u64) {
    let entries = workspace + Workspace::ENTRIES;
    let (place, entry) = if tile.varlen {
        // SAFETY: forwarded to the caller.
        let header = unsafe { list_header(workspace) };
        if number >= header.tiles {
            return ([0; 4], NO_ENTRY);
        }
        let (place, offset) = schedule.get_listed(&header, number, |offset| {
            // SAFETY: forwarded to the caller; nobody writes the list during the launch.
            bytemuck::must_cast(unsafe { global::load4_bits(entries + offset) })
        });
        (place, entries + offset)
    } else {
        if number > schedule.last {
            return ([0; 4], NO_ENTRY);
        }
        (schedule.get(number), NO_ENTRY)
    };
    let Tile {
        super_block,
        head,
        head_kv,
        batch,
    } = place;
    ([super_block, head, batch, head_kv + 1], entry)
}

/// Stands for the address of an entry where there is none.
const NO_ENTRY: u64 = 0;

/// The second part of a slot of a varlen launch; anything at the end.
///
/// # Safety
/// `entry` is [`NO_ENTRY`] or the device address of an entry of the launch's list.
#[inline(always)]
unsafe fn rows(entry: u64) -> [u32; 4] {
    if entry == NO_ENTRY {
        return [0; 4];
    }
    // SAFETY: forwarded to the caller; nobody writes the list during the launch.
    unsafe { global::load4_bits(entry + offset_of!(ListedTile, rows) as u64) }
}

/// Where TMA finds the keys and values of a tile.
#[derive(Clone, Copy)]
pub struct Keys {
    pub head: u32,
    pub batch: u32,
    /// First row.
    pub begin: u32,
}

impl Keys {
    #[inline(always)]
    fn new(place: Tile, sequence: &Sequence) -> Self {
        Self {
            head: place.head_kv,
            batch: sequence.batch,
            begin: sequence.kv_begin,
        }
    }
}

/// One consumer warp's, or the producer thread's, place among the announcements.
pub struct Inbox<'a> {
    slots: u32,
    ring: Ring,
    tile: &'a WgmmaTile,
}

impl<'a> Inbox<'a> {
    #[inline(always)]
    pub fn new(slots: u32, barriers: &Barriers, tile: &'a WgmmaTile) -> Self {
        Self {
            slots,
            ring: Ring::consumer(barriers.work_full, barriers.work_empty, WORK_SLOTS),
            tile,
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
            uniform(self.read(0)[3]) != 0
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
            let [super_block, head, batch, above_head_kv] = self.read(0);
            Tile {
                super_block: uniform(super_block),
                head: uniform(head),
                batch: uniform(batch),
                head_kv: uniform(above_head_kv) - 1,
            }
        }
    }

    /// Where the rows of the announced tile's sequence are, the same values in every lane.
    ///
    /// # Safety
    /// As [`Self::tile`], which gave `place`.
    #[inline(always)]
    pub unsafe fn sequence(&self, params: &AttentionParams, place: Tile) -> Sequence {
        if !self.tile.varlen {
            return Sequence::dense(params, place.batch);
        }
        // SAFETY: forwarded to the caller; the slot is full.
        let rows = unsafe { self.read(1).map(|word| uniform(word)) };
        Sequence::of_rows(params, place.batch, bytemuck::must_cast(rows))
    }

    /// As [`Self::wait`], for the producer thread.
    ///
    /// # Safety
    /// The producer thread calls it.
    #[inline(always)]
    pub unsafe fn wait_alone(&mut self) -> bool {
        // SAFETY: forwarded to the caller.
        unsafe {
            self.wait_full();
            self.read(0)[3] != 0
        }
    }

    /// As [`Self::tile`] and [`Self::sequence`], for the producer thread.
    ///
    /// # Safety
    /// The producer thread calls it after [`Self::wait_alone`], which has returned true.
    #[inline(always)]
    pub unsafe fn take_alone(&self, params: &AttentionParams) -> (Tile, Sequence) {
        // SAFETY: forwarded to the caller; the slot is full.
        unsafe {
            let [super_block, head, batch, above_head_kv] = self.read(0);
            let place = Tile {
                super_block,
                head,
                head_kv: above_head_kv - 1,
                batch,
            };
            let sequence = if self.tile.varlen {
                Sequence::of_rows(params, batch, bytemuck::must_cast(self.read(1)))
            } else {
                Sequence::dense(params, batch)
            };
            (place, sequence)
        }
    }

    /// Where the keys of the announced tile are, for the producer thread. In a varlen kernel, whose producer has no
    /// registers to keep them, they are read again.
    ///
    /// # Safety
    /// As [`Self::take_alone`], which gave `place` and `sequence`.
    #[inline(always)]
    pub unsafe fn keys(&self, params: &AttentionParams, place: Tile, sequence: &Sequence) -> Keys {
        if self.tile.varlen {
            // SAFETY: forwarded to the caller.
            let (place, sequence) = unsafe { self.anew().take_alone(params) };
            return Keys::new(place, &sequence);
        }
        Keys::new(place, sequence)
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

    /// The same place, such that what is read there is read again the next time.
    #[inline(always)]
    fn anew(&self) -> Self {
        Self {
            ring: self.ring.anew(),
            ..*self
        }
    }

    #[inline(always)]
    unsafe fn wait_full(&self) {
        // SAFETY: forwarded to the caller.
        unsafe {
            if self.tile.cluster == 1 {
                self.ring.wait_full();
            } else {
                self.ring.wait_published();
            }
        }
    }

    #[inline(always)]
    unsafe fn read(&self, part: u32) -> [u32; 4] {
        let slot = self.slots + self.ring.stage * self.tile.work_bytes();
        // SAFETY: inside the slots.
        unsafe { shared::load4_bits(slot + part * WORK_PART_BYTES) }
    }
}

/// Announces a block's first tile to itself: the clusters start with one each, which needs no draw.
///
/// # Safety
/// One thread of the block calls it, with its cluster's number and the launch's schedule, after initialising the
/// barriers and before any other thread uses them.
#[inline(always)]
pub unsafe fn announce_first(
    slots: u32,
    barriers: &Barriers,
    schedule: &Schedule,
    workspace: u64,
    tile: &WgmmaTile,
    cluster: u32,
) {
    // SAFETY: forwarded to the caller.
    unsafe {
        let (place, entry) = message(schedule, workspace, tile, cluster);
        shared::store4_bits(slots, place);
        if tile.varlen {
            shared::store4_bits(slots + WORK_PART_BYTES, rows(entry));
        }
        mbarrier::arrive_if(true, barriers.work_full);
    }
}

/// The leader's side: draws numbers and fills slots.
pub struct Dispatcher<'a> {
    pub schedule: &'a Schedule,
    pub tile: &'a WgmmaTile,
    /// Device address of the launch's [`Workspace`], whose counter is 0 before the launch, and again after it.
    pub workspace: u64,
}

impl Dispatcher<'_> {
    /// Draws the next tile and announces it, or the end, to every block of the cluster, in the slot after the one
    /// that `inbox` reads.
    ///
    /// A cluster draws once for each tile it takes, until it gets a number past the end. That makes as many draws as tiles,
    /// after which the counter wraps to 0 for the next launch.
    ///
    /// # Safety
    /// `workspace` is live and no concurrent launch uses it; called by the leader's producer thread, once
    /// for each tile.
    #[inline(always)]
    pub unsafe fn announce_next(&self, inbox: &Inbox) {
        let Self { schedule, tile, .. } = *self;
        // In a varlen kernel, whose producer is short of registers, hidden: what comes of them would be kept from one
        // draw to the next.
        let (workspace, ring) = if tile.varlen {
            (opaque64(self.workspace), inbox.ring.anew())
        } else {
            (self.workspace, inbox.ring)
        };
        // SAFETY: forwarded to the caller.
        let drawn = unsafe {
            let last = if tile.varlen {
                list_header(workspace).tiles - 1
            } else {
                schedule.last
            };
            global::fetch_increment(workspace + Workspace::COUNTER, opaque(last))
        };
        let next = ring.next_as_producer();
        let slot = inbox.slots + next.stage * tile.work_bytes();
        // SAFETY: forwarded to the caller. The slot is empty after the wait; all blocks exit together.
        unsafe {
            let (place, entry) = message(schedule, workspace, tile, schedule.clusters + drawn);
            next.wait_empty();
            shared::store4_bits(slot, place);
            let mut listed = [0; 4];
            if tile.varlen {
                // Loaded late, for want of registers: they are in L1 beside the place.
                listed = rows(entry);
                shared::store4_bits(slot + WORK_PART_BYTES, listed);
            }
            mbarrier::arrive_if(true, next.full());
            let mut rank = LEADER + 1;
            while rank < tile.cluster {
                cluster::store4(slot, rank, place);
                if tile.varlen {
                    cluster::store4(slot + WORK_PART_BYTES, rank, listed);
                }
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
