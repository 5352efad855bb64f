//! From `q · k` and `d_o · v` to P and dS, on a warp's part of a block.

use cuda_std::shared;
use cuda_std::warp::any;

use super::MmaBackwardKernel;
use super::keep_words::KeepWords;
use super::tile::{Smem, Step, Tile};
use crate::abi::Band;
use crate::backward::side::{Extent, Side};
use crate::layout::fragment::{ROW_STEP, row_column};
use crate::math::{exp2, fma};
use crate::modifiers::{Modifiers, Pair};
use crate::score::{is_plain, plain_scale_log2};
use crate::tile::mask;
use crate::units::F32_BYTES;

/// What becomes of the derivative that scores have by the scaled product where there is a softcap.
pub enum Slope<'a, const ROWS: usize, const COLS: usize> {
    /// It is written here, where 1 is before. There is a softcap, or a modification with a derivative.
    Into(&'a mut [[f32; COLS]; ROWS]),
    /// Nobody asks for it: of a gradient by what is added to scores.
    Unused,
    /// There is no softcap ([`Pairs::has_slope`]).
    One,
}

/// The pairs of a tile's rows and one block that a warp has.
pub struct Pairs<'a, K: MmaBackwardKernel> {
    pub tile: &'a Tile<'a, K>,
    pub step: Step,
    /// Where the step's terms of queries are.
    pub stage: u32,
    pub lane: u32,
    pub warp: u32,
}

impl<K: MmaBackwardKernel> Pairs<'_, K> {
    /// First row and column of the warp's part.
    #[inline(always)]
    pub fn origin(&self) -> (u32, u32) {
        K::CONFIG.scores().origin(self.warp)
    }

    /// Turns `q · k` into P. It is 0 of pairs that are masked out where it is multiplied with d_o; [`Pairs::differentiate`] looks at
    /// no other's.
    ///
    /// # Safety
    /// As [`Tile::new`]; lse has arrived and is visible; all 32 lanes must reach the same call.
    #[inline(always)]
    pub unsafe fn probabilities<const ROWS: usize, const COLS: usize>(
        &self,
        s: &mut [[f32; COLS]; ROWS],
        slope: Slope<'_, ROWS, COLS>,
    ) {
        let is_added_to = matches!(slope, Slope::Unused);
        let is_multiplied = K::Side::HAS_SECOND && !is_added_to;
        let score = &self.tile.params.attention.score;
        let mut scale_log2 = plain_scale_log2(score);
        let modifiers = self.tile.modifiers;
        if K::Modifiers::HAS_SLOPE {
            scale_log2 = self.changed_scores(s, slope);
        } else if is_added_to || !is_plain(score) || self.tile.changes_scores() {
            let score = match slope {
                Slope::One => &score.uncapped(),
                _ => score,
            };
            let transform = self.tile.transform(self.step, score, is_added_to);
            scale_log2 = transform.scale_log2;
            let diagonal = self.tile.extent().diagonal - self.first_column() as i32;
            let distance = |i: usize| self.row(i) as i32 + diagonal;
            match slope {
                Slope::Into(slope) => {
                    let slope = |i: usize, j: usize, of| slope[i][j] = of;
                    transform.apply_capped_with_slope(s, distance, column, slope);
                }
                Slope::Unused | Slope::One => transform.apply(s, distance, column),
            }
            if self.tile.changes_scores() {
                let at = || self.tile.place(self.step);
                modifiers.change(at, s, |i, j| self.pair(i, j));
            }
        }
        let [lse_smem, _] = Smem::terms::<K>(self.stage);
        self.each_term::<ROWS, COLS>(lse_smem, |i, j, lse| {
            s[i][j] = exp2(fma(s[i][j], scale_log2, -lse));
        });
        if is_multiplied {
            self.clear_hidden(s);
        }
    }

    /// Turns `q · k` into scores that a modification with a derivative has changed; returns what turns these into bits.
    ///
    /// # Safety
    /// As [`Pairs::probabilities`].
    #[inline(always)]
    unsafe fn changed_scores<const ROWS: usize, const COLS: usize>(
        &self,
        s: &mut [[f32; COLS]; ROWS],
        slope: Slope<'_, ROWS, COLS>,
    ) -> f32 {
        let score = &self.tile.params.attention.score;
        let transform = self.tile.transform(self.step, score, false);
        let diagonal = self.tile.extent().diagonal - self.first_column() as i32;
        let distance = |i: usize| self.row(i) as i32 + diagonal;
        let at = || self.tile.place(self.step);
        let pair = |i: usize, j: usize| self.pair(i, j);
        let modifiers = self.tile.modifiers;
        match slope {
            Slope::Into(slope) => {
                transform.apply_with_slope(s, distance, column, |i, j, of| slope[i][j] = of);
                modifiers.change_with_slope(at, s, pair, |i, j, of| slope[i][j] *= of);
            }
            Slope::Unused | Slope::One => {
                transform.apply(s, distance, column);
                modifiers.change(at, s, pair);
            }
        }
        transform.scale_log2
    }

    /// Turns `d_o · v` into dS times a power of two, 0 of pairs that are masked out. `weights` are P times the derivatives of
    /// scores.
    ///
    /// # Safety
    /// As [`Pairs::probabilities`], with delta.
    #[inline(always)]
    pub unsafe fn differentiate<const ROWS: usize, const COLS: usize>(
        &self,
        dp: &mut [[f32; COLS]; ROWS],
        weights: &[[f32; COLS]; ROWS],
        words: KeepWords,
        factor: f32,
    ) {
        let [_, delta_smem] = Smem::terms::<K>(self.stage);
        let scaled = |ds: f32| if K::SCALES_DS { ds * factor } else { ds };
        if self.drops() {
            let scale = self.tile.modifiers.dropout_scale();
            self.each_term::<ROWS, COLS>(delta_smem, |i, j, delta| {
                let dp_kept = self.kept(dp[i][j], words, i, j);
                dp[i][j] = scaled(fma(dp_kept, scale, -delta) * weights[i][j]);
            });
        } else {
            self.each_term::<ROWS, COLS>(delta_smem, |i, j, delta| {
                dp[i][j] = scaled((dp[i][j] - delta) * weights[i][j]);
            });
        }
        self.clear_hidden(dp);
    }

    /// Whether scores may have a derivative that is not 1.
    #[inline(always)]
    pub fn has_slope(&self) -> bool {
        self.tile.params.attention.score.softcap.is_some()
    }

    /// Sets elements of pairs that are masked out to 0, and where dq is added up, those of kept rows that do not exist.
    ///
    /// # Safety
    /// All 32 lanes must reach the same call.
    #[inline(always)]
    unsafe fn clear_hidden<const ROWS: usize, const COLS: usize>(
        &self,
        tile: &mut [[f32; COLS]; ROWS],
    ) {
        if self.tile.shows_all(self.step) {
            return;
        }
        let extent = &self.tile.extent();
        if self.tile.modifiers.hides() {
            let at = || self.tile.place(self.step);
            let modifiers = self.tile.modifiers;
            modifiers.hide(at, tile, |i, j| self.pair(i, j), 0.0);
            return;
        }
        if !self.needs_mask(extent) {
            return;
        }
        let Extent { band, passing, .. } = *extent;
        let first = self.first_column();
        mask::mark_masked_out(tile, |i| self.row(i), first, column, band, passing, 0.0);
        if K::ADDS_DQ {
            for i in 0..ROWS {
                let is_missing = self.row(i) >= extent.kept;
                for value in &mut tile[i] {
                    *value = if is_missing { 0.0 } else { *value };
                }
            }
        }
    }

    /// The query and the key of the lane's element `[i][j]`.
    #[inline(always)]
    pub fn pair(&self, i: usize, j: usize) -> Pair {
        let passing = self.first_column() + column(j) as u32;
        let (query, key) = K::Side::query_and_key(self.row(i), passing);
        Pair { query, key }
    }

    /// Row `i` of the lane, of all that are kept.
    #[inline(always)]
    pub fn row(&self, i: usize) -> u32 {
        self.tile.begin + self.origin().0 + self.lane / 4 + i as u32 * ROW_STEP
    }

    /// The lane's first column, of all that pass.
    #[inline(always)]
    pub fn first_column(&self) -> u32 {
        self.step.begin + self.origin().1 + row_column(self.lane, 0)
    }

    /// Calls `take` with each element of the warp's part and its query's term of those at `smem`.
    ///
    /// # Safety
    /// As [`Pairs::differentiate`].
    #[inline(always)]
    pub unsafe fn each_term<const ROWS: usize, const COLS: usize>(
        &self,
        smem: u32,
        mut take: impl FnMut(usize, usize, f32),
    ) {
        let (row, col) = self.origin();
        if K::Side::HAS_SECOND {
            let address = smem + (col + row_column(self.lane, 0)) * F32_BYTES;
            for j in (0..COLS).step_by(2) {
                let pair = shared::load2(address + row_column(0, j as u32) * F32_BYTES);
                for i in 0..ROWS {
                    take(i, j, pair[0]);
                    take(i, j + 1, pair[1]);
                }
            }
        } else {
            let address = smem + (row + self.lane / 4) * F32_BYTES;
            for i in 0..ROWS {
                let term = shared::load(address + i as u32 * ROW_STEP * F32_BYTES);
                for j in 0..COLS {
                    take(i, j, term);
                }
            }
        }
    }

    /// Whether some pair of the warp is masked out, or its dS must not be added up.
    ///
    /// # Safety
    /// All 32 lanes must reach the same call.
    #[inline(always)]
    unsafe fn needs_mask(&self, extent: &Extent) -> bool {
        let (row, col) = self.origin();
        let part = K::CONFIG.scores();
        let range = self.tile.range(extent, row, part.rows as u32);
        let masked = range.needs_mask(self.step.begin + col, part.cols as u32);
        let missing = self.tile.begin + row + part.rows as u32 > extent.kept;
        any(masked || K::ADDS_DQ && missing)
    }
}

/// Column `j` of a lane, from its first one.
#[inline(always)]
pub fn column(j: usize) -> i32 {
    row_column(0, j as u32) as i32
}

/// Whether kept row `row` sees passing row `column` of a step, of rows that exist.
///
/// # Safety
/// As [`Tile::new`].
#[inline(always)]
pub unsafe fn sees<K: MmaBackwardKernel>(
    tile: &Tile<K>,
    step: Step,
    extent: &Extent,
    row: u32,
    column: u32,
) -> bool {
    let exist = row < extent.kept && column < extent.passing;
    if tile.modifiers.hides() {
        let (query, key) = K::Side::query_and_key(row, column);
        return exist && tile.modifiers.sees(&tile.place(step), Pair { query, key });
    }
    let Band { lower, upper } = extent.band;
    let distance = column as i32 - row as i32;
    lower <= distance && distance <= upper && exist
}
