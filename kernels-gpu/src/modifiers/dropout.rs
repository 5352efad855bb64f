//! Which probabilities are dropped (Srivastava et al. 2014): a counter-based generator decides, so that neither a tile's shape
//! nor a kernel's family changes it, and a backward pass makes the same choice again.
//!
//! The generator is Philox 4×32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"). A call gives 128 bits:
//! 16 for each of eight pairs of a query and a key, which are those that a lane holds of a 16 × 16 part of `mma`'s accumulator
//! ([`crate::layout::fragment`]).
//!
//! ```text
//! query = 16 R + 8 h + r      key = 16 C + 8 a + 2 c + e
//! counter = [8 R + r, 4 C + c, batch · heads_q + head, low word of the offset]
//! key     = [low word of the seed, high word of the seed ^ high word of the offset]
//! bits    = half e of word 2 h + a
//! ```

// Arrays in registers, indexed by constants once loops over them are unrolled.
#![allow(clippy::needless_range_loop)]

use super::{Pair, Place, black_box, load};
use crate::abi::DropoutParams;

/// A probability stays where its bits are below a threshold of at most this.
pub const THRESHOLD_ONE: u32 = 1 << 16;

/// Rounds of the generator.
const ROUNDS: u32 = 10;
/// Multipliers of a round, and what a round adds to the key.
const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

/// Philox 4×32-10.
#[inline(always)]
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut a, mut b, mut c, mut d] = counter;
    let [mut low, mut high] = key;
    let mut round = 0;
    while round < ROUNDS {
        let x = a as u64 * MULTIPLIERS[0] as u64;
        let y = c as u64 * MULTIPLIERS[1] as u64;
        (a, b, c, d) = (
            (y >> 32) as u32 ^ b ^ low,
            y as u32,
            (x >> 32) as u32 ^ d ^ high,
            x as u32,
        );
        low = low.wrapping_add(WEYL[0]);
        high = high.wrapping_add(WEYL[1]);
        round += 1;
    }
    [a, b, c, d]
}

/// The dropout of a query head of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    key: [u32; 2],
    /// The head's part of the counter, and the offset's.
    plane: u32,
    offset: u32,
    /// The largest word whose upper half is below the threshold.
    limit: u32,
}

impl Dropout {
    /// That of `at`.
    ///
    /// # Safety
    /// Seed and offset are live where they lie in memory.
    #[inline(always)]
    pub unsafe fn new(params: &DropoutParams, at: &Place) -> Self {
        let (seed, offset) = match params.state {
            None => (params.seed, params.offset),
            // SAFETY: the caller vouches for both.
            Some(state) => unsafe {
                let second = state.get() + size_of::<u64>() as u64;
                (load::u64(state.get()), load::u64(second))
            },
        };
        Self {
            key: [seed as u32, (seed >> 32) as u32 ^ (offset >> 32) as u32],
            plane: at.batch.wrapping_mul(at.heads).wrapping_add(at.head),
            offset: offset as u32,
            // Of the largest threshold, 2¹⁶, all ones.
            limit: (params.threshold << 16).wrapping_sub(1),
        }
    }

    /// The call that a pair's bits are a part of.
    #[inline(always)]
    pub fn call(&self, pair: Pair) -> [u32; 4] {
        let row = pair.query / 16 * 8 + pair.query % 8;
        let column = pair.key / 16 * 4 + pair.key % 8 / 2;
        philox([row, column, self.plane, self.offset], self.key)
    }

    /// Whether the probability stays whose bits are half `e` of `word`.
    #[inline(always)]
    pub fn stays(&self, word: u32, e: u32) -> bool {
        // An upper half is compared with what lies below it, a lower half after a shift.
        word << (16 * (1 - e)) <= self.limit
    }

    /// Whether a pair's probability stays.
    #[inline(always)]
    pub fn keeps(&self, pair: Pair) -> bool {
        let words = self.call(pair);
        let (h, a, e) = (pair.query / 8 % 2, pair.key / 8 % 2, pair.key % 2);
        // Selected rather than indexed, so that the words stay in registers.
        let of_row = if h == 0 {
            [words[0], words[1]]
        } else {
            [words[2], words[3]]
        };
        self.stays(if a == 0 { of_row[0] } else { of_row[1] }, e)
    }

    /// The probabilities that stay of a lane's part of an accumulator of `mma` whose first element is pair `first`: bit `j` of
    /// word `i` for element `[i][j]`. Rows are queries and columns are keys, or the other way round if `ROWS_ARE_KEYS`.
    #[inline(always)]
    pub fn fragment<const COLS: usize, const ROWS: usize, const ROWS_ARE_KEYS: bool>(
        &self,
        first: Pair,
    ) -> [u32; ROWS] {
        let mut kept = [0; ROWS];
        for i in (0..ROWS).step_by(2) {
            let down = 8 * i as u32;
            // A loop that stays one: unrolled, its calls would be most of a kernel's instructions.
            let mut j = 0;
            while j < black_box(COLS as u32) {
                let [upper, lower] = self.part::<ROWS_ARE_KEYS>(first, down, 4 * j);
                kept[i] |= upper << j;
                kept[i + 1] |= lower << j;
                j += 4;
            }
        }
        kept
    }

    /// The probabilities that stay of a thread's part of an accumulator of `wgmma` whose rows are queries, and whose first element
    /// is pair `first`: a bit each, that of register 0 the lowest.
    #[inline(always)]
    pub fn kept_fragment<const REGISTERS: usize>(&self, first: Pair) -> u64 {
        const { assert!(REGISTERS <= u64::BITS as usize) };
        // A part is 16 columns: elements (a, h, e) of two halves, two rows and two columns.
        const PART: usize = 8;
        let mut kept = [0u32; 2];
        for part in 0..REGISTERS / PART {
            let words = self.call(Pair {
                query: first.query,
                key: first.key + 16 * part as u32,
            });
            for element in 0..PART {
                let (a, h, e) = (element / 4, element / 2 % 2, element % 2);
                let register = PART * part + element;
                if self.stays(words[2 * h + a], e as u32) {
                    kept[register / 32] |= 1 << (register % 32);
                }
            }
        }
        u64::from(kept[1]) << 32 | u64::from(kept[0])
    }

    /// What a lane finds of the same where rows are keys. A call is for two neighbouring keys, which are in two lanes: each makes
    /// half of their calls, for one of every two neighbouring queries, and gives the other what is its: the second word.
    #[inline(always)]
    pub fn halves<const REGISTERS: usize>(&self, first: Pair) -> [u32; 2] {
        const { assert!(REGISTERS <= u32::BITS as usize) };
        // A part is 16 columns: elements (h, a, c) of two halves, two rows and two columns.
        const PART: usize = 8;
        let e = first.key % 2;
        let mut halves = [0; 2];
        for part in 0..REGISTERS / PART {
            let words = self.call(Pair {
                query: first.query + 16 * part as u32 + e,
                key: first.key,
            });
            for word in 0..4 {
                let (h, a) = (word / 2, word % 2);
                let register = PART * part + 4 * h + 2 * a;
                halves[0] |= u32::from(self.stays(words[word], e)) << register;
                halves[1] |= u32::from(self.stays(words[word], 1 - e)) << register;
            }
        }
        halves
    }

    /// The probabilities that stay of a fragment whose first element is pair `first`, as [`kept_fragment`](Self::kept_fragment)
    /// has them: of its own [`halves`](Self::halves) and what the other lane gave.
    #[inline(always)]
    pub fn joined(own: u32, taken: u32, first: Pair) -> u32 {
        let e = first.key % 2;
        own << e | taken << (1 - e)
    }

    /// The same of the four elements of each of two rows, the first `down` rows and `across` columns from pair `first`.
    #[inline(always)]
    fn part<const ROWS_ARE_KEYS: bool>(&self, first: Pair, down: u32, across: u32) -> [u32; 2] {
        let mut kept = [0; 2];
        if ROWS_ARE_KEYS {
            // A call for each of two neighbouring queries.
            for c in 0..2 {
                let words = self.call(Pair {
                    query: first.query + across + c,
                    key: first.key + down,
                });
                let e = first.key % 2;
                for word in 0..4 {
                    let (h, a) = (word / 2, word % 2);
                    let bit = u32::from(self.stays(words[word], e));
                    kept[a] |= bit << (2 * h as u32 + c);
                }
            }
        } else {
            let words = self.call(Pair {
                query: first.query + down,
                key: first.key + across,
            });
            for word in 0..4 {
                let (h, a) = (word / 2, word % 2);
                for e in 0..2 {
                    let bit = u32::from(self.stays(words[word], e));
                    kept[h] |= bit << (2 * a as u32 + e);
                }
            }
        }
        kept
    }
}

/// The threshold that keeps a probability with probability `1 − p`, for `p` in [0, 1): 0 for 0, where nothing is dropped.
pub fn threshold(p: f64) -> u32 {
    if p == 0.0 {
        return 0;
    }
    let of_one = (1.0 - p) * f64::from(THRESHOLD_ONE);
    // Rounded to nearest; what is kept least often still is kept.
    ((of_one + 0.5) as u32).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::Band;
    use bytemuck::Zeroable;

    /// Known answers of the paper's authors (Random123, `kat_vectors`).
    #[test]
    fn philox_gives_the_known_answers() {
        assert_eq!(
            philox([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    fn dropout() -> Dropout {
        let params = DropoutParams {
            seed: 0x0123_4567_89ab_cdef,
            offset: 1 << 40 | 7,
            threshold: threshold(0.4),
            ..DropoutParams::zeroed()
        };
        let at = Place {
            batch: 1,
            head: 2,
            heads: 3,
            q_begin: 0,
            kv_begin: 0,
            seq_q: 64,
            seq_kv: 64,
            band: Band::FULL,
        };
        // SAFETY: nothing lies in memory.
        unsafe { Dropout::new(&params, &at) }
    }

    /// Choices of a lane for 64 queries from 32 on and 16 keys from 48 on, half of them another lane's.
    fn joined(dropout: &Dropout, lane: u32) -> u32 {
        let first = |lane: u32| Pair {
            query: 32 + lane % 4 * 2,
            key: 48 + lane / 4,
        };
        let [own, _] = dropout.halves::<32>(first(lane));
        let [_, taken] = dropout.halves::<32>(first(lane ^ 4));
        Dropout::joined(own, taken, first(lane))
    }

    /// Lanes of a fragment make the choices that pairs make one by one, whichever side is down.
    #[test]
    fn fragments_hold_the_choices_of_their_pairs() {
        let dropout = dropout();
        let (mut kept, mut all) = (0, 0);
        for lane in 0..32u32 {
            let (down, across) = (48 + lane / 4, 32 + lane % 4 * 2);
            let upright = dropout.fragment::<8, 4, false>(Pair {
                query: down,
                key: across,
            });
            let turned = dropout.fragment::<8, 4, true>(Pair {
                query: across,
                key: down,
            });
            for (i, j) in (0..4u32).flat_map(|i| (0..8u32).map(move |j| (i, j))) {
                let (row, column) = (down + 8 * i, across + j / 2 * 8 + j % 2);
                let pair = Pair {
                    query: row,
                    key: column,
                };
                let is_kept = |words: [u32; 4]| words[i as usize] >> j & 1 == 1;
                assert_eq!(is_kept(upright), dropout.keeps(pair), "{pair:?}");
                let pair = Pair {
                    query: column,
                    key: row,
                };
                assert_eq!(is_kept(turned), dropout.keeps(pair), "{pair:?} turned");
                // The accumulator of `wgmma` has 16 rows a warp.
                let register = j / 2 * 4 + i * 2 + j % 2;
                let is_joined = joined(&dropout, lane) >> register & 1 == 1;
                if i < 2 {
                    assert_eq!(is_joined, dropout.keeps(pair), "{pair:?} joined");
                }
                kept += u32::from(is_kept(upright));
                all += 1;
            }
        }
        let rate = f64::from(kept) / f64::from(all);
        assert!((rate - 0.6).abs() < 0.06, "{rate}");
    }

    #[test]
    fn thresholds_are_those_of_the_rate() {
        assert_eq!(threshold(0.0), 0);
        assert_eq!(threshold(0.5), 1 << 15);
        assert_eq!(threshold(1e-9), THRESHOLD_ONE);
        assert_eq!(threshold(1.0 - 1e-9), 1);
    }
}
