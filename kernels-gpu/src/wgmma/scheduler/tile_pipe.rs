//! The pipe through which tiles come to a cluster: the leading block's producer fetches their numbers and publishes them.
//!
//! A published tile stays in its stage until every reader is done with it, so that nobody keeps it in registers.

// Most operations of an unsafe function here need exactly the conditions under its `# Safety`.
#![allow(unsafe_op_in_unsafe_fn)]

use core::hint::assert_unchecked;
use core::mem::offset_of;

use cuda_std::warp::uniform;
use cuda_std::{cluster, global, mbarrier, shared};

use crate::abi::{AttentionParams, CachePages, SequenceRows};
use crate::config::wgmma::{WORK_PART_BYTES, WORK_STAGES, WgmmaConfig};
use crate::tile::sequence::Sequence;
use crate::tile::{black_box, black_box64};
use crate::wgmma::barriers::Barriers;
use crate::wgmma::pages::Pages;
use crate::wgmma::pipeline::PipelineState;
use crate::wgmma::scheduler::tile_list::{ListHeader, ListedTile, Workspace};
use crate::wgmma::scheduler::{Schedule, TileCoord};

/// Rank of the block that fetches tiles.
const LEADER_RANK: u32 = 0;

/// The header of the launch's list.
///
/// # Safety
/// `workspace` is that of a varlen launch.
#[inline(always)]
unsafe fn list_header(workspace: u64) -> ListHeader {
    // SAFETY: nobody writes the list during the launch.
    bytemuck::must_cast(unsafe { global::load4_bits(workspace + Workspace::HEADER) })
}

/// In place of the address of a list's entry where there is none.
const NO_ENTRY: u64 = 0;

/// Where TMA finds the keys and values of a tile.
#[derive(Clone, Copy)]
pub struct KvCoord {
    pub head: u32,
    pub batch: u32,
    /// First row.
    pub begin: u32,
    /// The sequence, by which a cache finds its pages, and its keys.
    pub sequence: u32,
    pub seq_kv: u32,
}

impl KvCoord {
    #[inline(always)]
    fn new(work_tile: TileCoord, sequence: &Sequence) -> Self {
        Self {
            head: work_tile.head_kv,
            batch: sequence.batch,
            begin: sequence.kv_begin,
            sequence: work_tile.batch,
            seq_kv: sequence.seq_kv,
        }
    }
}

/// One reader's side of the pipe: a consumer warp's, or the producer thread's.
pub struct WorkTilePipe<'a> {
    stages_smem: u32,
    state: PipelineState,
    config: &'a WgmmaConfig,
}

impl<'a> WorkTilePipe<'a> {
    #[inline(always)]
    pub fn new(stages_smem: u32, barriers: &Barriers, config: &'a WgmmaConfig) -> Self {
        Self {
            stages_smem,
            state: PipelineState::consumer(barriers.work_full, barriers.work_empty, WORK_STAGES),
            config,
        }
    }

    /// Waits for the next tile. Returns whether there is one, the same uniform value in every lane.
    ///
    /// # Safety
    /// All lanes of the warp reach the same call.
    #[inline(always)]
    pub unsafe fn consumer_wait(&mut self) -> bool {
        self.wait_full();
        uniform(self.read(0)[3]) != 0
    }

    /// The tile, the same uniform values in every lane.
    ///
    /// # Safety
    /// As [`Self::consumer_wait`], which has returned true.
    #[inline(always)]
    pub unsafe fn work_tile(&self) -> TileCoord {
        // SAFETY: the stage is full.
        unsafe {
            let [cluster_m_block, head, batch, above_head_kv] = self.read(0);
            TileCoord {
                cluster_m_block: uniform(cluster_m_block),
                head: uniform(head),
                batch: uniform(batch),
                head_kv: uniform(above_head_kv) - 1,
            }
        }
    }

    /// Where the rows of the tile's sequence are, the same values in every lane.
    ///
    /// # Safety
    /// As [`Self::work_tile`], which gave `work_tile`.
    #[inline(always)]
    pub unsafe fn sequence(&self, params: &AttentionParams, work_tile: TileCoord) -> Sequence {
        if !self.config.varlen {
            return Sequence::dense(params, work_tile.batch);
        }
        // SAFETY: the stage is full.
        let rows = unsafe { self.read(1).map(|word| uniform(word)) };
        Sequence::of_rows(params, work_tile.batch, bytemuck::must_cast(rows))
    }

    /// As [`Self::consumer_wait`], for the producer thread, which need not wait for what `is_own`.
    ///
    /// # Safety
    /// The producer thread calls it, which has published the tile itself if it `is_own`.
    #[inline(always)]
    pub unsafe fn producer_wait(&mut self, is_own: bool) -> bool {
        if !is_own {
            self.wait_full();
        }
        self.read(0)[3] != 0
    }

    /// As [`Self::work_tile`] and [`Self::sequence`], for the producer thread.
    ///
    /// # Safety
    /// The producer thread calls it after [`Self::producer_wait`], which has returned true.
    #[inline(always)]
    pub unsafe fn producer_read(&self, params: &AttentionParams) -> (TileCoord, Sequence) {
        // SAFETY: the stage is full.
        unsafe {
            let [cluster_m_block, head, batch, above_head_kv] = self.read(0);
            let work_tile = TileCoord {
                cluster_m_block,
                head,
                head_kv: above_head_kv - 1,
                batch,
            };
            let sequence = if self.config.varlen {
                Sequence::of_rows(params, batch, bytemuck::must_cast(self.read(1)))
            } else {
                Sequence::dense(params, batch)
            };
            (work_tile, sequence)
        }
    }

    /// Where the keys of the tile are, for the producer thread. In a varlen kernel, whose producer has no
    /// registers to keep them, they are read again.
    ///
    /// # Safety
    /// As [`Self::producer_read`], which gave `work_tile` and `sequence`.
    #[inline(always)]
    pub unsafe fn kv_coord(
        &self,
        params: &AttentionParams,
        work_tile: TileCoord,
        sequence: &Sequence,
    ) -> KvCoord {
        if self.config.varlen {
            let (work_tile, sequence) = self.reload().producer_read(params);
            return KvCoord::new(work_tile, &sequence);
        }
        KvCoord::new(work_tile, sequence)
    }

    /// This reader is done with the tile, if `condition` holds, which it does for one lane of a warp.
    ///
    /// # Safety
    /// Once for each tile.
    #[inline(always)]
    pub unsafe fn release(&mut self, condition: bool) {
        mbarrier::arrive_at_if(condition, self.state.empty_barrier(), LEADER_RANK);
        self.state.advance();
    }

    /// The same stage, hidden from the optimiser: it is read again at each use.
    #[inline(always)]
    fn reload(&self) -> Self {
        Self {
            state: self.state.reload(),
            ..*self
        }
    }

    #[inline(always)]
    unsafe fn wait_full(&self) {
        if self.config.cluster == 1 {
            self.state.consumer_wait();
        } else {
            self.state.consumer_wait_cluster();
        }
    }

    #[inline(always)]
    unsafe fn read(&self, part: u32) -> [u32; 4] {
        let stage_smem = self.stages_smem + self.state.stage * self.config.work_stage_bytes();
        // SAFETY: inside the slots.
        unsafe { shared::load4_bits(stage_smem + part * WORK_PART_BYTES) }
    }
}

/// The side that finds tiles by their numbers and publishes them.
pub struct TileScheduler<'a> {
    pub schedule: &'a Schedule,
    pub attention: &'a AttentionParams,
    /// The cache that k and v are, of a kernel for one.
    pub pages: &'a CachePages,
    pub config: &'a WgmmaConfig,
    /// Device address of the launch's [`Workspace`], whose semaphore is 0 before the launch, and again after it.
    pub workspace: u64,
}

impl TileScheduler<'_> {
    /// Publishes a block's first tile to itself: the clusters start with one each, which none has to fetch.
    ///
    /// # Safety
    /// The thread of the block that loads keys calls it, with its cluster's number, before it reads from `tile_pipe`; the arrays of
    /// lengths and the workspace are live.
    #[inline(always)]
    pub unsafe fn publish_first(&self, tile_pipe: &WorkTilePipe, cluster: u32) {
        let stages_smem = tile_pipe.stages_smem;
        let (work_tile, entry) = self.work_tile_words(self.workspace, cluster);
        shared::store4_bits(stages_smem, work_tile);
        if self.config.varlen {
            let rows = self.sequence_words(work_tile, entry);
            shared::store4_bits(stages_smem + WORK_PART_BYTES, rows);
        }
        mbarrier::arrive(tile_pipe.state.full_barrier());
    }

    /// Fetches the next tile and publishes it, or the end, to every block of the cluster, in the stage after the one
    /// that `tile_pipe` reads.
    ///
    /// A cluster fetches once for each tile it takes, until it gets a number past the end. The semaphore is so incremented
    /// as often as there are tiles, after which it wraps to 0 for the next launch.
    ///
    /// # Safety
    /// `workspace` is live and no concurrent launch uses it; called by the leader's producer thread, once
    /// for each tile.
    #[inline(always)]
    pub unsafe fn fetch_next(&self, tile_pipe: &WorkTilePipe) {
        let Self {
            schedule, config, ..
        } = *self;
        // black_box: otherwise ptxas keeps addresses live from one tile to the next, for which the producer of a varlen kernel
        // has no registers.
        let (workspace, state) = if config.varlen {
            (black_box64(self.workspace), tile_pipe.state.reload())
        } else {
            (self.workspace, tile_pipe.state)
        };
        // SAFETY: the caller vouches for the workspace, which has the semaphore and, in a listed launch, the list.
        let fetched = unsafe {
            let last = if self.is_listed() {
                list_header(workspace).tiles - 1
            } else {
                schedule.last
            };
            global::fetch_increment(workspace + Workspace::TILE_COUNT_SEMAPHORE, black_box(last))
        };
        let next = state.next_as_producer();
        let stage_smem = tile_pipe.stages_smem + next.stage * config.work_stage_bytes();
        // SAFETY: the stage is empty after the wait; all blocks exit together.
        unsafe {
            let (work_tile, entry) = self.work_tile_words(workspace, schedule.clusters + fetched);
            next.producer_acquire();
            shared::store4_bits(stage_smem, work_tile);
            let mut rows = [0; 4];
            if config.varlen {
                // Loaded late, for want of registers: what lists have is in L1, next to the coordinate.
                rows = self.sequence_words(work_tile, entry);
                shared::store4_bits(stage_smem + WORK_PART_BYTES, rows);
            }
            mbarrier::arrive(next.full_barrier());
            let mut rank = LEADER_RANK + 1;
            while rank < config.cluster {
                cluster::store4(stage_smem, rank, work_tile);
                if config.varlen {
                    cluster::store4(stage_smem + WORK_PART_BYTES, rank, rows);
                }
                mbarrier::arrive_publish(next.full_barrier(), rank);
                rank += 1;
            }
        }
    }

    /// Whether the launch has a list of its tiles. Behind black_box: otherwise the kernels of head_dim 256 keep it in a predicate, and
    /// spill what holds those.
    #[inline(always)]
    fn is_listed(&self) -> bool {
        self.config.varlen && Schedule::lists(black_box(self.schedule.cluster_m_blocks))
    }

    /// First words of a stage, a tile with `head_kv + 1` as the last word, and the device address of the tile's entry in
    /// the list of a launch that has one ([`NO_ENTRY`] in others). Past the last tile all are 0.
    ///
    /// # Safety
    /// `workspace` is the launch's.
    #[inline(always)]
    unsafe fn work_tile_words(&self, workspace: u64, number: u32) -> ([u32; 4], u64) {
        let schedule = self.schedule;
        let entries = workspace + Workspace::ENTRIES;
        let (work_tile, entry) = if self.is_listed() {
            let header = list_header(workspace);
            if number >= header.tiles {
                return ([0; 4], NO_ENTRY);
            }
            let (work_tile, offset) = schedule.get_listed(&header, number, |offset| {
                // SAFETY: nobody writes the list during the launch.
                bytemuck::must_cast(unsafe { global::load4_bits(entries + offset) })
            });
            (work_tile, entries + offset)
        } else {
            if number > schedule.last {
                return ([0; 4], NO_ENTRY);
            }
            (schedule.get(number), NO_ENTRY)
        };
        let TileCoord {
            cluster_m_block,
            head,
            head_kv,
            batch,
        } = work_tile;
        ([cluster_m_block, head, batch, head_kv + 1], entry)
    }

    /// Second part of a stage of a varlen launch, the [`SequenceRows`] of the sequence of tile `work_tile`; those of the first
    /// sequence, or zeros, past the last tile, where nobody reads them.
    ///
    /// # Safety
    /// [`work_tile_words`](Self::work_tile_words) has given both arguments.
    #[inline(always)]
    unsafe fn sequence_words(&self, work_tile: [u32; 4], entry: u64) -> [u32; 4] {
        let [_, _, batch, _] = work_tile;
        if self.is_listed() {
            if entry == NO_ENTRY {
                return [0; 4];
            }
            // SAFETY: nobody writes the list during the launch.
            return unsafe { global::load4_bits(entry + offset_of!(ListedTile, rows) as u64) };
        }
        let rows = if self.config.cached {
            // SAFETY: the launch's; what is counted of a cache has the same number of queries for each sequence.
            unsafe { Pages::new(self.pages).rows(self.attention, batch) }
        } else {
            let lengths = &self.attention.lengths;
            // SAFETY: what is counted else is packed, and uses all of its rows. The arrays have two elements for every sequence, of
            // which there is a first.
            let load = unsafe {
                assert_unchecked(lengths.has_cu_seqlens() && lengths.seqused_kv.is_none());
                |address| global::load_u32(address) as i32
            };
            SequenceRows::read(self.attention, batch, load)
        };
        bytemuck::must_cast(rows)
    }
}

/// Whether this block fetches for its cluster.
#[inline(always)]
pub fn is_leader(rank: u32) -> bool {
    rank == LEADER_RANK
}
