//! The pipeline through which K and V arrive: two stages, of which one is computed on and one is filled; or one, of which K is
//! computed on while V is filled, and V while the next K is.

use core::marker::PhantomData;

use cuda_std::cp_async::{commit_group, wait_group};
use cuda_std::thread::sync_threads;
use cuda_std::warp::lane_id;

use super::MmaKernel;
use super::context::{Parts, TileContext};
use super::gemm::QFragments;
use super::non_finite::NonFiniteMask;

/// The stage that all blocks of keys pass through where V is sanitised; the mask lies in the other.
const SANITIZED_STAGE: u32 = 1;

/// Loads blocks of K and V.
pub struct KvLoader<'a, K: MmaKernel> {
    tile: &'a TileContext<'a, K::Modifiers>,
    /// Where V's non-finite elements go, if they are taken out of it.
    non_finite: Option<NonFiniteMask>,
    /// The stage that is computed on.
    stage: u32,
    kernel: PhantomData<K>,
}

impl<'a, K: MmaKernel> KvLoader<'a, K> {
    /// What is loaded first of a stage.
    const FIRST: Parts = match K::CONFIG.stages {
        1 => Parts::K,
        _ => Parts::BOTH,
    };

    /// A loader that nothing is asked of yet.
    #[inline(always)]
    pub fn new(tile: &'a TileContext<'a, K::Modifiers>, non_finite: Option<NonFiniteMask>) -> Self {
        Self {
            tile,
            non_finite,
            stage: 0,
            kernel: PhantomData,
        }
    }

    /// Starts loading Q and the first block of K and V, and moves Q to registers if that is where it is kept.
    ///
    /// # Safety
    /// The whole block reaches the same call; shared memory is free, and there is a block of keys.
    #[inline(always)]
    pub unsafe fn load_first<const ROWS: usize, const K_STEPS: usize>(
        &self,
        q: &mut QFragments<K, ROWS, K_STEPS>,
    ) {
        self.tile.load_q();
        // The mask of non-finite elements takes the place of stage 0.
        if let Some(mask) = self.non_finite {
            mask.clear();
            commit_group();
        } else {
            self.tile.load(Self::FIRST, 0, self.tile.begin);
        }
        if K::CONFIG.q_in_registers {
            // The barrier shows Q, though not yet the block of K and V.
            wait_group::<1>();
            sync_threads();
            q.fill(self.tile.q_address(lane_id()));
        }
    }

    /// Waits for block `n_block`, or its K where there is one stage, and starts loading `next_block`, the one after it, or V.
    ///
    /// # Safety
    /// The whole block reaches the same call.
    #[inline(always)]
    pub unsafe fn wait(&mut self, n_block: u32, next_block: u32) {
        let (next_block, next_stage) = if self.non_finite.is_some() {
            self.stage = SANITIZED_STAGE;
            (n_block, SANITIZED_STAGE)
        } else {
            (next_block, self.stage ^ 1)
        };
        wait_group::<0>();
        // The barrier publishes this stage, or its K, and frees the other, or V.
        sync_threads();
        if K::CONFIG.stages == 1 {
            self.tile.load(Parts::V, 0, n_block);
            return;
        }
        if next_block < self.tile.end {
            self.tile.load(Parts::BOTH, next_stage, next_block);
        }
        if let Some(mask) = self.non_finite {
            self.sanitize(mask, n_block);
        }
    }

    /// Where there is one stage, waits for V of the block whose K has been computed on, and starts loading the K of `next_block`.
    ///
    /// # Safety
    /// As [`KvLoader::wait`].
    #[inline(always)]
    pub unsafe fn wait_v(&self, next_block: u32) {
        if K::CONFIG.stages == 1 {
            wait_group::<0>();
            // The barrier publishes V and frees K.
            sync_threads();
            if next_block < self.tile.end {
                self.tile.load(Parts::K, 0, next_block);
            }
        }
    }

    /// Shared address of the block of K that has arrived; V follows it.
    #[inline(always)]
    pub fn k_smem(&self) -> u32 {
        self.tile.k_smem(self.stage)
    }

    /// Waits for the block in [`SANITIZED_STAGE`] and takes the non-finite elements out of V.
    ///
    /// # Safety
    /// As [`KvLoader::wait`].
    #[inline(always)]
    unsafe fn sanitize(&self, mask: NonFiniteMask, n_block: u32) {
        wait_group::<0>();
        // SAFETY: the stage has arrived after the first barrier, and is clean after the second.
        unsafe {
            sync_threads();
            let v_smem = self.tile.k_smem(SANITIZED_STAGE) + K::CONFIG.operand_bytes();
            mask.sanitize_v::<K>(self.tile, v_smem, self.tile.key_begin(n_block));
            sync_threads();
        }
    }

    /// Goes on to the next block.
    #[inline(always)]
    pub fn advance(&mut self) {
        self.stage ^= K::CONFIG.stages - 1;
    }
}
