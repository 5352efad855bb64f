//! dz, the gradient of scores after ALiBi and bias, of all pairs of a tile, in registers: for gradients by what is added to scores.
//!
//! dz is dS before a softcap's derivative: it is formed here from products of its own, beside the kernels that compute dq, dk and
//! dv, whichever those are, so that these spend nothing on it.

use super::pairs::{Pairs, Place, store_difference};
use super::passing::{Operand, Passing, Step};
use super::tile::Tile;
use super::{Smem, by_dims};
use crate::backward::side::Side;
use crate::modifiers::Modifiers;
use crate::simt::{LANES, MASKED_OUT, SCORE_COLS, Scores, SimtKernel, ThreadLayout};

/// What becomes of dz.
pub trait TakeScoreGradient<K: SimtKernel, S: Side, const ROWS: usize> {
    /// Adds to scores in nats, after softcap and ALiBi, what modifiers add.
    ///
    /// # Safety
    /// As [`Tile::sequence`].
    #[inline(always)]
    unsafe fn change(
        &self,
        pairs: &Pairs<S, K::Modifiers>,
        scores: &mut Scores<ROWS>,
        layout: ThreadLayout,
    ) {
        pairs.change(scores, layout, |_, _, _| {});
    }

    /// Takes the thread's part of a block, 0 of pairs that are hidden; kept rows that do not exist may hold anything.
    ///
    /// # Safety
    /// As [`Tile::sequence`]; the whole block reaches the same call.
    unsafe fn take(
        &mut self,
        pairs: &Pairs<S, K::Modifiers>,
        dz: &Scores<ROWS>,
        layout: ThreadLayout,
    );
}

/// Gives `taker` dz of every block that some row of the tile sees.
///
/// # Safety
/// As [`Tile::sequence`]; the whole block must call it with the same tile.
#[inline(always)]
pub unsafe fn each_block<K: SimtKernel, S: Side, const ROWS: usize>(
    tile: &Tile<S, K::Modifiers>,
    taker: &mut impl TakeScoreGradient<K, S, ROWS>,
) {
    // What is added to scores comes before a modification with a derivative.
    const { assert!(!K::Modifiers::HAS_SLOPE) };
    let smem = Smem::of::<K>();
    let mut passing = Passing::<K, S>::new(tile, smem.stages);
    let mut step = passing.first();
    if let Some(first) = step {
        load_first(&passing, &smem, first);
    }
    while let Some(now) = step {
        let next = passing.next(now);
        of_block(tile, &mut passing, &smem, now, next, taker);
        step = next;
    }
}

/// The same of block number `block` alone, if some row of the tile sees it.
///
/// # Safety
/// As [`each_block`].
#[inline(always)]
pub unsafe fn one_block<K: SimtKernel, S: Side, const ROWS: usize>(
    tile: &Tile<S, K::Modifiers>,
    block: u32,
    taker: &mut impl TakeScoreGradient<K, S, ROWS>,
) {
    // As in `each_block`.
    const { assert!(!K::Modifiers::HAS_SLOPE) };
    let smem = Smem::of::<K>();
    let mut passing = Passing::<K, S>::new(tile, smem.stages);
    if let Some(now) = passing.at(block) {
        load_first(&passing, &smem, now);
        of_block(tile, &mut passing, &smem, now, None, taker);
    }
}

/// Starts loading what is kept, and the first chunk of a tile's first block.
///
/// # Safety
/// As [`each_block`].
#[inline(always)]
unsafe fn load_first<K: SimtKernel, S: Side>(passing: &Passing<K, S>, smem: &Smem, first: Step) {
    passing.load_kept(smem.kept[0], Operand::First);
    passing.load_kept(smem.kept[1], Operand::Second);
    passing.load_dims(passing.stages.first(), Operand::Second, first, 0);
}

/// The same of one block. Starts loading the block `next`.
///
/// # Safety
/// As [`each_block`]; the first chunk of the block's second operand is asked for.
#[inline(always)]
unsafe fn of_block<K: SimtKernel, S: Side, const ROWS: usize>(
    tile: &Tile<S, K::Modifiers>,
    passing: &mut Passing<K, S>,
    smem: &Smem,
    now: Step,
    next: Option<Step>,
    taker: &mut impl TakeScoreGradient<K, S, ROWS>,
) {
    let thread = || ThreadLayout::new::<K>(K::thread());
    let pairs = Pairs {
        tile,
        step: now,
        p_smem: smem.p,
    };

    // dP = B bᵀ, of which each thread leaves its own in shared memory.
    let mut acc: Scores<ROWS> = [[0.0; SCORE_COLS]; ROWS];
    let kept = smem.kept[1];
    by_dims(
        passing,
        &mut acc,
        kept,
        Operand::Second,
        now,
        |passing, free| {
            passing.load_dims(free, Operand::First, now, 0);
        },
    );
    pairs.drop_gradients(&mut acc, thread());
    store_difference(&pairs, &acc, thread());

    // S = A aᵀ
    let mut acc: Scores<ROWS> = [[0.0; SCORE_COLS]; ROWS];
    let kept = smem.kept[0];
    by_dims(
        passing,
        &mut acc,
        kept,
        Operand::First,
        now,
        |passing, free| {
            if let Some(next) = next {
                passing.load_dims(free, Operand::Second, next, 0);
            }
        },
    );
    pairs.score_gradient(&mut acc, thread(), taker);
    taker.take(&pairs, &acc, thread());
}

impl<S: Side, M: Modifiers> Pairs<'_, S, M> {
    /// Turns `q · k` into dz.
    ///
    /// # Safety
    /// As [`Pairs::differentiate`].
    #[inline(always)]
    unsafe fn score_gradient<K: SimtKernel<Modifiers = M>, const ROWS: usize>(
        &self,
        acc: &mut Scores<ROWS>,
        layout: ThreadLayout,
        taker: &impl TakeScoreGradient<K, S, ROWS>,
    ) {
        let extent = self.tile.extent();
        let place = Place::new(self.p_smem, layout);
        let transform = self.transform(true);
        let first = self.step.begin + layout.lane;
        let diagonal = extent.diagonal - first as i32;
        let distance = |i: usize| (self.tile.begin + layout.row(i)) as i32 + diagonal;
        transform.apply(acc, distance, |j| (j * LANES) as i32);
        taker.change(self, acc, layout);
        self.exponentiate(acc, layout, transform.scale_log2);
        self.mask_out(acc, layout);
        for i in 0..ROWS {
            for j in 0..SCORE_COLS {
                // SAFETY: the element is this thread's.
                let dz = unsafe { acc[i][j] * place.load(i, j) };
                let is_masked_out = acc[i][j].to_bits() == MASKED_OUT.to_bits();
                acc[i][j] = if is_masked_out { 0.0 } else { dz };
            }
        }
    }
}
