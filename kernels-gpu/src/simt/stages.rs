//! The two stages of a pipeline, one being computed on while the other is filled.

use core::marker::PhantomData;

use cuda_std::cp_async::wait_group;

use super::SimtKernel;

/// Which stage is which, and where they are in shared memory.
pub struct Stages<K> {
    /// Start of the first.
    smem: u32,
    /// The stage that is computed on.
    now: u32,
    kernel: PhantomData<K>,
}

impl<K: SimtKernel> Stages<K> {
    /// Empty stages at shared address `smem`.
    #[inline(always)]
    pub fn new(smem: u32) -> Self {
        Self {
            smem,
            now: 0,
            kernel: PhantomData,
        }
    }

    /// The stage that the first chunk goes to.
    #[inline(always)]
    pub fn first(&self) -> u32 {
        self.now
    }

    /// Shared address of a stage.
    #[inline(always)]
    pub fn address(&self, stage: u32) -> u32 {
        self.smem + stage * K::CONFIG.stage_bytes()
    }

    /// Waits for the chunk that was requested last, including the copies of the block's other threads, and for threads
    /// still computing on the chunk before. Returns the stage of that chunk, which is free.
    ///
    /// # Safety
    /// All threads that share the work reach the same call.
    #[inline(always)]
    pub unsafe fn wait(&self) -> u32 {
        wait_group::<0>();
        K::sync();
        self.now ^ 1
    }

    /// Shared address of the chunk that has arrived.
    #[inline(always)]
    pub fn chunk_smem(&self) -> u32 {
        self.address(self.now)
    }

    /// Moves on to the chunk that was requested last.
    #[inline(always)]
    pub fn advance(&mut self) {
        self.now ^= 1;
    }
}
