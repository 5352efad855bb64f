//! The pipeline through which the passing side arrives.
//!
//! With two stages, both operands of the next block are on their way while one is computed on. With one, where dq is added up,
//! both are asked for while the warps multiply dS of the block before with what is kept; else each is asked for as soon as nobody
//! reads its predecessor, the first before the second, and waited for in that order.

use cuda_std::cp_async::{commit_group, copy4, wait_group};
use cuda_std::thread::{sync_threads, thread_idx_x};
use cuda_std::warp::any;

use super::super::copy::RowShape;
use super::MmaBackwardKernel;
use super::block::sync_block;
use super::tile::{Smem, Step, Tile, renewed_strides, terms_rows};
use crate::abi::TensorArg;
use crate::backward::side::Side;
use crate::tile::black_box;
use crate::tile::source::Source;
use crate::units::{F32_BYTES, HALF_BYTES};

/// Loads what a tile keeps and what passes.
pub struct Passing<'a, K: MmaBackwardKernel> {
    tile: &'a Tile<'a, K>,
    /// The stage that is computed on.
    pub stage: u32,
}

impl<'a, K: MmaBackwardKernel> Passing<'a, K> {
    const HAS_STAGES: bool = K::CONFIG.stages > 1;
    /// Whether the operands of the next block are asked for one after the other, while this one's are read.
    const REFILLS: bool = !Self::HAS_STAGES && !K::ADDS_DQ;
    /// A loader that nothing is asked of yet.
    #[inline(always)]
    pub fn new(tile: &'a Tile<'a, K>) -> Self {
        Self { tile, stage: 0 }
    }

    /// Starts loading what is kept and the first block.
    ///
    /// # Safety
    /// The whole block reaches the same call, and nobody accesses shared memory.
    #[inline(always)]
    pub unsafe fn load_first(&self, first: Step) {
        self.load_kept_first();
        self.load_kept_second();
        if !K::Side::HAS_SECOND {
            let extent = self.tile.extent();
            self.load_terms(self.tile.head, self.tile.begin, extent.kept);
        }
        let threads = K::CONFIG.threads();
        self.load(0, first, [true, false], threads);
        if Self::REFILLS {
            commit_group();
        }
        self.load(0, first, [false, true], threads);
        commit_group();
    }

    /// Waits for all that was asked for, with the whole block.
    ///
    /// # Safety
    /// The whole block reaches the same call, or one after which it has passed as many barriers.
    #[inline(always)]
    pub unsafe fn wait_all(&self) {
        wait_group::<0>();
        sync_block::<K>();
    }

    /// Waits until nobody reads the block before `now` any more, and all of its dS is visible; with two stages also for `now`. With
    /// one, `now` is asked for, unless it is the first.
    ///
    /// # Safety
    /// As [`Passing::wait_all`].
    #[inline(always)]
    pub unsafe fn pass(&self, now: Option<Step>, is_first: bool) {
        if Self::HAS_STAGES {
            self.wait_all();
        } else if !Self::REFILLS && !is_first {
            sync_threads();
            if let Some(now) = now {
                self.load(0, now, [true, true], K::CONFIG.threads());
                commit_group();
            }
        }
    }

    /// Waits for the block, or its first operand alone.
    ///
    /// # Safety
    /// The whole block reaches the same call.
    #[inline(always)]
    pub unsafe fn wait_first(&self) {
        if Self::REFILLS {
            wait_group::<1>();
            sync_threads();
        } else if !Self::HAS_STAGES {
            self.wait_all();
        }
    }

    /// Waits for the block's second operand.
    ///
    /// # Safety
    /// The whole block reaches the same call.
    #[inline(always)]
    pub unsafe fn wait_second(&self) {
        if Self::REFILLS {
            self.wait_all();
        }
    }

    /// The warp reads the block's first operand no more.
    ///
    /// # Safety
    /// The whole block reaches the same call.
    #[inline(always)]
    pub unsafe fn release_first(&self, now: Step) {
        if Self::REFILLS {
            sync_threads();
            self.refill(now, [true, false]);
        }
    }

    /// The warp reads the block's second operand no more.
    ///
    /// # Safety
    /// The whole block reaches the same call.
    #[inline(always)]
    pub unsafe fn release_second(&self, now: Step) {
        if Self::REFILLS {
            if K::Side::HAS_SECOND {
                sync_threads();
            }
            self.refill(now, [false, true]);
        }
    }

    /// Asks for an operand of the block after `now`.
    ///
    /// # Safety
    /// As [`Passing::load`].
    #[inline(always)]
    unsafe fn refill(&self, now: Step, operands: [bool; 2]) {
        if let Some(next) = self.tile.next(now) {
            self.load(0, next, operands, K::CONFIG.threads());
            commit_group();
        }
    }

    /// Where halves of the warps take turns: waits for the other half. The block after `now` is asked for, by the half that comes
    /// first, as the other still reads the block before in its turn.
    ///
    /// # Safety
    /// As [`Passing::wait_all`].
    #[inline(always)]
    pub unsafe fn take_turns(&self, now: Step, warp: u32) {
        // Nothing of this thread's is on its way: `pass` has waited.
        sync_block::<K>();
        if any(warp < K::CONFIG.warps / 2)
            && let Some(next) = self.tile.next(now)
        {
            let threads = K::CONFIG.threads() / 2;
            self.load(self.stage ^ 1, next, [true, true], threads);
            commit_group();
        }
    }

    /// Asks for the block after `now`, if there is a stage for it.
    ///
    /// # Safety
    /// The whole block reaches the same call.
    #[inline(always)]
    pub unsafe fn load_next(&self, now: Step) {
        if !Self::HAS_STAGES {
            return;
        }
        let Some(next) = self.tile.next(now) else {
            return;
        };
        self.load(self.stage ^ 1, next, [true, true], K::CONFIG.threads());
        commit_group();
    }

    /// Goes on to the next block.
    #[inline(always)]
    pub fn advance(&mut self) {
        if Self::HAS_STAGES {
            self.stage ^= 1;
        }
    }

    /// Starts loading operands of a block, the first, the second or both, to a stage; the block's first `threads` threads do.
    ///
    /// # Safety
    /// They all reach the same call, and nobody accesses the operands' places in the stage.
    #[inline(always)]
    unsafe fn load(&self, stage: u32, step: Step, [first, second]: [bool; 2], threads: u32) {
        let smem = Smem::passing::<K>(stage);
        let params = self.tile.params;
        let sequence = self.tile.sequence();
        let rows = K::Side::extent(&sequence).passing;
        let (begin, block_n) = (step.begin, K::CONFIG.block_n as u32);
        let shape = row_shape::<K>(threads);
        let load = |smem: u32, tensor: &TensorArg, dims: u32| {
            let tensor = &renewed_strides::<K>(tensor, begin);
            let address = K::Side::passing_address(&sequence, tensor, step.head, HALF_BYTES);
            let source = Source::new(tensor, address, [rows, dims], HALF_BYTES);
            load_rows(&source, shape, smem, begin, block_n);
        };
        if first {
            let dims = params.attention.head_dim;
            load(smem[0], K::Side::first_passing(params), dims);
            if K::Side::HAS_SECOND {
                self.load_terms_to(stage, step.head, begin, rows);
            }
        }
        if second {
            let dims = params.attention.head_dim_v;
            load(smem[1], K::Side::second_passing(params), dims);
        }
    }

    /// Starts loading the first operand that is kept.
    ///
    /// # Safety
    /// The whole block reaches the same call, and nobody accesses the operand's place.
    #[inline(always)]
    pub unsafe fn load_kept_first(&self) {
        let params = self.tile.params;
        let dims = params.attention.head_dim;
        self.load_kept(K::Side::first_kept(params), dims, Smem::kept::<K>()[0]);
    }

    /// # Safety
    /// As [`Passing::load_kept_first`].
    #[inline(always)]
    unsafe fn load_kept_second(&self) {
        let params = self.tile.params;
        let dims = params.attention.head_dim_v;
        self.load_kept(K::Side::second_kept(params), dims, Smem::kept::<K>()[1]);
    }

    /// # Safety
    /// As [`Passing::load_kept_first`].
    #[inline(always)]
    unsafe fn load_kept(&self, tensor: &TensorArg, dims: u32, smem: u32) {
        let sequence = self.tile.sequence();
        let rows = K::Side::extent(&sequence).kept;
        let tensor = &renewed_strides::<K>(tensor, self.tile.begin);
        let address = K::Side::kept_address(&sequence, tensor, self.tile.head, HALF_BYTES);
        let source = Source::new(tensor, address, [rows, dims], HALF_BYTES);
        let shape = row_shape::<K>(K::CONFIG.threads());
        load_rows(
            &source,
            shape,
            smem,
            self.tile.begin,
            K::CONFIG.block_m as u32,
        );
    }

    /// # Safety
    /// As [`Passing::load_terms_to`].
    #[inline(always)]
    unsafe fn load_terms(&self, head: u32, begin: u32, rows: u32) {
        self.load_terms_to(0, head, begin, rows);
    }

    /// Starts loading lse and delta of queries from `begin` on, of which there are `rows`; of others, zeros.
    ///
    /// # Safety
    /// As [`Passing::load`].
    #[inline(always)]
    unsafe fn load_terms_to(&self, stage: u32, head: u32, begin: u32, rows: u32) {
        let attention = &self.tile.params.attention;
        let terms = &self.tile.params.terms;
        let [lse_smem, delta_smem] = Smem::terms::<K>(stage);
        let thread = black_box(thread_idx_x());
        if thread >= terms_rows::<K>() {
            return;
        }
        let row = begin + thread;
        let valid_bytes = if row < rows { F32_BYTES } else { 0 };
        let sequence = self.tile.sequence();
        let offset = (row * F32_BYTES) as u64;
        let place = thread * F32_BYTES;
        let lse = sequence.row_address(attention, terms.lse_log2, head);
        copy4(lse_smem + place, lse + offset, valid_bytes);
        let delta = sequence.row_address(attention, terms.delta, head);
        copy4(delta_smem + place, delta + offset, valid_bytes);
    }
}

/// The rows of a tile that `threads` threads copy.
#[inline(always)]
fn row_shape<K: MmaBackwardKernel>(threads: u32) -> RowShape {
    RowShape {
        head_dim: K::CONFIG.head_dim,
        threads,
    }
}

/// Starts copying `rows` rows of a source to a tile.
///
/// # Safety
/// As [`Source::copy_rows`].
#[inline(always)]
unsafe fn load_rows(source: &Source, shape: RowShape, smem: u32, begin: u32, rows: u32) {
    source.copy_rows(shape, smem, begin, rows, source.has_plain_rows(shape));
}
