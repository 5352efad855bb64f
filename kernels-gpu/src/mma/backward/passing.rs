//! The pipeline through which the passing side arrives.
//!
//! With two stages, both operands of the next block are on their way while one is computed on. With one, each operand is
//! asked for as soon as nobody reads its predecessor, the first before the second, and waited for in that order.

use cuda_std::cp_async::{commit_group, copy4, wait_group};
use cuda_std::thread::{sync_threads, thread_idx_x};

use super::super::copy::{RowShape, Source};
use super::MmaBackwardKernel;
use super::tile::{Smem, Step, Tile, renewed_strides, terms_rows};
use crate::abi::TensorArg;
use crate::backward::side::Side;
use crate::tile::black_box;
use crate::units::{F32_BYTES, HALF_BYTES};

/// Loads what a tile keeps and what passes.
pub struct Passing<'a, K> {
    tile: &'a Tile<'a, K>,
    /// The stage that is computed on.
    pub stage: u32,
}

impl<'a, K: MmaBackwardKernel> Passing<'a, K> {
    const HAS_STAGES: bool = K::CONFIG.stages > 1;

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
        self.load(0, first, [true, false]);
        if !Self::HAS_STAGES {
            commit_group();
        }
        self.load(0, first, [false, true]);
        commit_group();
    }

    /// Waits for the block's first operand. With two stages the second has arrived too, and the block after `now` is asked
    /// for.
    ///
    /// # Safety
    /// The whole block reaches the same call.
    #[inline(always)]
    pub unsafe fn wait_first(&self, now: Step) {
        if !Self::HAS_STAGES {
            wait_group::<1>();
            sync_threads();
            return;
        }
        wait_group::<0>();
        // The barrier publishes this stage and frees the other.
        sync_threads();
        if let Some(next) = self.tile.next(now) {
            self.load(self.stage ^ 1, next, [true, true]);
            commit_group();
        }
    }

    /// Waits for the block's second operand.
    ///
    /// # Safety
    /// The whole block reaches the same call.
    #[inline(always)]
    pub unsafe fn wait_second(&self) {
        if !Self::HAS_STAGES {
            wait_group::<0>();
            sync_threads();
        }
    }

    /// The warp reads the block's first operand no more.
    ///
    /// # Safety
    /// The whole block reaches the same call.
    #[inline(always)]
    pub unsafe fn release_first(&self, now: Step) {
        if Self::HAS_STAGES {
            return;
        }
        sync_threads();
        if let Some(next) = self.tile.next(now) {
            self.load(0, next, [true, false]);
            commit_group();
        }
    }

    /// The warp reads the block's second operand no more.
    ///
    /// # Safety
    /// The whole block reaches the same call.
    #[inline(always)]
    pub unsafe fn release_second(&self, now: Step) {
        if Self::HAS_STAGES {
            return;
        }
        if K::Side::HAS_SECOND {
            sync_threads();
        }
        if let Some(next) = self.tile.next(now) {
            self.load(0, next, [false, true]);
            commit_group();
        }
    }

    /// Goes on to the next block.
    #[inline(always)]
    pub fn advance(&mut self) {
        if Self::HAS_STAGES {
            self.stage ^= 1;
        }
    }

    /// Starts loading operands of a block, the first, the second or both, to a stage.
    ///
    /// # Safety
    /// The whole block reaches the same call, and nobody accesses the operands' places in the stage.
    #[inline(always)]
    unsafe fn load(&self, stage: u32, step: Step, [first, second]: [bool; 2]) {
        let smem = Smem::passing::<K>(stage);
        let params = self.tile.params;
        let sequence = self.tile.sequence();
        let rows = K::Side::extent(&sequence).passing;
        let (begin, block_n) = (step.begin, K::CONFIG.block_n as u32);
        let load = |smem: u32, tensor: &TensorArg, dims: u32| {
            let tensor = &renewed_strides::<K>(tensor, begin);
            let address = K::Side::passing_address(&sequence, tensor, step.head, HALF_BYTES);
            load_rows::<K>(
                &Source::new(tensor, address, rows, dims),
                smem,
                begin,
                block_n,
            );
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
        let source = Source::new(tensor, address, rows, dims);
        load_rows::<K>(&source, smem, self.tile.begin, K::CONFIG.block_m as u32);
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

/// Starts copying `rows` rows of a source to a tile.
///
/// # Safety
/// As [`Source::copy`].
#[inline(always)]
unsafe fn load_rows<K: MmaBackwardKernel>(source: &Source, smem: u32, begin: u32, rows: u32) {
    let shape = RowShape {
        head_dim: K::CONFIG.head_dim,
        threads: K::CONFIG.threads(),
    };
    source.copy(shape, smem, begin, rows, source.has_plain_rows(shape));
}
