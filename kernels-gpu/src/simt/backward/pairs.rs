//! From `q · k` and `d_o · v` to P and dS, on a thread's part of a tile.

use cuda_std::{global, shared};

use super::super::forward::drop_pairs;
use super::super::gemm::P_ROW_BYTES;
use super::super::{BLOCK_N, LANES, MASKED_OUT, SCORE_COLS, SHIFT, Scores, ThreadLayout};
use super::passing::Step;
use super::tile::Tile;
use crate::abi::BlockState;
use crate::backward::side::Side;
use crate::math::{exp2, fma};
use crate::modifiers::{Modifiers, NoModifiers, Pair};
use crate::score::ScoreTransform;
use crate::tile::black_box;
use crate::tile::mask;
use crate::units::F32_BYTES;

/// The pairs of a tile's rows and one block.
pub struct Pairs<'a, S, M = NoModifiers> {
    pub tile: &'a Tile<'a, S, M>,
    pub step: Step,
    pub p_smem: u32,
}

impl<S: Side, M: Modifiers> Pairs<'_, S, M> {
    /// Which terms of rows a thread needs: of `ROWS` kept rows, or of [`SCORE_COLS`] passing ones.
    ///
    /// # Safety
    /// As [`Tile::sequence`].
    #[inline(always)]
    pub unsafe fn terms<const ROWS: usize>(&self, array: u64, layout: ThreadLayout) -> Terms<ROWS> {
        let sequence = self.tile.sequence();
        let attention = &self.tile.params.attention;
        let head = self.tile.query_head(self.step.head);
        let address = sequence.row_address(attention, array, head);
        // Rows that do not exist get the last one's.
        let last = sequence.seq_q - 1;
        let load = |row: u32| {
            // SAFETY: the arrays have an element for every row.
            unsafe { global::load(address + (row.min(last) * F32_BYTES) as u64) }
        };
        let mut terms = Terms {
            of_rows: [0.0; ROWS],
            of_columns: [0.0; SCORE_COLS],
        };
        if S::HAS_SECOND {
            for (j, term) in terms.of_columns.iter_mut().enumerate() {
                *term = load(self.step.begin + layout.lane + (j * LANES) as u32);
            }
        } else {
            for (i, term) in terms.of_rows.iter_mut().enumerate() {
                *term = load(self.tile.begin + layout.row(i));
            }
        }
        terms
    }

    /// Turns `q · k` into P, and `dP − delta`, which the thread left in shared memory, into dS. Returns whether both have
    /// pairs that are [`MASKED_OUT`].
    ///
    /// # Safety
    /// As [`Tile::sequence`]; the thread stored its differences, and nobody else accesses them.
    #[inline(always)]
    pub unsafe fn differentiate<const ROWS: usize>(
        &self,
        acc: &mut Scores<ROWS>,
        layout: ThreadLayout,
    ) -> bool {
        let extent = self.tile.extent();
        let place = Place::new(self.p_smem, layout);
        let transform = self.transform(false);
        let first = self.step.begin + layout.lane;
        let row = |i: usize| self.tile.begin + layout.row(i);
        let column = |j: usize| (j * LANES) as i32;
        let diagonal = extent.diagonal - first as i32;
        transform.apply_with_slope(
            acc,
            |i| row(i) as i32 + diagonal,
            column,
            |i, j, slope| {
                // SAFETY: the element is this thread's.
                unsafe { place.store(i, j, place.load(i, j) * slope) };
            },
        );
        self.change(acc, layout, |i, j, slope| {
            // SAFETY: the element is this thread's.
            unsafe { place.store(i, j, place.load(i, j) * slope) };
        });
        self.exponentiate(acc, layout, transform.scale_log2);
        let blocks = self.tile.blocks(&extent, layout.row_groups * ROWS as u32);
        let needs_mask = if self.tile.modifiers.hides() {
            self.tile.state(self.step) != BlockState::Full as u32
        } else {
            blocks.needs_mask(self.step.begin, BLOCK_N as u32)
        };
        if needs_mask {
            self.mask_out(acc, layout);
        }
        for i in 0..ROWS {
            for j in 0..SCORE_COLS {
                // SAFETY: the element is this thread's.
                unsafe {
                    let ds = acc[i][j] * place.load(i, j);
                    let is_masked_out = needs_mask && acc[i][j].to_bits() == MASKED_OUT.to_bits();
                    // Adding 0 makes −0, which would be taken for the mark, +0.
                    place.store(i, j, if is_masked_out { MASKED_OUT } else { ds + 0.0 });
                }
            }
        }
        needs_mask
    }

    /// Turns scores, of which one is `scale_log2` bits, into P.
    ///
    /// # Safety
    /// As [`Tile::sequence`].
    #[inline(always)]
    pub unsafe fn exponentiate<const ROWS: usize>(
        &self,
        acc: &mut Scores<ROWS>,
        layout: ThreadLayout,
        scale_log2: f32,
    ) {
        let lse = self.terms::<ROWS>(self.tile.params.terms.lse_log2, layout);
        for i in 0..ROWS {
            for j in 0..SCORE_COLS {
                acc[i][j] = exp2(fma(acc[i][j], scale_log2, -lse.get::<S>(i, j)));
            }
        }
    }

    /// How the scores of the step's query head are transformed: to nats in a kernel which knows when it is compiled that something
    /// `is_added_to` them.
    ///
    /// # Safety
    /// As [`Tile::sequence`].
    #[inline(always)]
    pub unsafe fn transform(&self, is_added_to: bool) -> ScoreTransform {
        let head = self.tile.query_head(self.step.head);
        let score = &self.tile.params.attention.score;
        let batch = black_box(self.tile.coord.batch);
        if is_added_to || self.tile.modifiers.changes_scores() {
            ScoreTransform::in_nats(score, batch, head, SHIFT)
        } else {
            ScoreTransform::new(score, batch, head, SHIFT)
        }
    }

    /// Turns scores into those that modifiers make of them, where they do, and calls `slope` with derivatives that may differ
    /// from 1.
    ///
    /// # Safety
    /// As [`Tile::sequence`].
    #[inline(always)]
    pub unsafe fn change<const ROWS: usize>(
        &self,
        acc: &mut Scores<ROWS>,
        layout: ThreadLayout,
        slope: impl FnMut(usize, usize, f32),
    ) {
        let modifiers = self.tile.modifiers;
        if modifiers.changes_scores() {
            let at = self.tile.place(self.step.head);
            let pair = |i: usize, j: usize| self.pair(layout, i, j);
            modifiers.change_with_slope(|| at, acc, pair, slope);
        }
    }

    /// Sets elements of pairs that are hidden to [`MASKED_OUT`].
    ///
    /// # Safety
    /// As [`Tile::sequence`].
    #[inline(always)]
    pub unsafe fn mask_out<const ROWS: usize>(&self, acc: &mut Scores<ROWS>, layout: ThreadLayout) {
        let modifiers = self.tile.modifiers;
        if modifiers.hides() {
            let at = self.tile.place(self.step.head);
            modifiers.hide(|| at, acc, |i, j| self.pair(layout, i, j), MASKED_OUT);
            return;
        }
        let extent = self.tile.extent();
        mask::mark_masked_out(
            acc,
            |i| self.tile.begin + layout.row(i),
            self.step.begin + layout.lane,
            |j| (j * LANES) as i32,
            extent.band,
            extent.passing,
            MASKED_OUT,
        );
    }

    /// The query and the key of the thread's element `[i][j]`.
    #[inline(always)]
    pub fn pair(&self, layout: ThreadLayout, i: usize, j: usize) -> Pair {
        let kept = self.tile.begin + layout.row(i);
        let passing = self.step.begin + layout.lane + (j * LANES) as u32;
        let (query, key) = S::query_and_key(kept, passing);
        Pair { query, key }
    }

    /// Sets elements of `p` that are dropped to 0.
    ///
    /// # Safety
    /// As [`Tile::sequence`].
    #[inline(always)]
    pub unsafe fn drop_pairs<const ROWS: usize>(&self, p: &mut Scores<ROWS>, layout: ThreadLayout) {
        if M::IS_NONE {
            return;
        }
        let at = self.tile.place(self.step.head);
        if let Some(dropout) = self.tile.modifiers.dropout(&at) {
            drop_pairs(p, |i, j| dropout.keeps(self.pair(layout, i, j)));
        }
    }

    /// Multiplies dP by what dropout multiplied P by: 0, or its scale.
    ///
    /// # Safety
    /// As [`Tile::sequence`].
    #[inline(always)]
    pub unsafe fn drop_gradients<const ROWS: usize>(
        &self,
        dp: &mut Scores<ROWS>,
        layout: ThreadLayout,
    ) {
        if M::IS_NONE {
            return;
        }
        self.drop_pairs(dp, layout);
        let scale = self.tile.modifiers.dropout_scale();
        for dp in dp.as_flattened_mut() {
            *dp *= scale;
        }
    }
}

/// Leaves `dP − delta` in the thread's place in shared memory.
///
/// # Safety
/// As [`Pairs::differentiate`]; nobody else reads the thread's place any more.
#[inline(always)]
pub unsafe fn store_difference<S: Side, M: Modifiers, const ROWS: usize>(
    pairs: &Pairs<S, M>,
    dp: &Scores<ROWS>,
    layout: ThreadLayout,
) {
    let delta = pairs.terms::<ROWS>(pairs.tile.params.terms.delta, layout);
    let place = Place::new(pairs.p_smem, layout);
    for i in 0..ROWS {
        for j in 0..SCORE_COLS {
            // SAFETY: the element is this thread's.
            unsafe { place.store(i, j, dp[i][j] - delta.get::<S>(i, j)) };
        }
    }
}

/// A term of each query: of the thread's rows or of its columns, whichever are queries.
pub struct Terms<const ROWS: usize> {
    of_rows: [f32; ROWS],
    of_columns: [f32; SCORE_COLS],
}

impl<const ROWS: usize> Terms<ROWS> {
    #[inline(always)]
    pub fn get<S: Side>(&self, i: usize, j: usize) -> f32 {
        if S::HAS_SECOND {
            self.of_columns[j]
        } else {
            self.of_rows[i]
        }
    }
}

/// The thread's elements of P in shared memory.
#[derive(Clone, Copy)]
pub struct Place {
    address: u32,
    row_groups: u32,
}

impl Place {
    #[inline(always)]
    pub fn new(p_smem: u32, layout: ThreadLayout) -> Self {
        Self {
            address: p_smem + layout.row(0) * P_ROW_BYTES + layout.lane * F32_BYTES,
            row_groups: layout.row_groups,
        }
    }

    #[inline(always)]
    fn at(&self, i: usize, j: usize) -> u32 {
        let row = i as u32 * self.row_groups;
        self.address + row * P_ROW_BYTES + (j * LANES) as u32 * F32_BYTES
    }

    /// # Safety
    /// No other thread accesses the element.
    #[inline(always)]
    pub unsafe fn load(&self, i: usize, j: usize) -> f32 {
        shared::load(self.at(i, j))
    }

    /// # Safety
    /// As [`Place::load`].
    #[inline(always)]
    pub unsafe fn store(&self, i: usize, j: usize, value: f32) {
        shared::store(self.at(i, j), value);
    }
}
