//! The side that passes: which blocks of it a tile needs, and the pipeline through which they arrive.

use cuda_std::cp_async::commit_group;

use super::super::copy::SmemRect;
use super::super::stages::Stages;
use super::super::{BLOCK_N, SimtKernel};
use super::tile::Tile;
use crate::abi::{BlockState, TensorArg};
use crate::backward::side::Side;
use crate::config::simt::SimtConfig;
use crate::modifiers::Modifiers;
use crate::tile::source::Source;
use crate::units::F32_BYTES;

/// One block of the passing side.
#[derive(Clone, Copy)]
pub struct Step {
    /// A head of the passing side.
    pub head: u32,
    /// First row.
    pub begin: u32,
}

/// An operand of either side.
#[derive(Clone, Copy, PartialEq)]
pub enum Operand {
    /// Q or K.
    First,
    /// dO or V.
    Second,
}

/// Loads chunks of the passing operands to two stages: `k_chunk` dimensions of a block's rows, or `v_chunk` of its rows.
pub struct Passing<'a, K: SimtKernel, S> {
    tile: &'a Tile<'a, S, K::Modifiers>,
    pub stages: Stages<K>,
}

impl<'a, K: SimtKernel, S: Side> Passing<'a, K, S> {
    /// A loader that nothing is asked of yet, with its stages at shared address `smem`.
    #[inline(always)]
    pub fn new(tile: &'a Tile<'a, S, K::Modifiers>, smem: u32) -> Self {
        Self {
            tile,
            stages: Stages::new(smem),
        }
    }

    /// The blocks that some row of the tile sees, as `begin..end`.
    ///
    /// # Safety
    /// As [`Tile::sequence`].
    #[inline(always)]
    unsafe fn blocks(&self) -> (u32, u32) {
        let extent = self.tile.extent();
        if self.tile.begin >= extent.kept {
            return (0, 0);
        }
        let range = self.tile.blocks(&extent, K::CONFIG.block_m() as u32);
        (range.begin, range.end)
    }

    /// The first block.
    ///
    /// # Safety
    /// As [`Tile::sequence`].
    #[inline(always)]
    pub unsafe fn first(&self) -> Option<Step> {
        let (begin, end) = self.blocks();
        let (head, _) = S::passing_heads(&self.tile.params.attention, self.tile.coord.head);
        let first = (begin < end).then_some(Step {
            head,
            begin: begin * BLOCK_N as u32,
        });
        self.shown(first)
    }

    /// Block number `block`, if some row of the tile sees it.
    ///
    /// # Safety
    /// As [`Tile::sequence`].
    #[inline(always)]
    pub unsafe fn at(&self, block: u32) -> Option<Step> {
        let (begin, end) = self.blocks();
        let (head, _) = S::passing_heads(&self.tile.params.attention, self.tile.coord.head);
        let step = Step {
            head,
            begin: block * BLOCK_N as u32,
        };
        let is_hidden =
            || self.tile.modifiers.hides() && self.tile.state(step) == BlockState::Hidden as u32;
        (begin <= block && block < end && !is_hidden()).then_some(step)
    }

    /// The block after `now` that is not hidden.
    ///
    /// # Safety
    /// As [`Tile::sequence`].
    #[inline(always)]
    pub unsafe fn next(&self, now: Step) -> Option<Step> {
        self.shown(self.following(now))
    }

    /// `step`, or the first one after it that is not hidden.
    ///
    /// # Safety
    /// As [`Tile::sequence`].
    #[inline(always)]
    unsafe fn shown(&self, mut step: Option<Step>) -> Option<Step> {
        if self.tile.modifiers.hides() {
            while let Some(at) = step
                && self.tile.state(at) == BlockState::Hidden as u32
            {
                step = self.following(at);
            }
        }
        step
    }

    /// The block after `now`, hidden or not: the next one of its head, or the first one of the next head.
    ///
    /// # Safety
    /// As [`Tile::sequence`].
    #[inline(always)]
    unsafe fn following(&self, now: Step) -> Option<Step> {
        let (begin, end) = self.blocks();
        let (_, heads_end) = S::passing_heads(&self.tile.params.attention, self.tile.coord.head);
        let next = now.begin + BLOCK_N as u32;
        if next < end * BLOCK_N as u32 {
            return Some(Step { begin: next, ..now });
        }
        (now.head + 1 < heads_end).then_some(Step {
            head: now.head + 1,
            begin: begin * BLOCK_N as u32,
        })
    }

    /// Rows of a block, at most [`BLOCK_N`].
    ///
    /// # Safety
    /// As [`Tile::sequence`].
    #[inline(always)]
    pub unsafe fn rows(&self, step: Step) -> u32 {
        (self.tile.extent().passing - step.begin).min(BLOCK_N as u32)
    }

    /// Dimensions of an operand.
    #[inline(always)]
    pub fn dims(&self, operand: Operand) -> u32 {
        match operand {
            Operand::First => self.tile.params.attention.head_dim,
            Operand::Second => self.tile.params.attention.head_dim_v,
        }
    }

    /// Starts loading the rows that are kept of an operand, in the same group as the chunk that is asked for next.
    ///
    /// # Safety
    /// Shared memory holds the tile there, and nobody accesses it until [`Stages::wait`].
    #[inline(always)]
    pub unsafe fn load_kept(&self, smem: u32, operand: Operand) {
        let Tile {
            params,
            coord,
            begin,
            ..
        } = *self.tile;
        let sequence = self.tile.sequence();
        let rows = S::extent(&sequence).kept;
        let tensor = match operand {
            Operand::First => S::first_kept(params),
            Operand::Second => S::second_kept(params),
        };
        let address = S::kept_address(&sequence, tensor, coord.head, F32_BYTES);
        let gmem = Source::new(tensor, address, [rows, self.dims(operand)], F32_BYTES);
        let to = SmemRect {
            address: smem,
            cols: K::CONFIG.head_dim,
            pad: SimtConfig::ROW_PAD,
        };
        let count = K::CONFIG.block_m() as u32;
        gmem.copy(K::workers(), to, begin, count, 0);
    }

    /// The operand that passes in a step.
    ///
    /// # Safety
    /// As [`Tile::sequence`].
    #[inline(always)]
    unsafe fn source(&self, operand: Operand, step: Step) -> Source {
        let sequence = self.tile.sequence();
        let rows = S::extent(&sequence).passing;
        let source = |tensor: &TensorArg| {
            let address = S::passing_address(&sequence, tensor, step.head, F32_BYTES);
            Source::new(tensor, address, [rows, self.dims(operand)], F32_BYTES)
        };
        match operand {
            Operand::First => source(S::first_passing(self.tile.params)),
            Operand::Second => source(S::second_passing(self.tile.params)),
        }
    }

    /// Starts loading chunk `chunk` of the dimensions of all rows of a block to a free stage.
    ///
    /// # Safety
    /// The stage is free: [`Stages::wait`] has just returned it, or nothing has been loaded yet.
    #[inline(always)]
    pub unsafe fn load_dims(&self, stage: u32, operand: Operand, step: Step, chunk: u32) {
        let to = SmemRect {
            address: self.stages.address(stage),
            cols: K::CONFIG.k_chunk,
            pad: SimtConfig::ROW_PAD,
        };
        let dim_begin = chunk * K::CONFIG.k_chunk as u32;
        let source = self.source(operand, step);
        source.copy(K::workers(), to, step.begin, BLOCK_N as u32, dim_begin);
        commit_group();
    }

    /// Starts loading chunk `chunk` of the rows of a block to a free stage.
    ///
    /// # Safety
    /// As [`Passing::load_dims`].
    #[inline(always)]
    pub unsafe fn load_rows(&self, stage: u32, operand: Operand, step: Step, chunk: u32) {
        let to = SmemRect {
            address: self.stages.address(stage),
            cols: K::CONFIG.head_dim,
            pad: 0,
        };
        let v_chunk = K::CONFIG.v_chunk() as u32;
        let source = self.source(operand, step);
        source.copy(K::workers(), to, step.begin + chunk * v_chunk, v_chunk, 0);
        commit_group();
    }
}
