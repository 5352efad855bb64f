//! From products to P and dS, on a thread's fragment of a block ([`cuda_std::wgmma`]).

use cuda_std::half::Half;
use cuda_std::shared;

use crate::backward::side::Extent;
use crate::layout::fragment::ROW_STEP;
use crate::layout::terms;
use crate::math::{exp2, fma};
use crate::tile::block_range::visible_keys;
use crate::units::F32_BYTES;
use crate::wgmma::forward::lanes::Lanes;

/// Rows of a fragment that a thread has.
pub(super) const ROWS: usize = 2;
/// Elements of a row in a row, of which a fragment has one group in every eight columns.
pub(super) const PAIR: usize = 2;
/// Such pairs of a row whose terms lie together, and their elements.
pub(super) const GROUP_PAIRS: usize = GROUP_ELEMS / PAIR;
/// Columns of a block of 64 that a thread has elements of.
pub(super) const COLUMNS: usize = 16;
pub(super) const GROUP_ELEMS: usize = terms::OF_LANE as usize;

/// lse in bits, or −delta, of a query of each pair.
#[derive(Clone, Copy)]
pub enum Terms {
    /// In shared memory from this address on, one for each passing query.
    Passing(u32),
    /// One for each of the thread's columns of a block, in registers.
    Columns([f32; COLUMNS]),
    /// One for each of the thread's kept queries.
    Kept([f32; ROWS]),
}

impl Terms {
    /// The terms of both rows' columns in group `group`.
    ///
    /// # Safety
    /// Those in shared memory are visible.
    #[inline(always)]
    pub(super) unsafe fn group(&self, group: usize, lanes: Lanes) -> [[f32; GROUP_ELEMS]; ROWS] {
        match *self {
            Self::Passing(smem) => {
                let at = terms::of_lane(group as u32, lanes.lane) * F32_BYTES;
                [shared::load4(smem + at); ROWS]
            }
            Self::Columns(columns) => {
                let mut of_group = [0.0; GROUP_ELEMS];
                for i in 0..GROUP_ELEMS {
                    of_group[i] = columns[group * GROUP_ELEMS + i];
                }
                [of_group; ROWS]
            }
            Self::Kept(of_rows) => of_rows.map(|of_row| [of_row; GROUP_ELEMS]),
        }
    }

    /// As [`Terms::group`], of a group that a loop counts: terms are not in registers column by column.
    ///
    /// # Safety
    /// As [`Terms::group`].
    #[inline(always)]
    pub(super) unsafe fn counted_group(
        &self,
        group: u32,
        lanes: Lanes,
    ) -> [[f32; GROUP_ELEMS]; ROWS] {
        match *self {
            Self::Passing(smem) => {
                let at = terms::of_lane(group, lanes.lane) * F32_BYTES;
                [shared::load4(smem + at); ROWS]
            }
            Self::Columns(_) => unreachable!(),
            Self::Kept(of_rows) => of_rows.map(|of_row| [of_row; GROUP_ELEMS]),
        }
    }

    /// Those of all of the thread's columns, read now.
    ///
    /// # Safety
    /// As [`Terms::group`].
    #[inline(always)]
    pub(super) unsafe fn load(&self, lanes: Lanes) -> Self {
        let mut columns = [0.0; COLUMNS];
        for group in 0..COLUMNS / GROUP_ELEMS {
            let [of_group, _] = self.group(group, lanes);
            for i in 0..GROUP_ELEMS {
                columns[group * GROUP_ELEMS + i] = of_group[i];
            }
        }
        Self::Columns(columns)
    }

    /// Those of one pair of row `h` alone, pair `i` of the group.
    ///
    /// # Safety
    /// As [`Terms::group`].
    #[inline(always)]
    unsafe fn pair(&self, group: usize, i: usize, h: usize, lanes: Lanes) -> [f32; PAIR] {
        match *self {
            Self::Passing(smem) => {
                let at = terms::of_lane(group as u32, lanes.lane) + (i * PAIR) as u32;
                shared::load2(smem + at * F32_BYTES)
            }
            Self::Columns(columns) => {
                let at = group * GROUP_ELEMS + i * PAIR;
                [columns[at], columns[at + 1]]
            }
            Self::Kept(of_rows) => [of_rows[h]; PAIR],
        }
    }
}

/// No probability is dropped.
pub const ALL_KEPT: u32 = !0;

/// The pairs of a warpgroup's kept rows and one passing block: what becomes of products.
pub trait BlockPairs {
    /// The probabilities that are not dropped, a bit for each register. It depends on their places alone, so that it is found
    /// while products are computed.
    ///
    /// # Safety
    /// The tile is one of the launch; all lanes of the warp reach the same call.
    unsafe fn kept(&self) -> u32;

    /// Turns products `q · k` into P, and gives what is not dropped of it as an operand.
    ///
    /// # Safety
    /// As [`BlockPairs::kept`]; the terms are visible.
    unsafe fn probabilities<E: Half, const S_REGS: usize, const P_REGS: usize>(
        &self,
        s: &mut [f32; S_REGS],
        lse: Terms,
        kept: u32,
    ) -> [u32; P_REGS];

    /// dS times `factor`, a power of two, as an operand, from P, `dp` = dO · V, and −delta, which is times `factor` already. Negative, as
    /// ptxas else negates it in instructions of their own where `factor` is not 1.
    ///
    /// # Safety
    /// As [`BlockPairs::probabilities`].
    unsafe fn differences<E: Half, const S_REGS: usize, const P_REGS: usize>(
        &self,
        p: &[f32; S_REGS],
        dp: &[f32; S_REGS],
        minus_delta: Terms,
        factor: f32,
        kept: u32,
    ) -> [u32; P_REGS];
}

/// Those of a launch without modifiers, some of which are masked out if it is `MASKED`.
pub struct Pairs<const MASKED: bool> {
    pub extent: Extent,
    /// Multiplies `q · k`: bits.
    pub scale_log2: f32,
    /// First kept row of the warpgroup.
    pub begin_kept: u32,
    /// First passing row of the block.
    pub begin: u32,
    pub lanes: Lanes,
    /// Whether dS of kept rows that do not exist matters.
    pub takes_missing: bool,
    /// Whether terms of a group of columns are read at once, for both rows of a lane: shared memory is what kernels wait for
    /// most. Where registers are short, each pair is read where it is needed; else ptxas spills, or serialises products (C7511).
    pub reads_terms_by_group: bool,
}

impl<const MASKED: bool> BlockPairs for Pairs<MASKED> {
    #[inline(always)]
    unsafe fn kept(&self) -> u32 {
        ALL_KEPT
    }

    #[inline(always)]
    unsafe fn probabilities<E: Half, const S_REGS: usize, const P_REGS: usize>(
        &self,
        s: &mut [f32; S_REGS],
        lse: Terms,
        _: u32,
    ) -> [u32; P_REGS] {
        let mut p_frag = [0; P_REGS];
        let rows = self.rows();
        for group in 0..S_REGS / (ROWS * GROUP_ELEMS) {
            let of_group = self.group_terms(lse, group);
            for i in 0..GROUP_PAIRS {
                let j = group * GROUP_PAIRS + i;
                for h in 0..ROWS {
                    let at = (2 * j + h) * PAIR;
                    let lse = self.pair_terms(lse, &of_group, group, i, h);
                    let mut p = [0.0; PAIR];
                    for c in 0..PAIR {
                        p[c] = exp2(fma(s[at + c], self.scale_log2, -lse[c]));
                        p[c] = if rows[h].sees(8 * j + c) { p[c] } else { 0.0 };
                        s[at + c] = p[c];
                    }
                    p_frag[2 * j + h] = E::cvt_pair(p[0], p[1]);
                }
            }
        }
        p_frag
    }

    #[inline(always)]
    unsafe fn differences<E: Half, const S_REGS: usize, const P_REGS: usize>(
        &self,
        p: &[f32; S_REGS],
        dp: &[f32; S_REGS],
        minus_delta: Terms,
        factor: f32,
        _: u32,
    ) -> [u32; P_REGS] {
        let mut ds_frag = [0; P_REGS];
        let rows = self.rows();
        for group in 0..S_REGS / (ROWS * GROUP_ELEMS) {
            let of_group = self.group_terms(minus_delta, group);
            for i in 0..GROUP_PAIRS {
                let j = group * GROUP_PAIRS + i;
                for h in 0..ROWS {
                    let at = (2 * j + h) * PAIR;
                    let minus_delta = self.pair_terms(minus_delta, &of_group, group, i, h);
                    let mut ds = [0.0; PAIR];
                    for c in 0..PAIR {
                        ds[c] = p[at + c] * fma(dp[at + c], factor, minus_delta[c]);
                        // Not by P's 0: a hidden pair's dP need not be finite.
                        ds[c] = if rows[h].sees(8 * j + c) { ds[c] } else { 0.0 };
                    }
                    ds_frag[2 * j + h] = E::cvt_pair(ds[0], ds[1]);
                }
            }
        }
        ds_frag
    }
}

impl<const MASKED: bool> Pairs<MASKED> {
    /// The terms of a group, if they are read at once.
    ///
    /// # Safety
    /// As [`Terms::group`].
    #[inline(always)]
    unsafe fn group_terms(&self, terms: Terms, group: usize) -> [[f32; GROUP_ELEMS]; ROWS] {
        if self.reads_terms_by_group {
            terms.group(group, self.lanes)
        } else {
            [[0.0; GROUP_ELEMS]; ROWS]
        }
    }

    /// The terms of pair `i` of row `h` in a group, out of `of_group` if they are read at once.
    ///
    /// # Safety
    /// As [`Terms::group`].
    #[inline(always)]
    unsafe fn pair_terms(
        &self,
        terms: Terms,
        of_group: &[[f32; GROUP_ELEMS]; ROWS],
        group: usize,
        i: usize,
        h: usize,
    ) -> [f32; PAIR] {
        if self.reads_terms_by_group {
            [of_group[h][i * PAIR], of_group[h][i * PAIR + 1]]
        } else {
            terms.pair(group, i, h, self.lanes)
        }
    }

    /// The thread's rows.
    #[inline(always)]
    fn rows(&self) -> [Row; ROWS] {
        [self.row(0), self.row(1)]
    }

    #[inline(always)]
    fn row(&self, h: u32) -> Row {
        if !MASKED {
            return Row {
                first: i32::MIN,
                last: i32::MAX,
            };
        }
        let row = (self.begin_kept + self.lanes.row() + h * ROW_STEP) as i32;
        let column = (self.begin + self.lanes.col()) as i32;
        let Extent {
            kept,
            band,
            passing,
            ..
        } = self.extent;
        let (first, last) = visible_keys(row, band, passing);
        // A dS that is stored or added to dq is multiplied with what lies beyond the kept rows.
        let is_missing = self.takes_missing && row >= kept as i32;
        let last = if is_missing { -1 } else { last };
        Row {
            first: first - column,
            last: last - column,
        }
    }
}

/// A kept row; columns are counted from the thread's first.
#[derive(Clone, Copy)]
struct Row {
    /// Passing rows that it sees.
    first: i32,
    last: i32,
}

impl Row {
    /// Whether it sees a column.
    #[inline(always)]
    fn sees(&self, column: usize) -> bool {
        self.first <= column as i32 && column as i32 <= self.last
    }
}
