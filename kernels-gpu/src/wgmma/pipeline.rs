//! Pipelines of shared-memory stages between one producer thread and the consumer warps.
//!
//! Every stage has a `full` barrier, on which the producer's copies count, and an `empty` one, at which each
//! consumer warp arrives when it has read the stage. Both sides go through the stages in the same order. The
//! names are those of CUTLASS's `PipelineState` and `PipelineTmaAsync`.

// Most operations of an unsafe function here need exactly the conditions under its `# Safety`.
#![allow(unsafe_op_in_unsafe_fn)]

use cuda_std::mbarrier;

use crate::tile::black_box;

/// Initialises the barriers of so many stages: the first of the full ones and of the empty ones, and how often each is arrived at.
///
/// # Safety
/// One thread of the block calls it, before any other uses a barrier; [`mbarrier::fence_init`] follows.
#[inline(always)]
pub unsafe fn init_stages([full, empty]: [u32; 2], stages: u32, [writers, readers]: [u32; 2]) {
    let mut stage = 0;
    while stage < stages {
        mbarrier::init(full + stage * mbarrier::BYTES, writers);
        mbarrier::init(empty + stage * mbarrier::BYTES, readers);
        stage += 1;
    }
}

/// One side's place in a pipeline.
#[derive(Clone, Copy)]
pub struct PipelineState {
    /// First of the full barriers.
    full: u32,
    /// First of the empty barriers.
    empty: u32,
    /// Known at compile time, once inlined.
    stages: u32,
    pub stage: u32,
    /// Parity of the phase this side waits for next.
    phase: u32,
}

impl PipelineState {
    /// The consumers' side: the first full phase is 0.
    #[inline(always)]
    pub fn consumer(full: u32, empty: u32, stages: u32) -> Self {
        Self {
            full,
            empty,
            stages,
            stage: 0,
            phase: 0,
        }
    }

    /// The producer's side: stages start empty, so the phase before the first counts as complete.
    #[inline(always)]
    pub fn producer(full: u32, empty: u32, stages: u32) -> Self {
        Self::consumer(full, empty, stages).as_producer()
    }

    /// The producer's view of the stage that this consumer is at.
    #[inline(always)]
    pub fn as_producer(self) -> Self {
        Self {
            phase: self.phase ^ 1,
            ..self
        }
    }

    /// The full barrier of the present stage.
    #[inline(always)]
    pub fn full_barrier(&self) -> u32 {
        self.full + self.stage * mbarrier::BYTES
    }

    /// The empty barrier of the present stage.
    #[inline(always)]
    pub fn empty_barrier(&self) -> u32 {
        self.empty + self.stage * mbarrier::BYTES
    }

    /// Waits until the present stage is full.
    ///
    /// # Safety
    /// The barriers are initialised.
    #[inline(always)]
    pub unsafe fn consumer_wait(&self) {
        mbarrier::wait(self.full_barrier(), self.phase)
    }

    /// As [`Self::consumer_wait`], for a stage that another block of the cluster wrote.
    ///
    /// # Safety
    /// The barriers are initialised.
    #[inline(always)]
    pub unsafe fn consumer_wait_cluster(&self) {
        mbarrier::wait_published(self.full_barrier(), self.phase)
    }

    /// Waits until the present stage is empty.
    ///
    /// # Safety
    /// The barriers are initialised.
    #[inline(always)]
    pub unsafe fn producer_acquire(&self) {
        mbarrier::wait(self.empty_barrier(), self.phase)
    }

    /// A consumer warp has read the present stage: it arrives at the stage's empty barrier in each of
    /// the cluster's blocks, as their producers each fill a part of this block's stage.
    ///
    /// # Safety
    /// All lanes of the warp reach the same call, once a stage.
    #[inline(always)]
    pub unsafe fn consumer_release(&self, lane: u32, cluster: u32) {
        self.consumer_release_if(true, lane, cluster)
    }

    /// As [`Self::consumer_release`] where `condition` holds, which is the same in the whole warp: without a branch.
    ///
    /// # Safety
    /// As [`Self::consumer_release`].
    #[inline(always)]
    pub unsafe fn consumer_release_if(&self, condition: bool, lane: u32, cluster: u32) {
        if cluster == 1 {
            mbarrier::arrive_if(condition & (lane == 0), self.empty_barrier());
        } else {
            let empty = self.empty_barrier();
            mbarrier::arrive_at_if(condition & (lane < cluster), empty, lane % cluster);
        }
    }

    /// The same state, hidden from the optimiser: values derived from it are computed again at each use.
    #[inline(always)]
    pub fn reload(self) -> Self {
        Self {
            stage: black_box(self.stage),
            phase: black_box(self.phase),
            ..self
        }
    }

    /// The producer's view of the stage after the one this consumer is at.
    #[inline(always)]
    pub fn next_as_producer(mut self) -> Self {
        self.advance();
        self.as_producer()
    }

    /// The state after `step` calls of [`advance`](Self::advance): where those who use a pipeline count steps, it need not be
    /// kept.
    #[inline(always)]
    pub fn at(self, step: u32) -> Self {
        Self {
            stage: step % self.stages,
            phase: self.phase ^ (step / self.stages % 2),
            ..self
        }
    }

    /// The same stage and phase of the pipeline `other`, which takes the same turns.
    #[inline(always)]
    pub fn with_barriers_of(self, other: Self) -> Self {
        Self {
            stage: self.stage,
            phase: self.phase,
            ..other
        }
    }

    /// Goes to the next stage.
    #[inline(always)]
    pub fn advance(&mut self) {
        self.stage += 1;
        if self.stage == self.stages {
            self.stage = 0;
            self.phase ^= 1;
        }
    }
}
