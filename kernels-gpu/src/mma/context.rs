//! Parts of the main loop that run once a block of keys or less: copies, masks, and how scores are transformed.
//!
//! None of it is kept in registers from one block to the next. Numbers of the tile come from its [`SmemTileInfo`] and those of
//! the launch from the parameters, by [`reload`].

use cuda_std::cp_async::commit_group;
use cuda_std::shared;
use cuda_std::thread::{sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, any, uniform};

use super::arithmetic::Arithmetic;
use super::gemm::LaneAddress;
use super::tile_info::{HeadKv, SmemTileInfo, TileInfo};
use crate::abi::BlockState;
use crate::abi::{ForwardParams, TensorArg};
use crate::config::mma::MmaConfig;
use crate::layout::fragment::{ROW_STEP, TILE_M, row_column};
use crate::layout::swizzle::row_bytes;
use crate::modifiers::{Modifiers, Pair, Place};
use crate::score::ScoreTransform;
use crate::tile::block_range::BlockRange;
use crate::tile::grid::BlockCoord;
use crate::tile::mask;
use crate::tile::sequence::{Sequence, head_kv};
use crate::tile::source::Source;
use crate::tile::{black_box, black_box64};

/// The parameters, such that what is computed from them is computed again the next time.
#[inline(always)]
fn reload(params: &ForwardParams) -> ForwardParams {
    const WORDS: usize = size_of::<ForwardParams>() / size_of::<u64>();
    let mut words: [u64; WORDS] = bytemuck::cast(*params);
    for word in &mut words {
        *word = black_box64(*word);
    }
    bytemuck::cast(words)
}

/// A tile that a block works on.
#[derive(Clone, Copy)]
pub struct TileContext<'a, M> {
    params: &'a ForwardParams,
    /// What else the launch does to single pairs.
    pub modifiers: &'a M,
    config: MmaConfig,
    /// Shared memory: the stages of K and V, which it starts with.
    pub stages: u32,
    /// Shared memory: the tile of Q, and of the output in the end.
    pub q_smem: u32,
    smem_info: SmemTileInfo,
    /// Index of this warp.
    warp: u32,
    /// The blocks of keys that the tile's rows see: the first, and one past the last. With hidden pairs, blocks in between may
    /// be hidden.
    pub begin: u32,
    pub end: u32,
}

/// Parts of a stage; known at compile time, once inlined.
#[derive(Clone, Copy)]
pub struct Parts {
    pub k: bool,
    pub v: bool,
}

impl Parts {
    pub const K: Self = Self { k: true, v: false };
    pub const V: Self = Self { k: false, v: true };
    pub const BOTH: Self = Self { k: true, v: true };
}

/// The part of a block of keys that a warp's rows see.
#[derive(Clone, Copy, Default)]
pub struct WarpView {
    /// Not all of it.
    pub needs_mask: bool,
    /// Nothing.
    pub masked_out: bool,
}

impl<'a, M: Modifiers> TileContext<'a, M> {
    /// The tile; its numbers are in shared memory and visible.
    ///
    /// # Safety
    /// `params` describes live allocations. The whole block calls it with the same tile, and nobody accesses shared
    /// memory.
    #[inline(always)]
    pub unsafe fn new(
        params: &'a ForwardParams,
        modifiers: &'a M,
        config: MmaConfig,
        coord: BlockCoord,
    ) -> Self {
        let (block_m, block_n) = (config.block_m() as u32, config.block_n as u32);
        let launch = reload(params).attention;
        let sequence = Sequence::new(&launch, coord.batch);
        let m_begin = coord.m_block * block_m;
        let m_end = (m_begin + block_m).min(sequence.seq_q);
        let blocks = if modifiers.hides() {
            // Any block may be shown: the states tell.
            BlockRange::all(sequence.seq_kv, block_n)
        } else {
            BlockRange::new(m_begin, m_end, sequence.band, sequence.seq_kv, block_n)
        };
        let stages = shared::dynamic_base();
        let smem_info = SmemTileInfo {
            address: stages + config.tile_info_offset(),
        };
        let head_kv = head_kv(&launch, coord.head);
        let head = |operand: &TensorArg, dims: u32| {
            let address = sequence.kv_address(operand, head_kv, config.element_bytes);
            let source = Source::new(
                operand,
                address,
                [sequence.seq_kv, dims],
                config.element_bytes,
            );
            HeadKv {
                address,
                plain: source.has_plain_rows(config.into()),
            }
        };
        // SAFETY: branches on numbers that are known to be the same in all lanes do not diverge.
        unsafe {
            smem_info.store(TileInfo {
                coord,
                sequence,
                blocks,
                k: head(&launch.k, launch.head_dim),
                v: head(&launch.v, launch.head_dim_v),
            });
            sync_threads();
            let mut tile = Self {
                params,
                modifiers,
                config,
                stages,
                q_smem: stages + config.q_offset(),
                smem_info,
                warp: uniform(thread_idx_x() / WARP_SIZE),
                begin: uniform(blocks.begin),
                end: uniform(blocks.end),
            };
            if modifiers.hides() && tile.begin < tile.end && !tile.is_empty() {
                tile.begin = tile.first_shown(0);
            }
            tile
        }
    }

    /// The first block from `n_block` on that is not hidden; `end` if there is none.
    ///
    /// # Safety
    /// All 32 lanes must reach the same call, of a tile that is not empty.
    #[inline(always)]
    unsafe fn first_shown(&self, mut n_block: u32) -> u32 {
        while n_block < self.end && self.state(n_block) == BlockState::Hidden as u32 {
            n_block += 1;
        }
        n_block
    }

    /// The block after `n_block`.
    ///
    /// # Safety
    /// As [`first_shown`](Self::first_shown).
    #[inline(always)]
    pub unsafe fn next(&self, n_block: u32) -> u32 {
        if self.modifiers.hides() {
            self.first_shown(n_block + 1)
        } else {
            n_block + 1
        }
    }

    /// The [`BlockState`] of a block of keys.
    ///
    /// # Safety
    /// As [`first_shown`](Self::first_shown).
    #[inline(always)]
    unsafe fn state(&self, n_block: u32) -> u32 {
        let m_block = self.info().coord.m_block;
        uniform(self.modifiers.state(&self.place(), m_block, n_block))
    }

    /// The head of the sequence that the tile belongs to.
    #[inline(always)]
    pub fn place(&self) -> Place {
        let TileInfo {
            coord, sequence, ..
        } = self.info();
        let heads = self.params().attention.heads_q;
        Place::new(&sequence, coord.batch, coord.head, heads)
    }

    /// Whether the tile lies behind its sequence's last row.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.m_begin() >= self.info().sequence.seq_q
    }

    /// The parameters, [`reload`].
    #[inline(always)]
    pub fn params(&self) -> ForwardParams {
        reload(self.params)
    }

    /// The numbers of the tile.
    #[inline(always)]
    pub fn info(&self) -> TileInfo {
        // SAFETY: `new` has written them.
        unsafe { self.smem_info.load() }
    }

    /// First row of the tile.
    #[inline(always)]
    pub fn m_begin(&self) -> u32 {
        self.info().coord.m_block * self.config.block_m() as u32
    }

    /// First row of the warp, in the tile.
    #[inline(always)]
    pub fn warp_row(&self) -> u32 {
        black_box(self.warp) * self.warp_rows()
    }

    #[inline(always)]
    fn warp_rows(&self) -> u32 {
        (self.config.warp_tiles * TILE_M) as u32
    }

    /// The address of the warp's rows of Q.
    #[inline(always)]
    pub fn q_address(&self, lane: u32) -> LaneAddress {
        LaneAddress::q(self.warp_q(), self.config.columns(), lane)
    }

    /// Shared address of the warp's rows of Q.
    #[inline(always)]
    pub fn warp_q(&self) -> u32 {
        self.q_smem + self.warp_row() * row_bytes(self.config.columns())
    }

    /// First key of a block.
    #[inline(always)]
    pub fn key_begin(&self, n_block: u32) -> u32 {
        n_block * self.config.block_n as u32
    }

    /// Starts copying Q, as a group of its own.
    ///
    /// # Safety
    /// Nobody accesses Q's shared memory until the group is waited for and a barrier is passed.
    #[inline(always)]
    pub unsafe fn load_q(&self) {
        let config = self.config;
        let TileInfo {
            coord, sequence, ..
        } = self.info();
        let params = self.params();
        let address = sequence.q_address(&params.attention.q, coord.head, config.element_bytes);
        let q_gmem = Source::new(
            &params.attention.q,
            address,
            [sequence.seq_q, params.attention.head_dim],
            config.element_bytes,
        );
        let block_m = config.block_m() as u32;
        let plain = q_gmem.has_plain_rows(config.into());
        // SAFETY: the tile has room.
        unsafe {
            q_gmem.copy_rows(
                config.into(),
                self.q_smem,
                coord.m_block * block_m,
                block_m,
                plain,
            )
        };
        commit_group();
    }

    /// Starts copying a block of K, of V, or of both to stage `stage`, as a group of its own.
    ///
    /// # Safety
    /// Nobody accesses the stage's part until the group is waited for and a barrier is passed.
    #[inline(always)]
    pub unsafe fn load(&self, parts: Parts, stage: u32, n_block: u32) {
        let config = self.config;
        let TileInfo { sequence, k, v, .. } = self.info();
        let params = self.params();
        let (seq_kv, key_begin) = (sequence.seq_kv, self.key_begin(n_block));
        let block_n = config.block_n as u32;
        let k_gmem = Source::new(
            &params.attention.k,
            k.address,
            [seq_kv, params.attention.head_dim],
            config.element_bytes,
        );
        let v_gmem = Source::new(
            &params.attention.v,
            v.address,
            [seq_kv, params.attention.head_dim_v],
            config.element_bytes,
        );
        let k_smem = self.k_smem(stage);
        let v_smem = k_smem + config.operand_bytes();
        // SAFETY: the stage has room.
        unsafe {
            if parts.k {
                k_gmem.copy_rows(config.into(), k_smem, key_begin, block_n, k.plain);
            }
            if parts.v {
                v_gmem.copy_rows(config.into(), v_smem, key_begin, block_n, v.plain);
            }
        }
        commit_group();
    }

    /// K's part of a stage; V's follows.
    #[inline(always)]
    pub fn k_smem(&self, stage: u32) -> u32 {
        self.stages + stage * self.config.stage_bytes()
    }

    /// How the tile's scores are transformed.
    ///
    /// # Safety
    /// All 32 lanes must reach the same call.
    #[inline(always)]
    pub unsafe fn transform<E: Arithmetic>(&self) -> ScoreTransform {
        let BlockCoord { batch, head, .. } = self.info().coord;
        // SAFETY: forwarded to the caller, and to the one of `new`.
        unsafe {
            let (batch, head) = (uniform(batch), uniform(head));
            let score = &self.params().attention.score;
            if self.modifiers.changes_scores() {
                ScoreTransform::in_nats(score, batch, head, E::SHIFT)
            } else {
                ScoreTransform::new(score, batch, head, E::SHIFT)
            }
        }
    }

    /// The part of a block that this warp's rows see.
    ///
    /// # Safety
    /// All 32 lanes must reach the same call.
    #[inline(always)]
    pub unsafe fn warp_view(&self, n_block: u32) -> WarpView {
        if self.modifiers.hides() {
            return WarpView {
                needs_mask: self.state(n_block) != BlockState::Full as u32,
                masked_out: false,
            };
        }
        let block_n = self.config.block_n as u32;
        let key_begin = self.key_begin(n_block);
        let TileInfo {
            sequence, blocks, ..
        } = self.info();
        if !blocks.needs_mask(key_begin, block_n) {
            return WarpView::default();
        }
        let Sequence {
            seq_q,
            seq_kv,
            band,
            ..
        } = sequence;
        let begin = self.m_begin() + self.warp_row();
        let end = (begin + self.warp_rows()).min(seq_q);
        let blocks = BlockRange::new(begin.min(seq_q - 1), end, band, seq_kv, block_n);
        // SAFETY: a vote's result is known to be the same in all lanes.
        unsafe {
            WarpView {
                needs_mask: any(blocks.needs_mask(key_begin, block_n)),
                masked_out: any(n_block < blocks.begin || n_block >= blocks.end),
            }
        }
    }

    /// Transforms the scores of a block and masks them.
    ///
    /// # Safety
    /// As [`TileContext::new`].
    #[inline(always)]
    pub unsafe fn finish_scores<const ROWS: usize, const COLS: usize>(
        &self,
        acc_s: &mut [[f32; COLS]; ROWS],
        transform: &ScoreTransform,
        n_block: u32,
        lane: u32,
        needs_mask: bool,
    ) {
        let Sequence {
            seq_q,
            seq_kv,
            band,
            ..
        } = self.info().sequence;
        let lane_row = self.m_begin() + self.warp_row() + lane / 4;
        let query = |i: usize| lane_row + i as u32 * ROW_STEP;
        let column = |j: usize| row_column(0, j as u32) as i32;
        let first_key = self.key_begin(n_block) + row_column(lane, 0);
        let corner = seq_kv as i32 - seq_q as i32 - first_key as i32;
        transform.apply(acc_s, |i| query(i) as i32 + corner, column);
        let pair = |i: usize, j: usize| Pair {
            query: query(i),
            key: first_key + column(j) as u32,
        };
        if self.modifiers.changes_scores() {
            self.modifiers.change(|| self.place(), acc_s, pair);
        }
        if needs_mask {
            if self.modifiers.hides() {
                let hidden = f32::NEG_INFINITY;
                self.modifiers.hide(|| self.place(), acc_s, pair, hidden);
            } else {
                mask::apply_mask(acc_s, query, first_key, column, band, seq_kv);
            }
        }
    }

    /// Puts [`mask::MASKED_OUT`] in place of the probabilities of a block's keys that are masked out.
    ///
    /// # Safety
    /// As [`TileContext::new`].
    #[inline(always)]
    pub unsafe fn mark_masked_out<const ROWS: usize, const COLS: usize>(
        &self,
        p: &mut [[f32; COLS]; ROWS],
        n_block: u32,
        lane: u32,
    ) {
        let Sequence { band, seq_kv, .. } = self.info().sequence;
        let lane_row = self.m_begin() + self.warp_row() + lane / 4;
        let query = |i: usize| lane_row + i as u32 * ROW_STEP;
        let column = |j: usize| row_column(0, j as u32) as i32;
        let first_key = self.key_begin(n_block) + row_column(lane, 0);
        mask::mark_masked_out(p, query, first_key, column, band, seq_kv, mask::MASKED_OUT);
    }

    /// The probabilities of a block that are kept, bit `j` of word `i` for element `[i][j]`; all of them without dropout.
    ///
    /// # Safety
    /// As [`TileContext::new`].
    #[inline(always)]
    pub unsafe fn kept<const ROWS: usize, const COLS: usize>(
        &self,
        n_block: u32,
        lane: u32,
    ) -> [u32; ROWS] {
        match self.modifiers.dropout(&self.place()) {
            None => [!0; ROWS],
            Some(dropout) => dropout.fragment::<COLS, ROWS, false>(Pair {
                query: self.m_begin() + self.warp_row() + lane / 4,
                key: self.key_begin(n_block) + row_column(lane, 0),
            }),
        }
    }
}
