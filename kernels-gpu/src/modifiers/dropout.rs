//! Which probabilities are dropped (Srivastava et al. 2014): a counter-based generator decides, so that neither a tile's shape
//! nor a kernel's family changes it, and a backward pass makes the same choice again.
//!
//! The generator is Philox 4×32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"). A call gives 128 bits:
//! a byte for each of sixteen pairs of a query and a key, which are those that a lane holds of a 16 × 32 part of `mma`'s accumulator
//! ([`crate::layout::fragment`]).
//!
//! ```text
//! query = 16 R + 8 h + r      key = 32 C + 8 a + 2 c + e
//! counter = [8 R + r, 4 C + c, batch · heads_q + head, low word of the offset]
//! key     = [low word of the seed, high word of the seed ^ high word of the offset]
//! byte    = byte 2 e + h of word a
//! stays where byte < (threshold + 2 e + h) / 4
//! ```
//!
//! Four neighbours have thresholds that differ by 1 at most and add up to what is asked for, so that the rate is finer than a byte is.

// Arrays in registers, indexed by constants once loops over them are unrolled.
#![allow(clippy::needless_range_loop)]

use super::keep_mask::{self, QUERIES};
use super::{Pair, Place, black_box, load};
use crate::abi::DropoutParams;

/// The threshold of a rate of 0: every byte is below its fourth part.
pub const THRESHOLD_ONE: u32 = 1 << 10;

/// Registers of a fragment of which a word says whether they are dropped ([`Dropout::dropped_signs`]), and the columns they cover.
pub const SIGNS_REGISTERS: usize = u32::BITS as usize;
pub const SIGNS_COLS: u32 = SIGNS_REGISTERS as u32 * 2;

/// Pairs of a call.
const CALL: usize = 16;
/// Rounds of the generator.
const ROUNDS: u32 = 10;
/// Multipliers of a round, and what a round adds to the key.
const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

/// Philox 4×32-10.
#[inline(always)]
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [words] = philox_of([counter], key);
    words
}

/// The same of some counters at once: a round of one waits for its products while another's are on their way.
#[inline(always)]
fn philox_of<const CALLS: usize>(mut calls: [[u32; 4]; CALLS], key: [u32; 2]) -> [[u32; 4]; CALLS] {
    let [mut low, mut high] = key;
    let mut round = 0;
    while round < ROUNDS {
        for call in 0..CALLS {
            let [a, b, c, d] = calls[call];
            let x = a as u64 * MULTIPLIERS[0] as u64;
            let y = c as u64 * MULTIPLIERS[1] as u64;
            calls[call] = [
                (y >> 32) as u32 ^ b ^ low,
                y as u32,
                (x >> 32) as u32 ^ d ^ high,
                x as u32,
            ];
        }
        low = low.wrapping_add(WEYL[0]);
        high = high.wrapping_add(WEYL[1]);
        round += 1;
    }
    calls
}

/// The dropout of a query head of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    key: [u32; 2],
    /// The head's part of the counter, and the offset's.
    plane: u32,
    offset: u32,
    /// What bytes of pairs of row `h`, in the halves of a word, are added to: bit 15 of the sum is set where the byte reaches its
    /// threshold.
    limits: [u32; 2],
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
        let limit = |h: u32, e: u32| (1 << 15) - (params.threshold + 2 * e + h) / 4;
        Self {
            key: [seed as u32, (seed >> 32) as u32 ^ (offset >> 32) as u32],
            plane: at.batch.wrapping_mul(at.heads).wrapping_add(at.head),
            offset: offset as u32,
            limits: [0, 1].map(|h| limit(h, 1) << 16 | limit(h, 0)),
        }
    }

    /// The counter of the call that a pair's bits are a part of.
    #[inline(always)]
    fn counter(&self, pair: Pair) -> [u32; 4] {
        let row = pair.query / 16 * 8 + pair.query % 8;
        let column = pair.key / 32 * 4 + pair.key % 8 / 2;
        [row, column, self.plane, self.offset]
    }

    /// The call that a pair's bits are a part of.
    #[inline(always)]
    pub fn call(&self, pair: Pair) -> [u32; 4] {
        philox(self.counter(pair), self.key)
    }

    /// Of the pairs of row `h` whose bytes are in `word`: bit 15 is set if that with `e = 0` is dropped, bit 31 if that with `e = 1` is.
    /// Other bits are anything.
    #[inline(always)]
    fn dropped(&self, word: u32, h: usize) -> u32 {
        bytes_of_row(word, h) + self.limits[h]
    }

    /// The same of the pair with `e`: whether it is kept, 1 or 0.
    #[inline(always)]
    fn kept(&self, word: u32, h: usize, e: u32) -> u32 {
        !self.dropped(word, h) >> (15 + 16 * e) & 1
    }

    /// Whether a pair's probability stays.
    #[inline(always)]
    pub fn keeps(&self, pair: Pair) -> bool {
        let words = self.call(pair);
        let (h, a, e) = (pair.query / 8 % 2, pair.key / 8 % 4, pair.key % 2);
        // Selected rather than indexed, so that the words stay in registers.
        let [even, odd] = if a < 2 {
            [words[0], words[1]]
        } else {
            [words[2], words[3]]
        };
        let word = if a % 2 == 0 { even } else { odd };
        let kept = [0, 1].map(|h| self.kept(word, h, e));
        (if h == 0 { kept[0] } else { kept[1] }) == 1
    }

    /// The probabilities that stay of a lane's part of an accumulator of `mma` whose first element is pair `first`: bit `j` of
    /// word `i` for element `[i][j]`. Rows are queries and columns are keys, or the other way round if `ROWS_ARE_KEYS`. The keys
    /// begin with a multiple of 32, or, if they are 16 alone, of 16.
    #[inline(always)]
    pub fn fragment<const COLS: usize, const ROWS: usize, const ROWS_ARE_KEYS: bool>(
        &self,
        first: Pair,
    ) -> [u32; ROWS] {
        const { assert!(fits(if ROWS_ARE_KEYS { 8 * ROWS } else { 4 * COLS })) };
        let keys = if ROWS_ARE_KEYS { 8 * ROWS } else { 4 * COLS };
        let mut kept = [0; ROWS];
        let (rows, cols) = if ROWS_ARE_KEYS { (4, 4) } else { (2, 8) };
        for i in (0..ROWS).step_by(rows) {
            let down = 8 * i as u32;
            // A loop that stays one: unrolled, its calls would be most of a kernel's instructions.
            let mut j = 0;
            while j < black_box(COLS as u32) {
                let part = if ROWS_ARE_KEYS {
                    self.turned(first, down, 4 * j, keys)
                } else {
                    self.upright(first, down, 4 * j, keys)
                };
                for row in 0..rows.min(ROWS) {
                    kept[i + row] |= part[row] << j;
                }
                j += cols;
            }
        }
        kept
    }

    /// The eight elements of each of two rows of queries, the first `down` rows and `across` columns from pair `first`, of a fragment of
    /// so many keys.
    #[inline(always)]
    fn upright(&self, first: Pair, down: u32, across: u32, keys: usize) -> [u32; 4] {
        let words = self.words_of(first.query + down, first.key + across, keys);
        let mut kept = [0; 4];
        for a in 0..4 {
            for h in 0..2 {
                for e in 0..2 {
                    kept[h] |= self.kept(words[a], h, e) << (2 * a as u32 + e);
                }
            }
        }
        kept
    }

    /// The four elements of each of four rows of keys, likewise.
    #[inline(always)]
    fn turned(&self, first: Pair, down: u32, across: u32, keys: usize) -> [u32; 4] {
        let mut kept = [0; 4];
        // A call for each of two neighbouring queries.
        for c in 0..2 {
            let key = first.key + down;
            let words = self.words_of(first.query + across + c, key, keys);
            for a in 0..4 {
                for h in 0..2 {
                    kept[a] |= self.kept(words[a], h, key % 2) << (2 * h as u32 + c);
                }
            }
        }
        kept
    }

    /// The words of a call whose keys begin with `key`: if they are 16, the other words are not of them.
    #[inline(always)]
    fn words_of(&self, query: u32, key: u32, keys: usize) -> [u32; 4] {
        let words = self.call(Pair { query, key });
        if keys == 16 && key / 16 % 2 == 1 {
            return [words[2], words[3], words[0], words[1]];
        }
        words
    }

    /// The probabilities that stay of a thread's part of an accumulator of `wgmma` whose rows are queries, and whose first element
    /// is pair `first`: a [bit](keep_mask::bit) each. The first key is a multiple of 32.
    #[inline(always)]
    pub fn kept_fragment<const REGISTERS: usize>(&self, first: Pair) -> u32 {
        const { assert!(REGISTERS <= u32::BITS as usize && REGISTERS.is_multiple_of(CALL)) };
        let mut kept = 0;
        for part in 0..REGISTERS / CALL {
            let words = self.call(Pair {
                query: first.query,
                key: first.key + 32 * part as u32,
            });
            for element in 0..CALL {
                let (a, h, e) = (element / 4, element / 2 % 2, element % 2);
                let bit = keep_mask::bit(CALL * part + element);
                kept |= self.kept(words[a], h, e as u32) << bit;
            }
        }
        kept
    }

    /// Those that are dropped of [`SIGNS_REGISTERS`] registers of the same, in another order: register `4 i + j`'s is bit `7 − i` of byte
    /// `j`, so that a shift by `i` brings those of four registers to the signs of the word's bytes.
    #[inline(always)]
    pub fn dropped_signs(&self, first: Pair) -> u32 {
        let counters = core::array::from_fn(|part| {
            self.counter(Pair {
                query: first.query,
                key: first.key + 32 * part as u32,
            })
        });
        let calls: [_; SIGNS_REGISTERS / CALL] = philox_of(counters, self.key);
        let mut signs = 0;
        for i in 0..SIGNS_REGISTERS / 4 {
            let word = calls[i / 4][i % 4];
            let four = spread_signs(self.dropped(word, 0), self.dropped(word, 1));
            signs |= four & 0x8080_8080 >> i;
        }
        signs
    }

    /// What a lane makes of two words of a keep mask ([`keep_mask`]) whose first pair of this lane is `first`, of
    /// [`keep_mask::CALL_KEYS`] keys. A call is for two neighbouring keys, which are in two lanes: each makes half of their calls, for one of every
    /// two neighbouring queries, and gives the other what is its.
    #[inline(always)]
    pub fn halves(&self, first: Pair) -> Halves {
        let is_odd = first.key % 2;
        let counters = core::array::from_fn(|part| {
            self.counter(Pair {
                query: first.query + 16 * part as u32 + is_odd,
                key: first.key,
            })
        });
        let calls: [_; QUERIES as usize / 16] = philox_of(counters, self.key);
        // Of either word, a byte for each of the keys `[8 h + even, 8 h + odd]`.
        let mut dropped = [0; 2];
        for i in (0..QUERIES as usize / 8).rev() {
            let words = calls[i / 2];
            for k in 0..2 {
                let [low, high] = [0, 1].map(|h| self.dropped(words[2 * k + h], i % 2));
                dropped[k] = dropped[k] >> 1 | bytes_of_signs(low, high) & 0x8080_8080;
            }
        }
        // Its own bytes first, of queries that are odd where its key is.
        let kept = dropped.map(|word| {
            if is_odd == 0 {
                !word
            } else {
                swap_bytes(!word)
            }
        });
        Halves {
            own: kept.map(|word| word & EVEN_BYTES),
            given: kept[0] >> 8 & EVEN_BYTES | kept[1] & !EVEN_BYTES,
        }
    }

    /// The two words, of a lane's own part and what the lane with the key beside gave it; `first` is as of [`Dropout::halves`].
    #[inline(always)]
    pub fn joined(halves: Halves, taken: u32, first: Pair) -> [u32; 2] {
        let words = [
            halves.own[0] | (taken & EVEN_BYTES) << 8,
            halves.own[1] | taken & !EVEN_BYTES,
        ];
        let is_odd = first.key % 2 == 1;
        words.map(|word| if is_odd { swap_bytes(word) } else { word })
    }
}

/// What a lane makes of two words of a keep mask.
#[derive(Clone, Copy, Debug)]
pub struct Halves {
    /// Its own part of each, in the bytes with even numbers.
    own: [u32; 2],
    /// What the lane with the key beside finds in its own: of the first word the even bytes, of the second the odd ones.
    pub given: u32,
}

/// The first and the third byte of a word.
const EVEN_BYTES: u32 = 0x00ff_00ff;

/// The bytes of a word, of which the first and the second, and the third and the fourth, have changed places.
#[inline(always)]
const fn swap_bytes(word: u32) -> u32 {
    (word & EVEN_BYTES) << 8 | word >> 8 & EVEN_BYTES
}

/// Whether a fragment may have so many keys: the calls for them are for 32 each, or one for 16 and others.
const fn fits(keys: usize) -> bool {
    keys == 16 || keys.is_multiple_of(32)
}

/// The bytes of row `h`, in the halves of a word.
#[inline(always)]
fn bytes_of_row(word: u32, h: usize) -> u32 {
    // In one instruction for either row.
    #[cfg(target_arch = "nvptx64")]
    return cuda_std::bytes::permute(word, 0, if h == 0 { 0x4240 } else { 0x4341 });
    #[cfg(not(target_arch = "nvptx64"))]
    return word >> (u8::BITS as usize * h) & EVEN_BYTES;
}

/// The second and the fourth byte of two words, whose signs are those of the words' halves: `[low, low's upper, high, high's upper]`.
#[inline(always)]
fn bytes_of_signs(low: u32, high: u32) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    return cuda_std::bytes::permute(low, high, 0x7531);
    #[cfg(not(target_arch = "nvptx64"))]
    u32::from_le_bytes([low >> 8, low >> 24, high >> 8, high >> 24].map(|byte| byte as u8))
}

/// The signs of the halves of two words, in a byte each that is all ones or zeros: `[low, low's upper, high, high's upper]`.
#[inline(always)]
fn spread_signs(low: u32, high: u32) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    return cuda_std::bytes::spread_signs::<0xfdb9>(low, high);
    #[cfg(not(target_arch = "nvptx64"))]
    u32::from_le_bytes(
        [low, low >> 16, high, high >> 16]
            .map(|half| if half >> 15 & 1 == 1 { u8::MAX } else { 0 }),
    )
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
        // SAFETY: nothing lies in memory.
        unsafe { Dropout::new(&params, &place()) }
    }

    fn place() -> Place {
        Place {
            batch: 1,
            head: 2,
            heads: 3,
            q_begin: 0,
            kv_begin: 0,
            seq_q: 64,
            seq_kv: 64,
            band: Band::FULL,
        }
    }

    /// Words of a keep mask, of which each lane makes half and takes half, hold the choices of their pairs.
    #[test]
    fn words_hold_the_choices_of_their_pairs() {
        let dropout = dropout();
        let begin = Pair { query: 64, key: 32 };
        for lane in 0..32u32 {
            let first = |lane| keep_mask::of_lane(begin, lane);
            let Pair { query, key } = first(lane);
            let taken = dropout.halves(first(lane ^ 4)).given;
            let words = Dropout::joined(dropout.halves(first(lane)), taken, first(lane));
            for (i, j) in (0..4).flat_map(|i| (0..16).map(move |j| (i, j))) {
                let pair = Pair {
                    query: query + j / 2 * 8 + j % 2,
                    key: key + 8 * i,
                };
                let bit = keep_mask::bit(keep_mask::register(i as usize, j as usize));
                let is_kept = words[i as usize / 2] >> bit & 1 == 1;
                assert_eq!(is_kept, dropout.keeps(pair), "lane {lane}, {pair:?}");
            }
        }
    }

    /// Lanes of a fragment make the choices that pairs make one by one, whichever side is down.
    #[test]
    fn fragments_hold_the_choices_of_their_pairs() {
        let dropout = dropout();
        let (mut kept, mut all) = (0, 0);
        for lane in 0..32u32 {
            let (down, across) = (64 + lane / 4, 32 + lane % 4 * 2);
            let at = |query, key| Pair { query, key };
            let upright = dropout.fragment::<8, 4, false>(at(down, across));
            let turned = dropout.fragment::<8, 4, true>(at(across, down));
            let two_rows = dropout.fragment::<8, 2, true>(at(across, down + 16));
            let four_columns = dropout.fragment::<4, 2, false>(at(down, across + 16));
            let of_queries = dropout.kept_fragment::<16>(at(down, across));
            let signs = dropout.dropped_signs(at(down, across));
            for (i, j) in (0..4u32).flat_map(|i| (0..8u32).map(move |j| (i, j))) {
                let (row, column) = (down + 8 * i, across + j / 2 * 8 + j % 2);
                let is_kept = |word: u32, bit: u32| word >> bit & 1 == 1;
                let upright_pair = dropout.keeps(at(row, column));
                let turned_pair = dropout.keeps(at(column, row));
                assert_eq!(is_kept(upright[i as usize], j), upright_pair, "{i} {j}");
                assert_eq!(
                    is_kept(turned[i as usize], j),
                    turned_pair,
                    "{i} {j} turned"
                );
                if i >= 2 {
                    let two = two_rows[i as usize - 2];
                    assert_eq!(is_kept(two, j), turned_pair, "{i} {j} of two rows");
                } else {
                    // An accumulator of `wgmma` has 16 rows a warp.
                    let register = j / 2 * 4 + i * 2 + j % 2;
                    let bit = keep_mask::bit(register as usize);
                    assert_eq!(is_kept(of_queries, bit), upright_pair, "{i} {j} of wgmma");
                    if j >= 4 {
                        let four = four_columns[i as usize];
                        assert_eq!(is_kept(four, j - 4), upright_pair, "{i} {j} of 16 keys");
                    }
                    let sign = register % 4 * 8 + 7 - register / 4;
                    assert_eq!(is_kept(signs, sign), !upright_pair, "{i} {j} in signs");
                }
                kept += u32::from(upright_pair);
                all += 1;
            }
        }
        let rate = f64::from(kept) / f64::from(all);
        assert!((rate - 0.6).abs() < 0.06, "{rate}");
    }

    /// Bytes are counted, over all that they may be: as many as the threshold says stay.
    #[test]
    fn rates_are_those_of_thresholds() {
        for threshold in [1, 2, 511, 921, 922, 923, 924, 1023, THRESHOLD_ONE] {
            let params = DropoutParams {
                threshold,
                ..DropoutParams::zeroed()
            };
            let place = place();
            // SAFETY: nothing lies in memory.
            let dropout = unsafe { Dropout::new(&params, &place) };
            let kept: u32 = (0..=u32::from(u8::MAX))
                .flat_map(|byte| [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(h, e)| (byte, h, e)))
                .map(|(byte, h, e)| dropout.kept(byte * 0x0101_0101, h, e))
                .sum();
            assert_eq!(kept, threshold);
        }
    }

    #[test]
    fn thresholds_are_those_of_the_rate() {
        assert_eq!(threshold(0.0), 0);
        assert_eq!(threshold(0.5), 1 << 9);
        assert_eq!(threshold(1e-9), THRESHOLD_ONE);
        assert_eq!(threshold(1.0 - 1e-9), 1);
    }
}
