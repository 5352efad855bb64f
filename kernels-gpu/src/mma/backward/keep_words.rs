//! Which probabilities of a warp's part of a block dropout keeps: words of the keep mask in memory where dq is added up, and what the
//! generator says elsewhere.

use cuda_std::global;
use cuda_std::half::Half;

use super::MmaBackwardKernel;
use super::pairs::Pairs;
use crate::backward::side::Side;
use crate::modifiers::keep_mask::{self, KeepMask, WARP_BYTES};
use crate::modifiers::{Modifiers, Pair};

/// Rows that a lane holds a part of, at most.
const MAX_ROWS: usize = 4;

/// A word for each row of a lane's part.
#[derive(Clone, Copy)]
pub struct KeepWords([u32; MAX_ROWS]);

impl KeepWords {
    /// Nothing is dropped.
    const ALL: Self = Self([!0; MAX_ROWS]);

    /// These, with the bits first of the queries from that of `first`, their first pair, on. Not before they are used: whoever shifts a
    /// word waits for it.
    #[inline(always)]
    fn from_pair<K: MmaBackwardKernel>(&self, first: Pair) -> Self {
        if K::ADDS_DQ {
            Self(self.0.map(|word| word << KeepMask::shift(first)))
        } else {
            *self
        }
    }

    /// `value`, which is of element `[i][j]`, if its probability stays, else 0; of words [`from_pair`](Self::from_pair).
    #[inline(always)]
    fn kept<K: MmaBackwardKernel>(&self, value: f32, i: usize, j: usize) -> f32 {
        if K::ADDS_DQ {
            return keep_mask::kept(value, self.0[i], keep_mask::register(i, j));
        }
        if self.0[i] >> j & 1 == 1 { value } else { 0.0 }
    }
}

impl<K: MmaBackwardKernel> Pairs<'_, K> {
    /// Whether probabilities may be dropped.
    #[inline(always)]
    pub fn drops(&self) -> bool {
        !K::Modifiers::IS_NONE && self.tile.modifiers.drops()
    }

    /// Which of them are kept: asked for in memory, or of the generator.
    ///
    /// # Safety
    /// As [`Tile::new`](super::tile::Tile::new); all 32 lanes must reach the same call.
    #[inline(always)]
    pub unsafe fn keep_words<const ROWS: usize, const COLS: usize>(&self) -> KeepWords {
        const { assert!(ROWS <= MAX_ROWS) };
        let mut words = KeepWords::ALL;
        if !self.drops() {
            return words;
        }
        if K::ADDS_DQ {
            let address = self.first_keep_word();
            for i in (0..ROWS).step_by(2) {
                let word = global::load_bits(address + (i / 2) as u64 * WARP_BYTES as u64);
                words.0[i] = word;
                words.0[i + 1] = word;
            }
        } else if let Some(dropout) = self.tile.modifiers.dropout(&self.tile.place(self.step)) {
            let first = self.pair(0, 0);
            let of_rows = if K::Side::HAS_SECOND {
                dropout.fragment::<COLS, ROWS, true>(first)
            } else {
                dropout.fragment::<COLS, ROWS, false>(first)
            };
            words.0[..ROWS].copy_from_slice(&of_rows);
        }
        words
    }

    /// Those words again, for later: where they lie in memory, so that they take no registers meanwhile.
    ///
    /// # Safety
    /// As [`Self::keep_words`].
    #[inline(always)]
    pub unsafe fn keep_words_again<const ROWS: usize, const COLS: usize>(
        &self,
        words: KeepWords,
    ) -> KeepWords {
        if K::ADDS_DQ {
            self.keep_words::<ROWS, COLS>()
        } else {
            words
        }
    }

    /// Has the words brought nearer that [`keep_words`](Self::keep_words) will ask for.
    ///
    /// # Safety
    /// As [`Self::keep_words`].
    #[inline(always)]
    pub unsafe fn prefetch_keep_words<const ROWS: usize>(&self) {
        if K::ADDS_DQ && self.drops() {
            let address = self.first_keep_word();
            for i in 0..ROWS / 2 {
                global::prefetch_l2(address + i as u64 * WARP_BYTES as u64);
            }
        }
    }

    /// Address of the lane's first word in memory.
    ///
    /// # Safety
    /// As [`Self::keep_words`], of a launch that drops probabilities.
    #[inline(always)]
    unsafe fn first_keep_word(&self) -> u64 {
        let Self { tile, step, .. } = self;
        let (row, col) = self.origin();
        let (query, key) = K::Side::query_and_key(tile.begin + row, step.begin + col);
        let (head, heads) = (tile.query_head(step.head), tile.params.attention.heads_q);
        let mask = tile.modifiers.keep_mask(tile.batch(), head, heads);
        mask.word(Pair { query, key }, self.lane)
    }

    /// Elements `[i][j]` and `[i][j + 1]` of `p` as they multiply d_o, but for dropout's scale: rounded, and 0 where they are dropped.
    #[inline(always)]
    pub fn kept_pair<const ROWS: usize, const COLS: usize>(
        &self,
        p: &[[f32; COLS]; ROWS],
        words: KeepWords,
        i: usize,
        j: usize,
    ) -> u32 {
        if K::Modifiers::IS_NONE {
            return K::Element::cvt_pair(p[i][j], p[i][j + 1]);
        }
        let words = words.from_pair::<K>(self.pair(0, 0));
        if K::ADDS_DQ {
            let pair = K::Element::cvt_pair(p[i][j], p[i][j + 1]);
            return keep_mask::kept_pair(pair, words.0[i], keep_mask::register(i, j));
        }
        let [low, high] = [j, j + 1].map(|j| words.kept::<K>(p[i][j], i, j));
        K::Element::cvt_pair(low, high)
    }

    /// Element `[i][j]` of `d_o · v`, 0 where its probability is dropped.
    #[inline(always)]
    pub fn kept(&self, dp: f32, words: KeepWords, i: usize, j: usize) -> f32 {
        words.from_pair::<K>(self.pair(0, 0)).kept::<K>(dp, i, j)
    }
}
