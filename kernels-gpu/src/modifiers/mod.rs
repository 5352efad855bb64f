//! What may change, hide or drop single pairs of a query and a key, beyond scale, softcap, ALiBi and the band.
//!
//! | file | holds |
//! |---|---|
//! | `place` | where pairs are |
//! | `visible` | which keys a query sees: masks, blocks, documents, a prefix, chunks, dilation |
//! | `block_state` | what many pairs look like at once |
//! | `shown` | which elements of a tile are shown |
//! | `bias` | biases that can be copied |
//! | `dropout` | which probabilities are dropped |
//! | `keep_mask` | where that lies in memory, found before a backward pass needs it |
//! | `score_mod` | score modifications of a user's own |
//! | `load` | loads by address, on the GPU and on the host |
//!
//! Kernels are generic over [`Modifiers`]. With [`NoModifiers`] nothing of it remains in their PTX; with [`ModifierParams`] they
//! ask for each option at run time, of blocks where it matters; with [`WithScoreMod`] a user's [`ScoreMod`] is compiled in beside
//! these. The CPU backend asks the same functions.

// Arrays in registers, indexed by constants once loops over them are unrolled.
#![allow(clippy::needless_range_loop)]

mod bias;
mod block_state;
pub mod dropout;
pub mod keep_mask;
pub mod load;
mod place;
mod score_mod;
mod shown;
mod visible;

use core::ops::Range;

use bytemuck::Zeroable;

use crate::abi::{BiasType, BlockState, DeviceAddress, KeepMaskArg, ModifierParams, SinkParams};
#[cfg(target_arch = "nvptx64")]
use crate::tile::black_box;
use crate::tile::row_state::{Finalized, RowState};
use crate::units::{F32_BYTES, HALF_BYTES};
pub use bias::BiasRows;
use dropout::Dropout;
use keep_mask::KeepMask;
pub use place::{Pair, Place};
pub use score_mod::{
    Buffer, Hides, MAX_BUFFERS, MAX_PARAM_BYTES, ScoreMod, ScoreModKernels, WithScoreMod,
};
use shown::existing;
pub use visible::address as pair_address;

/// What a kernel asks about single pairs. What is not said is as without modifiers.
///
/// # Safety
/// Of every unsafe function: the arrays of the parameters are live and have an element for every pair of the launch, and all
/// [`Place`]s and [`Pair`]s given are of it.
pub trait Modifiers: Copy {
    /// Whether single pairs are left alone, known when a kernel is compiled.
    const IS_NONE: bool;

    /// Whether rows may have sinks, known when a kernel is compiled.
    const MAY_SINK: bool = !Self::IS_NONE;

    /// Whether [`change_with_slope`](Self::change_with_slope) tells of derivatives.
    const HAS_SLOPE: bool = false;

    /// Whether [`change`](Self::change) changes anything. Scores are in nats then.
    #[inline(always)]
    fn changes_scores(&self) -> bool {
        false
    }

    /// Whether pairs may be hidden that the band shows, or the other way round: then every tile has [`BlockState`]s.
    #[inline(always)]
    fn hides(&self) -> bool {
        false
    }

    /// What the pairs of a tile of queries and a block of keys look like, as a number.
    ///
    /// # Safety
    /// As [`Modifiers`]; there are such states.
    #[inline(always)]
    unsafe fn state(&self, at: &Place, tile: u32, block: u32) -> u32 {
        // SAFETY: the caller vouches for the states.
        unsafe { load::u8(self.states(at, tile) + u64::from(block)) as u32 }
    }

    /// The device address of the states of a tile's blocks, a byte each, a multiple of 4.
    #[inline(always)]
    fn states(&self, _at: &Place, _tile: u32) -> u64 {
        0
    }

    /// What all pairs of `queries` and `keys`, neither of them empty, look like, where that is told without asking each: never
    /// better than it is. All of them exist.
    ///
    /// # Safety
    /// As [`Modifiers`].
    #[inline(always)]
    unsafe fn state_of(
        &self,
        _at: &Place,
        _queries: Range<u32>,
        _keys: Range<u32>,
    ) -> Option<BlockState> {
        None
    }

    /// Turns scores in nats, of the head at `at()`, after softcap and ALiBi, into those that enter the softmax; element `[i][j]` is that of
    /// `pair(i, j)`. Elements of pairs that do not exist become anything. `at` is asked again and again, so that a kernel need not
    /// keep what it says in registers.
    ///
    /// # Safety
    /// As [`Modifiers`].
    #[inline(always)]
    unsafe fn change<const COLS: usize, const ROWS: usize>(
        &self,
        _at: impl Fn() -> Place,
        _scores: &mut [[f32; COLS]; ROWS],
        _pair: impl Fn(usize, usize) -> Pair,
    ) {
    }

    /// What [`change`](Self::change) adds to the scores of so many queries and keys from pair `first` on, if it does nothing else, all of
    /// these pairs exist, and it can be copied to shared memory.
    #[inline(always)]
    fn biases(&self, _at: &Place, _first: Pair, _queries: u32, _keys: u32) -> Option<BiasRows> {
        None
    }

    /// As [`change`](Self::change), and calls `slope(i, j, s)` with the derivative `s` of each score by what it was, where that may
    /// differ from 1.
    ///
    /// # Safety
    /// As [`Modifiers`].
    #[inline(always)]
    unsafe fn change_with_slope<const COLS: usize, const ROWS: usize>(
        &self,
        at: impl Fn() -> Place,
        scores: &mut [[f32; COLS]; ROWS],
        pair: impl Fn(usize, usize) -> Pair,
        slope: impl FnMut(usize, usize, f32),
    ) {
        let _ = slope;
        // SAFETY: forwarded to the caller.
        unsafe { self.change(at, scores, pair) };
    }

    /// Sets elements of pairs that are hidden, or do not exist, to `mark`.
    ///
    /// # Safety
    /// As [`Modifiers`].
    #[inline(always)]
    unsafe fn hide<const COLS: usize, const ROWS: usize>(
        &self,
        _at: impl Fn() -> Place,
        _tile: &mut [[f32; COLS]; ROWS],
        _pair: impl Fn(usize, usize) -> Pair,
        _mark: f32,
    ) {
    }

    /// Whether a pair that exists is shown.
    ///
    /// # Safety
    /// As [`Modifiers`].
    #[inline(always)]
    unsafe fn sees(&self, _at: &Place, _pair: Pair) -> bool {
        true
    }

    /// Whether probabilities may be dropped.
    #[inline(always)]
    fn drops(&self) -> bool {
        false
    }

    /// Which probabilities are dropped, if any.
    ///
    /// # Safety
    /// As [`Modifiers`].
    #[inline(always)]
    unsafe fn dropout(&self, _at: &Place) -> Option<Dropout> {
        None
    }

    /// The keep mask of query head `head` of batch entry `batch`, which a kernel that adds dq up finds in memory, of a launch of `heads`
    /// query heads that drops probabilities.
    #[inline(always)]
    fn keep_mask(&self, batch: u32, head: u32, heads: u32) -> KeepMask {
        KeepMaskArg::zeroed().of_head(batch, head, heads)
    }

    /// Which heads of k and v, of all batch entries, a launch of such a kernel takes: the first, and how many, if not all.
    #[inline(always)]
    fn units(&self) -> Option<(u32, u32)> {
        None
    }

    /// Multiplies probabilities that stay; 1 without dropout.
    #[inline(always)]
    fn dropout_scale(&self) -> f32 {
        1.0
    }

    /// Closes a row of query head `head` whose parts of the sum add up to `sum`.
    ///
    /// # Safety
    /// As [`Modifiers`].
    #[inline(always)]
    unsafe fn finalize<const LANES: u32, const STRIDE: u32>(
        &self,
        row: &RowState<LANES, STRIDE>,
        sum: f32,
        _head: u32,
    ) -> Finalized {
        row.finalize_sum(sum)
    }
}

/// As on the GPU, where it hides a value from the optimiser.
#[cfg(not(target_arch = "nvptx64"))]
fn black_box(value: u32) -> u32 {
    value
}

/// No modifiers: what kernels of plain problems are compiled with.
#[derive(Clone, Copy)]
pub struct NoModifiers;

impl Modifiers for NoModifiers {
    const IS_NONE: bool = true;
}

impl Modifiers for SinkParams {
    const IS_NONE: bool = true;
    const MAY_SINK: bool = true;

    #[inline(always)]
    unsafe fn finalize<const LANES: u32, const STRIDE: u32>(
        &self,
        row: &RowState<LANES, STRIDE>,
        sum: f32,
        head: u32,
    ) -> Finalized {
        match self.sinks {
            None => row.finalize_sum(sum),
            // SAFETY: forwarded to the caller.
            Some(sinks) => row.finalize_with_sink(sum, unsafe { sink_of(sinks, head) }),
        }
    }
}

/// The score of the sink of query head `head`, in nats.
///
/// # Safety
/// `sinks` is the address of one for each head.
#[inline(always)]
pub unsafe fn sink_of(sinks: DeviceAddress, head: u32) -> f32 {
    // SAFETY: there is one for each head.
    unsafe { f32::from_bits(load::u32(sinks.get() + head as u64 * F32_BYTES as u64)) }
}

impl ModifierParams {
    /// The bias of a pair, in nats.
    ///
    /// # Safety
    /// As [`Modifiers`]; there is a bias.
    #[inline(always)]
    pub unsafe fn bias_of(&self, at: &Place, pair: Pair) -> f32 {
        // SAFETY: forwarded to the caller.
        unsafe { self.bias_element(at, pair, self.bias_type == BiasType::F32 as u32) }
    }

    /// The same, where `is_f32` tells what the bias is made of.
    ///
    /// # Safety
    /// As [`bias_of`](Self::bias_of).
    #[inline(always)]
    unsafe fn bias_element(&self, at: &Place, pair: Pair, is_f32: bool) -> f32 {
        let address = |bytes| visible::address(&self.bias, at, pair, bytes);
        // SAFETY: the caller vouches for the element.
        unsafe {
            if is_f32 {
                return f32::from_bits(load::u32(address(F32_BYTES)));
            }
            let bits = load::u16(address(HALF_BYTES));
            let (of_f16, of_bf16) = (load::widen_f16(bits), load::widen_bf16(bits));
            // Selected, so that there is one copy of the rest for both.
            if self.bias_type == BiasType::F16 as u32 {
                of_f16
            } else {
                of_bf16
            }
        }
    }
}

impl Modifiers for ModifierParams {
    const IS_NONE: bool = false;

    #[inline(always)]
    fn changes_scores(&self) -> bool {
        self.bias.address.is_some()
    }

    #[inline(always)]
    fn hides(&self) -> bool {
        self.states.address.is_some()
    }

    #[inline(always)]
    fn states(&self, at: &Place, tile: u32) -> u64 {
        let states = &self.states;
        let base = states.address.map_or(0, |address| address.get());
        base + at.batch as u64 * states.batch_stride
            + at.head as u64 * states.head_stride
            + tile as u64 * states.tile_stride
    }

    #[inline(always)]
    unsafe fn state_of(
        &self,
        at: &Place,
        queries: Range<u32>,
        keys: Range<u32>,
    ) -> Option<BlockState> {
        // SAFETY: forwarded to the caller.
        unsafe { self.known_state(at, &queries, &keys) }
    }

    #[inline(always)]
    unsafe fn change<const COLS: usize, const ROWS: usize>(
        &self,
        at: impl Fn() -> Place,
        scores: &mut [[f32; COLS]; ROWS],
        pair: impl Fn(usize, usize) -> Pair,
    ) {
        if self.bias.address.is_none() {
            return;
        }
        let is_f32 = self.bias_type == BiasType::F32 as u32;
        for i in 0..ROWS {
            let at = &at();
            for j in 0..COLS {
                // SAFETY: the pair exists, and the caller vouches for the bias.
                scores[i][j] += unsafe { self.bias_element(at, existing(at, pair(i, j)), is_f32) };
            }
        }
    }

    #[inline(always)]
    fn biases(&self, at: &Place, first: Pair, queries: u32, keys: u32) -> Option<BiasRows> {
        self.rows_of_bias(at, first, queries, keys)
    }

    #[inline(always)]
    unsafe fn hide<const COLS: usize, const ROWS: usize>(
        &self,
        at: impl Fn() -> Place,
        tile: &mut [[f32; COLS]; ROWS],
        pair: impl Fn(usize, usize) -> Pair,
        mark: f32,
    ) {
        // SAFETY: forwarded to the caller.
        unsafe { self.hide_outside(at, tile, pair, mark, |_, _| (i32::MIN, i32::MAX)) };
    }

    #[inline(always)]
    unsafe fn sees(&self, at: &Place, pair: Pair) -> bool {
        // Branches on options alone, which all threads take alike.
        // SAFETY: forwarded to the caller.
        unsafe {
            let mut is_shown = visible::in_band(self, at, pair);
            if self.mask.address.is_some() {
                is_shown &= visible::by_mask(self, at, pair);
            }
            if self.blocks.address.is_some() {
                is_shown &= visible::by_blocks(self, at, pair);
            }
            if self.documents.of_queries.is_some() {
                is_shown &= visible::by_document(&self.documents, at, pair);
            }
            if self.chunk.is_some() {
                is_shown &= visible::by_chunk(self.chunk, at, pair);
            }
            if self.dilation.is_some() {
                is_shown &= visible::by_dilation(self.dilation, at, pair);
            }
            is_shown
        }
    }

    #[inline(always)]
    fn drops(&self) -> bool {
        self.dropout.threshold != 0
    }

    #[inline(always)]
    unsafe fn dropout(&self, at: &Place) -> Option<Dropout> {
        // SAFETY: forwarded to the caller.
        self.drops()
            .then(|| unsafe { Dropout::new(&self.dropout, at) })
    }

    #[inline(always)]
    fn keep_mask(&self, batch: u32, head: u32, heads: u32) -> KeepMask {
        self.keep_mask.of_head(batch, head, heads)
    }

    #[inline(always)]
    fn units(&self) -> Option<(u32, u32)> {
        let KeepMaskArg {
            address,
            first_unit,
            units,
            ..
        } = self.keep_mask;
        address.map(|_| (first_unit, units))
    }

    #[inline(always)]
    fn dropout_scale(&self) -> f32 {
        self.dropout.scale
    }

    #[inline(always)]
    unsafe fn finalize<const LANES: u32, const STRIDE: u32>(
        &self,
        row: &RowState<LANES, STRIDE>,
        sum: f32,
        head: u32,
    ) -> Finalized {
        let sinks = SinkParams { sinks: self.sinks };
        // SAFETY: forwarded to the caller.
        let mut finalized = unsafe { sinks.finalize(row, sum, head) };
        finalized.norm *= self.dropout.scale;
        finalized
    }
}
