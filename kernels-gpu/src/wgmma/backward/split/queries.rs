//! The second kernel: dQ = dS K, of the dS that the first one left in the workspace.
//!
//! A block owns 64 queries a consumer warpgroup. Blocks of K pass, each with the tiles of dS in which it meets those queries.

use cuda_std::half::Half;
use cuda_std::shared::dynamic_base;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, sync_warp};
use cuda_std::wgmma::{Descriptor, GemmSs, InFlight, MnMajor};
use cuda_std::{grid, mbarrier, tma, warpgroup};

use super::super::gradient::Gradient;
use super::super::scaled_sum;
use super::super::tile::Tile;
use super::{ds_tiles, ds_tiles_of_unit, passed};
use crate::abi::BackwardParams;
use crate::backward::careful::{Code, Which};
use crate::backward::side::KeepQueries;
use crate::config::wgmma::{ATOM_COLS, WARPGROUP_ROWS, WARPS};
use crate::config::wgmma_backward_split::SplitQueriesConfig;
use crate::layout::ds_tile;
use crate::modifiers::NoModifiers;
use crate::tile::black_box;
use crate::tile::element::Element;
use crate::tile::grid::{BlockCoord, TileGrid, divide};
use crate::wgmma::forward::lanes::Lanes;
use crate::wgmma::forward::traits::TensorMapParams;
use crate::wgmma::pipeline::{PipelineState, init_stages};
use crate::wgmma::tensor_map::parameter;

/// One instance of the kernel of dq; `SUM_REGS` are the registers that a thread holds of it.
pub trait SplitQueriesKernel<const SUM_REGS: usize>: TensorMapParams {
    const SPLIT: SplitQueriesConfig;
    type Element: Half + Element + GemmSs<MnMajor, MnMajor, SUM_REGS, { ds_tile::ROWS as usize }>;
}

/// A block's tile and its pipeline.
struct Block<'a> {
    tile: &'a Tile<'a, KeepQueries>,
    config: &'a SplitQueriesConfig,
    smem: u32,
    /// Number of the tile's head among those of the chunk.
    head: u32,
}

/// The kernel of dq.
///
/// # Safety
/// As [`keys`](super::keys), which has run with the same parameters.
#[inline(always)]
pub unsafe fn queries<
    K,
    const PRODUCER_REGISTERS: u32,
    const CONSUMER_REGISTERS: u32,
    const SUM_REGS: usize,
>(
    params: &BackwardParams,
) where
    K: SplitQueriesKernel<SUM_REGS>,
    [f32; SUM_REGS]: InFlight,
{
    let config = &K::SPLIT;
    let smem = dynamic_base();
    let tile = Tile::<KeepQueries>::at(params, &NoModifiers, smem + config.tile_offset());
    let blocks_of_tile = config.blocks.block_m() / ds_tile::ROWS;
    let tiles_of_head = ds_tiles(params).q_blocks.div_ceil(blocks_of_tile);
    let (head, of_head) = divide(block_idx_x(), tiles_of_head);
    let block = Block {
        tile: &tile,
        config,
        smem,
        head,
    };
    // Two warps, so that one's work hides the other's.
    if thread_idx_x() == WARP_SIZE {
        tma::prefetch(K::address::<{ parameter::K }>());
        block.init_barriers();
    } else if thread_idx_x() == 0 {
        // The last rows first, as under a causal mask they are the longest.
        let m_block = params.ds.first_q_block / blocks_of_tile;
        let m_block = m_block + tiles_of_head - 1 - of_head;
        tile.write(block.number(params, m_block), &config.blocks);
    }
    // As in the kernel before.
    grid::wait_for_launch_before();
    sync_threads();
    // Tiles beyond a sequence's rows: the whole block leaves.
    if !tile.has_rows() {
        return;
    }
    // The branches below are taken by whole warpgroups.
    let warpgroup = warpgroup::index();
    if warpgroup == 0 {
        warpgroup::release_registers::<PRODUCER_REGISTERS>();
        if thread_idx_x() == 0 {
            block.produce::<K>();
        }
        sync_warp();
    } else {
        warpgroup::acquire_registers::<CONSUMER_REGISTERS>();
        block.consume::<K, SUM_REGS>(warpgroup - 1);
    }
}

impl Block<'_> {
    /// The number of the tile, among those of all heads: it has block `m_block` of its head.
    #[inline(always)]
    fn number(&self, params: &BackwardParams, m_block: u32) -> u32 {
        let attention = &params.attention;
        let chunk = &params.ds;
        let (unit, of_part) = divide(self.head, ds_tiles(params).group);
        let of_group = chunk.first_head + of_part;
        let group = ds_tiles_of_unit(params).group;
        let head = (chunk.first_unit as u32 + unit) * group + of_group;
        let tiles = TileGrid::new(1, 1, attention.seq_q, self.config.blocks.block_m());
        let of_head = tiles.index(BlockCoord {
            m_block,
            head: 0,
            batch: 0,
        });
        head * tiles.count as u32 + of_head
    }

    #[inline(always)]
    fn barriers(&self) -> (u32, u32) {
        let full = self.smem + self.config.barriers_offset();
        (full, full + self.config.blocks.stages * mbarrier::BYTES)
    }

    /// # Safety
    /// One thread of the block calls it, before any other uses a barrier; a barrier of the block follows.
    #[inline(always)]
    unsafe fn init_barriers(&self) {
        let (full, empty) = self.barriers();
        let blocks = &self.config.blocks;
        init_stages([full, empty], blocks.stages, [1, WARPS * blocks.consumers]);
        mbarrier::fence_init();
    }

    /// Whether some of a consumer's queries see a key of block `block`: else there is no dS of it.
    ///
    /// # Safety
    /// As [`Tile::begin`].
    #[inline(always)]
    unsafe fn sees(&self, warpgroup: u32, block: u32) -> bool {
        let block_n = self.config.blocks.block_n;
        let begin = warpgroup * WARPGROUP_ROWS;
        let seen = self.tile.blocks(begin, WARPGROUP_ROWS, block_n);
        seen.begin <= block && block < seen.end
    }

    /// Loads blocks of K and tiles of dS.
    ///
    /// # Safety
    /// As [`queries`]; one thread calls it.
    #[inline(always)]
    unsafe fn produce<M: TensorMapParams>(&self) {
        let Self {
            tile, config, smem, ..
        } = self;
        let (full, empty) = self.barriers();
        let mut pipeline = PipelineState::producer(full, empty, config.blocks.stages);
        let sequence = tile.sequence();
        tile.each_step(&config.blocks, |head, block| {
            let stage = smem + pipeline.stage * config.stage_bytes();
            let full = pipeline.full_barrier();
            let mut tiles = 0;
            for warpgroup in 0..config.blocks.consumers {
                tiles += self.sees(warpgroup, block) as u32;
            }
            pipeline.producer_acquire();
            mbarrier::arrive_expect(full, config.blocks.stage_bytes() + tiles * ds_tile::BYTES);
            for warpgroup in 0..config.blocks.consumers {
                if self.sees(warpgroup, block) {
                    let to = stage + config.ds_offset(warpgroup);
                    tma::load(to, self.ds(warpgroup, block), ds_tile::BYTES, full);
                }
            }
            for atom_column in 0..config.blocks.atom_columns() {
                let to = stage + atom_column * config.blocks.atom_column_bytes();
                let row = sequence.kv_begin + block * config.blocks.block_n;
                let from = [atom_column * ATOM_COLS, row, head, sequence.batch];
                tma::load4d(to, M::address::<{ parameter::K }>(), from, full);
            }
            pipeline.advance();
        });
    }

    /// Address of the tile of dS in which a consumer's queries meet block `block`.
    ///
    /// # Safety
    /// As [`Tile::begin`].
    #[inline(always)]
    unsafe fn ds(&self, warpgroup: u32, block: u32) -> u64 {
        let params = self.tile.params;
        let q_block = self.tile.begin() / ds_tile::ROWS + warpgroup;
        let offset = ds_tiles(params).offset(0, self.head, q_block, block);
        params.ds.tiles.map_or(0, |tiles| tiles.get()) + offset
    }

    /// Computes dQ of a warpgroup's queries.
    ///
    /// # Safety
    /// As [`queries`]; all threads of consumer warpgroup `warpgroup` call it.
    #[inline(always)]
    unsafe fn consume<K, const SUM_REGS: usize>(&self, warpgroup: u32)
    where
        K: SplitQueriesKernel<SUM_REGS>,
        [f32; SUM_REGS]: InFlight,
    {
        let Self { tile, config, .. } = self;
        let lanes = Lanes::new();
        let (full, empty) = self.barriers();
        let mut pipeline = PipelineState::consumer(full, empty, config.blocks.stages);
        let exponent = scaled_sum::kept_exponent(tile, K::Element::SCALES_DS);
        let mut sum = [0.0; SUM_REGS];
        tile.each_step(&config.blocks, |_, block| {
            pipeline.consumer_wait();
            if self.sees(warpgroup, block) {
                let stage = black_box(self.smem) + pipeline.stage * config.stage_bytes();
                let ds = stage + config.ds_offset(warpgroup);
                let ds = Descriptor::<MnMajor>::mn_major(ds, ds_tile::BYTES);
                let k = Descriptor::<MnMajor>::mn_major(stage, config.blocks.atom_column_bytes());
                K::Element::multiply_add(&mut sum, ds, k);
                sum.wait::<0>();
            }
            pipeline.consumer_release(lanes.lane, 1);
            pipeline.advance();
        });
        if K::Element::SCALES_DS {
            scaled_sum::multiply(&mut sum, exponent);
        }
        let attention = &tile.params.attention;
        let gradient = Gradient {
            tile,
            scale: attention.score.softmax_scale / passed::factor::<K::Element>(),
            which: Which::First,
            code: Code::of_sum(SUM_REGS),
        };
        let row_of = |place| warpgroup * WARPGROUP_ROWS + ds_tile::query(place);
        gradient.store::<K::Element, SUM_REGS>(&sum, lanes, row_of);
    }
}
