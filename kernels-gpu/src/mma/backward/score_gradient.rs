//! dz, the gradient of scores after ALiBi and bias, of all pairs of a tile, in registers: for gradients by what is added to scores.
//!
//! dz is dS before a softcap's derivative: it is formed here from products of its own, beside the kernels that compute dq, dk and
//! dv, whichever those are, so that these spend nothing on it. Neither P nor dz is rounded, or multiplied with anything that
//! may not be finite: a tile is computed once.

use cuda_std::thread::thread_idx_x;
use cuda_std::warp::WARP_SIZE;

use super::MmaBackwardKernel;
use super::gemm::product_of_rows;
use super::pairs::{Pairs, Slope, column};
use super::passing::Passing;
use super::tile::{Smem, Step, Tile};
use crate::layout::fragment::{TILE_K, a_row_vec16, k_row_vec16};
use crate::math::{exp2, fma};
use crate::mma::gemm::LaneAddress;
use crate::modifiers::Modifiers;
use crate::tile::black_box;

/// What becomes of dz.
pub trait TakeScoreGradient<K: MmaBackwardKernel, const ROWS: usize, const COLS: usize> {
    /// Turns `q · k` into P, and that of pairs that are hidden into anything.
    ///
    /// # Safety
    /// As [`Pairs::probabilities`].
    #[inline(always)]
    unsafe fn weights(&self, pairs: &Pairs<K>, s: &mut [[f32; COLS]; ROWS]) {
        pairs.probabilities(s, Slope::Unused);
    }

    /// Takes the lane's part of a block, 0 of pairs that are hidden; kept rows that do not exist may hold anything.
    ///
    /// # Safety
    /// As [`Tile::new`]; the whole block reaches the same call.
    unsafe fn take(&mut self, pairs: &Pairs<K>, dz: &[[f32; COLS]; ROWS]);
}

/// Gives `taker` dz of every block that some row of the tile sees.
///
/// # Safety
/// As [`Tile::new`]; the whole block must call it with the same tile, of a kernel that does not scale dS.
#[inline(always)]
pub unsafe fn each_block<K: MmaBackwardKernel, const ROWS: usize, const COLS: usize>(
    tile: &Tile<K>,
    taker: &mut impl TakeScoreGradient<K, ROWS, COLS>,
) {
    // What is added to scores comes before a modification with a derivative.
    const { assert!(!K::SCALES_DS && !K::Modifiers::HAS_SLOPE) };
    let mut passing = Passing::new(tile);
    let mut step = tile.first();
    if let Some(first) = step {
        passing.load_first(first);
    }
    let mut is_first = true;
    while let Some(now) = step {
        passing.pass(step, is_first);
        is_first = false;
        of_block(tile, &mut passing, now, taker);
        step = tile.next(now);
    }
}

/// The same of one block. Starts loading the next.
///
/// # Safety
/// As [`each_block`]; the block is asked for.
#[inline(always)]
unsafe fn of_block<K: MmaBackwardKernel, const ROWS: usize, const COLS: usize>(
    tile: &Tile<K>,
    passing: &mut Passing<K>,
    now: Step,
    taker: &mut impl TakeScoreGradient<K, ROWS, COLS>,
) {
    let thread = black_box(thread_idx_x());
    let (lane, warp) = (thread % WARP_SIZE, thread / WARP_SIZE);
    let pairs = Pairs {
        tile,
        step: now,
        stage: passing.stage,
        lane,
        warp,
    };
    let kept = Smem::kept::<K>();
    let stage = Smem::passing::<K>(passing.stage);
    let products = |kept: u32, passing: u32| {
        let (row, col) = pairs.origin();
        let (a, b) = (a_row_vec16(lane), k_row_vec16(lane));
        let head_dim = K::CONFIG.head_dim;
        let a = LaneAddress::new(kept, head_dim, (row + a.0, a.1));
        let b = LaneAddress::new(passing, head_dim, (col + b.0, b.1));
        // SAFETY: the operands have arrived before it is called.
        unsafe { product_of_rows::<K::Element, ROWS, COLS>(a, b, head_dim / TILE_K) }
    };

    // P = 2^(S − lse)
    passing.wait_first();
    let mut p = products(kept[0], stage[0]);
    passing.load_next(now);
    // dz is without a softcap's derivative.
    let words = pairs.keep_words::<ROWS, COLS>();
    taker.weights(&pairs, &mut p);

    // dz = P ∘ (dP − delta)
    passing.wait_second();
    let mut dz = products(kept[1], stage[1]);
    pairs.differentiate(&mut dz, &p, words, 1.0);
    taker.take(&pairs, &dz);
    passing.release_first(now);
    passing.release_second(now);
    passing.advance();
}

impl<K: MmaBackwardKernel> Pairs<'_, K> {
    /// [`TakeScoreGradient::weights`], where `biases` are all that modifiers add to scores.
    ///
    /// # Safety
    /// As [`Pairs::probabilities`].
    #[inline(always)]
    pub unsafe fn weights_of_biased<const ROWS: usize, const COLS: usize>(
        &self,
        s: &mut [[f32; COLS]; ROWS],
        biases: &[[f32; COLS]; ROWS],
    ) {
        let score = &self.tile.params.attention.score;
        let transform = self.tile.transform(self.step, score, true);
        let diagonal = self.tile.extent().diagonal - self.first_column() as i32;
        transform.apply(s, |i| self.row(i) as i32 + diagonal, column);
        let [lse_smem, _] = Smem::terms::<K>(self.stage);
        self.each_term::<ROWS, COLS>(lse_smem, |i, j, lse| {
            s[i][j] = exp2(fma(s[i][j] + biases[i][j], transform.scale_log2, -lse));
        });
    }
}
