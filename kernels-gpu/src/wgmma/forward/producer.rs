//! The producer: a thread that fetches tiles and keeps Q, K and V coming, or, where a block is many copies, one for K and one for V.

use core::marker::PhantomData;

use cuda_std::thread::block_idx_x;
use cuda_std::{mbarrier, shared, tma};

use super::Launch;
use super::block_walk::{Block, BlockWalk};
use super::blocks::{cluster_range, row_begin};
use super::traits::TensorMapParams;
use crate::config::wgmma::{ATOM_COLS, ATOM_ROW_BYTES, WARPGROUP_ROWS, WgmmaConfig};
use crate::modifiers::Modifiers;
use crate::tile::black_box;
use crate::tile::sequence::Sequence;
use crate::units::F32_BYTES;
use crate::wgmma::pages::Pages;
use crate::wgmma::pipeline::PipelineState;
use crate::wgmma::scheduler::TileCoord;
use crate::wgmma::scheduler::tile_pipe::{KvCoord, WorkTilePipe, is_leader};
use crate::wgmma::tensor_map::parameter;

/// Blocks of the current tile still to be loaded when the next tile is fetched: they cover the round trips of fetching
/// and publishing it.
const FETCH_AHEAD: u32 = 5;

/// Loads Q and K, or V, or all of them, for tiles until there are no more. The thread that loads keys fetches tiles.
///
/// # Safety
/// `launch` holds; one thread of the block calls it for each of K and V, the same where [`WgmmaConfig::producers`] says so.
#[inline(always)]
pub unsafe fn produce<K: TensorMapParams, M: Modifiers, const KEYS: bool, const VALUES: bool>(
    launch: &Launch,
    config: &WgmmaConfig,
    modifiers: &M,
) {
    let Launch {
        params,
        smem,
        barriers,
        ..
    } = *launch;
    let stages_smem = smem + config.work_offset();
    let mut tile_pipe = WorkTilePipe::new(stages_smem, &barriers, config);
    let scheduler = launch.tile_scheduler(config);
    let mut loader = Loader::<K> {
        maps: PhantomData,
        launch,
        config,
        q: PipelineState::producer(barriers.q_full, barriers.q_empty, config.q_stages),
        k: PipelineState::producer(barriers.k_full, barriers.k_empty, config.k_stages),
        v: PipelineState::producer(barriers.v_full, barriers.v_empty, config.v_stages),
        pending_o: false,
    };
    let leader = is_leader(launch.rank);
    // SAFETY: loads go to stages the consumers have emptied.
    unsafe {
        if KEYS {
            scheduler.publish_first(&tile_pipe, block_idx_x() / config.cluster);
        }
        // The thread that loads keys has published the first tile itself, and in a cluster of one block all others too. Kernels for a cache
        // wait for the first one all the same: without, ptxas spills a register.
        let mut is_own = KEYS && (config.cluster == 1 || !config.cached);
        while tile_pipe.producer_wait(is_own) {
            is_own = KEYS && config.cluster == 1;
            let (work_tile, sequence) = tile_pipe.producer_read(&params.attention);
            if !M::IS_NONE {
                let walk = BlockWalk::new(launch, config, modifiers, work_tile, &sequence);
                loader.load_walk(&walk, &tile_pipe, || scheduler.fetch_next(&tile_pipe));
                tile_pipe.release(true);
                continue;
            }
            let blocks = cluster_range(&sequence, config, work_tile, launch.pack_gqa());
            let last = blocks.end - 1;
            let kv = || tile_pipe.kv_coord(&params.attention, work_tile, &sequence);
            if KEYS {
                if config.q_in_registers || config.q_stages > 1 {
                    // There is room for Q early: it can come long before its tile.
                    loader.load_q(work_tile, &sequence);
                    loader.load_k(last, kv());
                } else {
                    loader.load_k(last, kv());
                    loader.load_q(work_tile, &sequence);
                }
            }
            // Late, so that the cluster that becomes free next takes the longest tile left.
            let fetch_at = (blocks.begin + FETCH_AHEAD - 1).min(last);
            let mut n_block = blocks.end;
            while n_block > blocks.begin {
                n_block -= 1;
                // V trails K by a block, as PV trails QKᵀ.
                if KEYS && n_block > blocks.begin {
                    loader.load_k(n_block - 1, kv());
                }
                if VALUES {
                    loader.reserve_v_for_o();
                    loader.load_v(n_block, kv());
                }
                if KEYS && leader && n_block == fetch_at {
                    scheduler.fetch_next(&tile_pipe);
                }
            }
            loader.pending_o = VALUES && config.reuses_v();
            tile_pipe.release(true);
        }
        loader.reserve_v_for_o();
    }
}

/// The tensor maps of K or V.
#[derive(Clone, Copy)]
struct BlockMaps {
    /// Whose boxes hold a block's part of a stage, or a cache's as many keys as are said with its pages.
    boxes: fn() -> u64,
    /// Whose boxes hold a key, of a cache's V.
    single_rows: Option<fn() -> u64>,
}

struct Loader<'a, M> {
    maps: PhantomData<M>,
    launch: &'a Launch<'a>,
    config: &'a WgmmaConfig,
    q: PipelineState,
    k: PipelineState,
    v: PipelineState,
    /// The last tile's output still has to be staged in V's next stages.
    pending_o: bool,
}

impl<M: TensorMapParams> Loader<'_, M> {
    /// Loads a tile of a kernel with modifiers, and calls `fetch` when the next tile is to be fetched, once.
    #[inline(always)]
    unsafe fn load_walk(&mut self, walk: &BlockWalk, tile_pipe: &WorkTilePipe, fetch: impl Fn()) {
        let attention = &self.launch.params.attention;
        let (work_tile, sequence) = tile_pipe.producer_read(attention);
        let kv = || tile_pipe.kv_coord(attention, work_tile, &sequence);
        let mut block = walk.first();
        let mut next = walk.before(block.n_block());
        self.load_told_k(block, next.is_none(), kv());
        self.load_q(work_tile, &sequence);
        let mut has_fetched = false;
        loop {
            let following = next;
            if let Some(next_block) = following {
                next = walk.before(next_block.n_block());
                self.load_told_k(next_block, next.is_none(), kv());
            }
            self.reserve_v_for_o();
            self.load_v(block.n_block(), kv());
            // How many blocks are left is not known, and a tile may have few.
            if !has_fetched {
                fetch();
                has_fetched = true;
            }
            match following {
                None => break,
                Some(following) => block = following,
            }
        }
        self.pending_o = self.config.reuses_v();
    }

    /// Loads a block of K, and tells the consumers which one it is.
    #[inline(always)]
    unsafe fn load_told_k(&mut self, block: Block, is_last: bool, kv: KvCoord) {
        // The consumers have read the word before.
        self.k.producer_acquire();
        let words = self.smem() + self.config.block_words_offset();
        shared::store_bits(words + self.k.stage * F32_BYTES, block.word(is_last));
        self.fill_k(block.n_block(), kv);
    }

    /// Start of shared memory. Behind black_box in a varlen kernel, whose producer has no register for addresses from it.
    #[inline(always)]
    fn smem(&self) -> u32 {
        if self.config.varlen {
            black_box(self.launch.smem)
        } else {
            self.launch.smem
        }
    }

    /// Loads this block's Q.
    #[inline(always)]
    unsafe fn load_q(&mut self, work_tile: TileCoord, sequence: &Sequence) {
        let config = self.config;
        self.q.producer_acquire();
        mbarrier::arrive_expect(self.q.full_barrier(), config.consumers * config.q_bytes());
        let mut warpgroup = 0;
        while warpgroup < config.consumers {
            let row = row_begin(self.launch, config, work_tile, warpgroup);
            let query = sequence.q_begin + self.launch.pack_gqa().query(row);
            let mut atom_column = 0;
            while atom_column < config.atom_columns() {
                let to = self.launch.smem
                    + (self.q.stage * config.consumers + warpgroup) * config.q_bytes()
                    + atom_column * config.q_atom_column_bytes();
                let col = atom_column * ATOM_COLS;
                let from = [
                    col,
                    work_tile.head,
                    query,
                    work_tile.head_kv,
                    sequence.batch,
                ];
                tma::load5d(
                    to,
                    M::address::<{ parameter::Q }>(),
                    from,
                    self.q.full_barrier(),
                );
                atom_column += 1;
            }
            warpgroup += 1;
        }
        self.q.advance();
    }

    /// Reserves V's next stages for the last tile's output, if it still has to be staged.
    #[inline(always)]
    unsafe fn reserve_v_for_o(&mut self) {
        if !self.pending_o {
            return;
        }
        self.pending_o = false;
        let mut warpgroup = 0;
        while warpgroup < self.config.consumers {
            // SAFETY: the consumers release the stage as if it had been loaded.
            unsafe {
                self.v.producer_acquire();
                mbarrier::arrive(self.v.full_barrier());
            }
            self.v.advance();
            warpgroup += 1;
        }
    }

    #[inline(always)]
    unsafe fn load_k(&mut self, n_block: u32, kv: KvCoord) {
        self.k.producer_acquire();
        self.fill_k(n_block, kv);
    }

    /// Loads a block of K to the present stage, which is empty.
    #[inline(always)]
    unsafe fn fill_k(&mut self, n_block: u32, kv: KvCoord) {
        let config = self.config;
        let row = kv.begin + n_block * config.block_n;
        let stage = self.smem() + config.k_offset() + self.k.stage * config.k_bytes();
        let maps = BlockMaps {
            boxes: M::address::<{ parameter::K }>,
            single_rows: None,
        };
        let at = [row, kv.head, kv.batch];
        self.load_block(&self.k, maps, stage, config.atom_columns(), at, kv);
        self.k.advance();
    }

    #[inline(always)]
    unsafe fn load_v(&mut self, n_block: u32, kv: KvCoord) {
        let config = self.config;
        let row = kv.begin + n_block * config.block_n;
        let stage = self.smem() + config.v_offset() + self.v.stage * config.v_bytes();
        let maps = BlockMaps {
            boxes: M::address::<{ parameter::V }>,
            single_rows: if config.cached {
                Some(M::address::<{ parameter::V_ROWS }>)
            } else {
                None
            },
        };
        let at = [row, kv.head, kv.batch];
        self.v.producer_acquire();
        self.load_block(&self.v, maps, stage, config.atom_columns_v(), at, kv);
        self.v.advance();
    }

    /// Loads this block's rows of an empty stage of K or V, for every block of the cluster.
    #[inline(always)]
    unsafe fn load_block(
        &self,
        state: &PipelineState,
        maps: BlockMaps,
        stage: u32,
        atom_columns: u32,
        [row, head, batch]: [u32; 3],
        kv: KvCoord,
    ) {
        let config = self.config;
        let first = self.launch.rank * config.kv_box_rows();
        // SAFETY: the stage is empty in every block of the cluster.
        unsafe {
            mbarrier::arrive_expect(
                state.full_barrier(),
                atom_columns * config.kv_atom_column_bytes(),
            );
            if config.cached {
                let to = stage + first * ATOM_ROW_BYTES;
                self.load_pages(state, maps, to, atom_columns, row + first, kv);
            } else {
                let at = [row, head, batch];
                self.load_boxes(state, (maps.boxes)(), stage, atom_columns, at, first);
            }
        }
    }

    /// Loads this block's rows of a stage from the pages that they lie in.
    ///
    /// # Safety
    /// As [`load_block`](Self::load_block), in which the stage is empty.
    #[inline(always)]
    unsafe fn load_pages(
        &self,
        state: &PipelineState,
        maps: BlockMaps,
        to: u32,
        atom_columns: u32,
        key: u32,
        kv: KvCoord,
    ) {
        let rows = self.config.kv_box_rows();
        if key + rows > kv.seq_kv {
            self.load_last_pages(state, maps, to, atom_columns, key, kv);
            return;
        }
        let pages = Pages::new(self.launch.pages);
        let table_row = pages.table_row(kv.sequence);
        let load = |row, page| {
            let at = [pages.place(key + row), kv.head, page];
            let to = to + row * ATOM_ROW_BYTES;
            self.load_boxes(state, (maps.boxes)(), to, atom_columns, at, 0);
        };
        let mut row = 0;
        while row < rows {
            // Two entries of the table are asked for together.
            let next = row + pages.box_rows();
            let page = pages.page(table_row, key + row);
            let next_page = pages.page(table_row, key + next);
            load(row, page);
            load(next, next_page);
            row = next + pages.box_rows();
        }
    }

    /// As [`load_pages`](Self::load_pages), of rows that the sequence's keys end in or before. Boxes behind the keys are zeros; the
    /// box that they end in is loaded row by row where there is a map for that, and what is behind the keys is zeros again.
    ///
    /// V's have to be: a key that is masked out has a probability of 0, and 0 · NaN is NaN, which may lie where no key is.
    ///
    /// # Safety
    /// As [`load_pages`](Self::load_pages).
    #[inline(always)]
    unsafe fn load_last_pages(
        &self,
        state: &PipelineState,
        maps: BlockMaps,
        to: u32,
        atom_columns: u32,
        key: u32,
        kv: KvCoord,
    ) {
        let pages = Pages::new(self.launch.pages);
        let table_row = pages.table_row(kv.sequence);
        let mut row = 0;
        while row < self.config.kv_box_rows() {
            let key = key + row;
            let page = pages.page_or_none(table_row, key, kv.seq_kv);
            let at = [pages.place(key), kv.head, page];
            let to = to + row * ATOM_ROW_BYTES;
            match maps.single_rows {
                Some(single) if pages.end_in_box_of(key, kv.seq_kv) => {
                    self.load_boxes(state, single(), to, atom_columns, at, 0);
                    row += 1;
                }
                _ => {
                    self.load_boxes(state, (maps.boxes)(), to, atom_columns, at, 0);
                    row += pages.box_rows();
                }
            }
        }
    }

    /// Loads the boxes of all columns of the rows from `row + first` on, to their places behind `first` rows of a stage.
    ///
    /// # Safety
    /// As [`load_pages`](Self::load_pages).
    #[inline(always)]
    unsafe fn load_boxes(
        &self,
        state: &PipelineState,
        map: u64,
        stage: u32,
        atom_columns: u32,
        [row, head, batch]: [u32; 3],
        first: u32,
    ) {
        let config = self.config;
        let all_blocks = (1 << config.cluster) - 1;
        let mut atom_column = 0;
        while atom_column < atom_columns {
            let to = stage + atom_column * config.kv_atom_column_bytes() + first * ATOM_ROW_BYTES;
            let from = [atom_column * ATOM_COLS, row + first, head, batch];
            if config.cluster == 1 {
                tma::load4d(to, map, from, state.full_barrier());
            } else {
                tma::load4d_multicast(to, map, from, state.full_barrier(), all_blocks);
            }
            atom_column += 1;
        }
    }
}
