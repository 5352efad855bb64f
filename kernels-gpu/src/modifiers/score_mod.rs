//! Score modifications of a user's own: a type that implements [`ScoreMod`], compiled into the kernels by
//! [`score_mod!`](crate::score_mod).

use core::ops::Range;

use bytemuck::{Pod, Zeroable};

use super::dropout::Dropout;
use super::keep_mask::KeepMask;
use super::{Modifiers, Pair, Place, black_box, existing, shown};
use crate::abi::{BlockState, ModifierParams};
use crate::instances::Instance;
use crate::tile::row_state::{Finalized, RowState};

/// The most arrays that a score modification reads.
pub const MAX_BUFFERS: usize = 4;

/// The most bytes of its parameters. A kernel has room for 4 KiB of parameters, of which its own take a quarter.
pub const MAX_PARAM_BYTES: usize = 1024;

/// An array in the memory of the backend that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Address of its first byte, a multiple of 4.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
}

/// Which pairs [`ScoreMod::is_visible`] may hide: nothing but what it says so of is computed for all batch entries, or heads,
/// together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hides {
    /// None: it is not asked.
    Nothing,
    /// The same of every head of every batch entry of the same lengths.
    Alike,
    /// The same of every head of a batch entry.
    ByBatch,
    /// The same of a head of every batch entry of the same lengths.
    ByHead,
    /// Others of every head of every batch entry.
    ByBatchAndHead,
}

impl Hides {
    /// Whether any are hidden.
    pub const fn any(self) -> bool {
        !matches!(self, Self::Nothing)
    }

    /// Whether batch entries, and heads, differ.
    pub const fn by(self) -> [bool; 2] {
        [
            matches!(self, Self::ByBatch | Self::ByBatchAndHead),
            matches!(self, Self::ByHead | Self::ByBatchAndHead),
        ]
    }
}

/// A score modification: what a score becomes before it enters the softmax, and which pairs of a query and a key there are.
///
/// The functions are ordinary Rust without `std`. They are compiled into GPU kernels, and called as they are by the CPU
/// backend. The value's fields are the kernel's parameters: numbers, and addresses of arrays, which [`bind`](Self::bind) puts in.
///
/// A query sees a key if [`is_visible`](Self::is_visible) says so *and* mask, documents and all else let it. The score that
/// [`score`](Self::score) is given has passed softmax_scale, softcap, ALiBi and bias; sinks and dropout come after.
///
/// All pairs given exist: `pair.query < at.seq_q` and `pair.key < at.seq_kv`.
pub trait ScoreMod: Pod + Send + Sync {
    /// Which pairs [`is_visible`](Self::is_visible) may hide. The default is right for every modification, and asks most often.
    const HIDES: Hides = Hides::ByBatchAndHead;

    /// Whether a query sees the keys of [`visible_keys`](Self::visible_keys), all of them: then these are asked of a row, where
    /// [`is_visible`](Self::is_visible) is asked of a pair.
    const SEES_RANGE: bool = false;

    /// Whether [`score`](Self::score) may change one: if not, neither it nor [`derivative`](Self::derivative) is asked, and blocks
    /// that are shown whole cost what they do without a modification.
    const CHANGES_SCORES: bool = true;

    /// The score of a pair, in nats, where it was `score`.
    #[inline(always)]
    fn score(&self, score: f32, at: &Place, pair: Pair) -> f32 {
        let _ = (at, pair);
        score
    }

    /// The derivative of [`score`](Self::score) by `score`, which backward kernels multiply gradients with.
    #[inline(always)]
    fn derivative(&self, score: f32, at: &Place, pair: Pair) -> f32 {
        let _ = (score, at, pair);
        1.0
    }

    /// Whether the query sees the key.
    #[inline(always)]
    fn is_visible(&self, at: &Place, pair: Pair) -> bool {
        !Self::SEES_RANGE
            || self
                .visible_keys(at, pair.query)
                .contains(&(pair.key as i32))
    }

    /// The keys that a query sees, of those that there are, where [`SEES_RANGE`](Self::SEES_RANGE) says so.
    #[inline(always)]
    fn visible_keys(&self, at: &Place, query: u32) -> Range<i32> {
        let _ = query;
        0..at.seq_kv as i32
    }

    /// What [`is_visible`](Self::is_visible) says of all pairs of `queries` and `keys`, where that is quickly told: with
    /// [`BlockState::Hidden`] a block of keys is not even loaded. `None`, or `Partial`: every pair is asked.
    #[inline(always)]
    fn block_state(&self, at: &Place, queries: Range<u32>, keys: Range<u32>) -> Option<BlockState> {
        let _ = (at, queries, keys);
        None
    }

    /// Puts in the addresses of the arrays that the modification was given, in their order, of which there are at most
    /// [`MAX_BUFFERS`]. Called on the host before each launch, and once without addresses when a problem is made.
    ///
    /// # Errors
    /// What it takes instead, if an array is missing or too short. The default takes none.
    fn bind(&mut self, buffers: &[Buffer]) -> Result<(), &'static str> {
        match buffers {
            [] => Ok(()),
            _ => Err("it takes no buffers"),
        }
    }
}

/// The kernels of a score modification, as [`score_mod!`](crate::score_mod) lists them.
pub trait ScoreModKernels: ScoreMod {
    /// The end of their names.
    const NAME: &'static str;
    /// Those of problems: forward and backward, one each of a dtype and head_dim.
    const INSTANCES: &'static [Instance];
    /// The one that finds what tiles and blocks look like.
    const BLOCK_STATES: &'static Instance;
}

/// The built-in modifiers, and a score modification: the second parameter of its kernels.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WithScoreMod<S> {
    pub params: ModifierParams,
    pub score_mod: S,
}

// SAFETY: both fields are zeroable.
unsafe impl<S: ScoreMod> Zeroable for WithScoreMod<S> {}

impl<S: ScoreMod> WithScoreMod<S> {
    const FITS: () = assert!(
        size_of::<S>() <= MAX_PARAM_BYTES && align_of::<S>() <= align_of::<ModifierParams>(),
        "a score modification is at most 1 KiB of numbers that are aligned to at most 8 bytes"
    );

    /// Both.
    #[inline(always)]
    pub const fn new(params: ModifierParams, score_mod: S) -> Self {
        const { Self::FITS };
        Self { params, score_mod }
    }
}

impl<S: ScoreMod> Modifiers for WithScoreMod<S> {
    const IS_NONE: bool = false;
    const HAS_SLOPE: bool = S::CHANGES_SCORES;

    #[inline(always)]
    fn changes_scores(&self) -> bool {
        S::CHANGES_SCORES || self.params.changes_scores()
    }

    #[inline(always)]
    fn hides(&self) -> bool {
        S::HIDES.any() || self.params.hides()
    }

    #[inline(always)]
    fn states(&self, at: &Place, tile: u32) -> u64 {
        self.params.states(at, tile)
    }

    #[inline(always)]
    unsafe fn state_of(
        &self,
        at: &Place,
        queries: Range<u32>,
        keys: Range<u32>,
    ) -> Option<BlockState> {
        // SAFETY: forwarded to the caller.
        let of_params = unsafe { self.params.state_of(at, queries.clone(), keys.clone()) };
        if !S::HIDES.any() || of_params == Some(BlockState::Hidden) {
            return of_params;
        }
        match self.score_mod.block_state(at, queries, keys) {
            Some(BlockState::Hidden) => Some(BlockState::Hidden),
            // What it shows whole may be hidden by others.
            Some(BlockState::Full) => of_params,
            Some(BlockState::Partial) | None => None,
        }
    }

    #[inline(always)]
    unsafe fn change<const COLS: usize, const ROWS: usize>(
        &self,
        at: impl Fn() -> Place,
        scores: &mut [[f32; COLS]; ROWS],
        pair: impl Fn(usize, usize) -> Pair,
    ) {
        // SAFETY: forwarded to the caller.
        unsafe { self.change_with_slope(at, scores, pair, |_, _, _| {}) };
    }

    #[inline(always)]
    unsafe fn change_with_slope<const COLS: usize, const ROWS: usize>(
        &self,
        at: impl Fn() -> Place,
        scores: &mut [[f32; COLS]; ROWS],
        pair: impl Fn(usize, usize) -> Pair,
        mut slope: impl FnMut(usize, usize, f32),
    ) {
        // SAFETY: forwarded to the caller.
        unsafe { self.params.change(&at, scores, &pair) };
        if !S::CHANGES_SCORES {
            return;
        }
        for i in 0..ROWS {
            let at = &at();
            for j in 0..COLS {
                let pair = existing(at, pair(i, j));
                let score = scores[i][j];
                slope(i, j, self.score_mod.derivative(score, at, pair));
                scores[i][j] = self.score_mod.score(score, at, pair);
            }
        }
    }

    #[inline(always)]
    unsafe fn hide<const COLS: usize, const ROWS: usize>(
        &self,
        at: impl Fn() -> Place,
        tile: &mut [[f32; COLS]; ROWS],
        pair: impl Fn(usize, usize) -> Pair,
        mark: f32,
    ) {
        if S::HIDES.any() && S::SEES_RANGE {
            let own = |at: &Place, query: u32| {
                let keys = self.score_mod.visible_keys(at, query.min(at.seq_q - 1));
                (keys.start, keys.end - 1)
            };
            // SAFETY: forwarded to the caller.
            unsafe { self.params.hide_outside(at, tile, pair, mark, own) };
            return;
        }
        // SAFETY: forwarded to the caller.
        unsafe { self.params.hide(&at, tile, &pair, mark) };
        if S::HIDES.any() {
            shown::hide_but!(at, tile, pair, mark, elements => {
                elements.that(|at, pair| self.score_mod.is_visible(at, pair))
            });
        }
    }

    #[inline(always)]
    unsafe fn sees(&self, at: &Place, pair: Pair) -> bool {
        // SAFETY: forwarded to the caller.
        let is_shown = unsafe { self.params.sees(at, pair) };
        is_shown & (!S::HIDES.any() || self.score_mod.is_visible(at, pair))
    }

    #[inline(always)]
    fn drops(&self) -> bool {
        self.params.drops()
    }

    #[inline(always)]
    unsafe fn dropout(&self, at: &Place) -> Option<Dropout> {
        // SAFETY: forwarded to the caller.
        unsafe { self.params.dropout(at) }
    }

    #[inline(always)]
    fn keep_mask(&self, batch: u32, head: u32, heads: u32) -> KeepMask {
        Modifiers::keep_mask(&self.params, batch, head, heads)
    }

    #[inline(always)]
    fn units(&self) -> Option<(u32, u32)> {
        self.params.units()
    }

    #[inline(always)]
    fn dropout_scale(&self) -> f32 {
        self.params.dropout_scale()
    }

    #[inline(always)]
    unsafe fn finalize<const LANES: u32, const STRIDE: u32>(
        &self,
        row: &RowState<LANES, STRIDE>,
        sum: f32,
        head: u32,
    ) -> Finalized {
        // SAFETY: forwarded to the caller.
        unsafe { self.params.finalize(row, sum, head) }
    }
}
