//! Dropout's keep mask in memory, of a part of a backward pass. Kernels that add dq up have no time to call the generator: a kernel of
//! its own (`tile/keep_mask.rs`) calls it before them, once for each pair of theirs, and leaves them a bit.
//!
//! A word holds what a lane has of an accumulator of `wgmma` or `mma` whose rows are [`KEYS`] keys and whose columns are [`QUERIES`]
//! queries:
//!
//! ```text
//! words   [query head of the part][seq_q / 64][seq_kv / 16, in tiles of 128 keys][32 lanes]
//! bit     16 h + 8 e + 7 − j    query = 64 Q + 8 j + 2 c + e    key = 16 K + 8 h + r    lane = 4 r + c
//! ```
//!
//! so that a shift to the left by `j` brings the bits of four neighbouring elements to the signs of the word's bytes, which one instruction
//! spreads. A comparison for each instead would wait for its predicate, of which compilers use few.

#[cfg(target_arch = "nvptx64")]
use cuda_std::bytes::{spread_sign, spread_signs};

use super::Pair;
use crate::abi::{AttentionParams, KeepMaskArg};
use crate::layout::fragment::row_column;

/// Queries and keys of a lane's word, and of the words of a warp.
pub const QUERIES: u32 = 64;
pub const KEYS: u32 = 16;
/// Keys of a call of the generator, and of a tile: no kernel's tile is larger.
pub const CALL_KEYS: u32 = 2 * KEYS;
pub const TILE_KEYS: u32 = 128;
/// Bytes of the words of a warp.
pub const WARP_BYTES: u32 = 32 * size_of::<u32>() as u32;

/// Registers of an accumulator of `wgmma` whose bits are the signs of a word's bytes at once.
const SIGNS: usize = size_of::<u32>();

/// The register of such an accumulator that holds element `[i][j]` of one of `mma`.
#[inline(always)]
pub const fn register(i: usize, j: usize) -> usize {
    SIGNS * (j / 2) + 2 * (i % 2) + j % 2
}

/// What a word is shifted left by, so that the bits of registers from `register` on, a multiple of 4, come first.
#[inline(always)]
pub const fn shift_of(register: usize) -> u32 {
    (register / SIGNS) as u32
}

/// The bit of register `register`.
#[inline(always)]
pub const fn bit(register: usize) -> u32 {
    (register % SIGNS * 8 + 7 - register / SIGNS) as u32
}

#[cfg(target_arch = "nvptx64")]
/// `value`, which is of register `register`, if `word` keeps it, else 0.
#[inline(always)]
pub fn kept(value: f32, word: u32, register: usize) -> f32 {
    let signs = word << shift_of(register);
    f32::from_bits(value.to_bits() & spread_sign(signs, (register % SIGNS) as u32))
}

#[cfg(target_arch = "nvptx64")]
/// `pair`, which is of register `register` and the next, rounded: those that `word` keeps, 0 for others.
#[inline(always)]
pub fn kept_pair(pair: u32, word: u32, register: usize) -> u32 {
    let signs = word << shift_of(register);
    let kept = if register % SIGNS == 0 {
        spread_signs::<0x9988>(signs, signs)
    } else {
        spread_signs::<0xbbaa>(signs, signs)
    };
    pair & kept
}

impl KeepMaskArg {
    /// The mask of `units` heads of k and v from number `first_unit` on, without an address.
    pub fn new(attention: &AttentionParams, first_unit: u32, units: u32) -> Self {
        let key_words = attention.seq_kv.div_ceil(TILE_KEYS) * (TILE_KEYS / KEYS);
        Self {
            address: None,
            first_unit,
            units,
            first_head: first_unit * (attention.heads_q / attention.heads_kv),
            key_words,
            head_words: u64::from(attention.seq_q.div_ceil(QUERIES)) * u64::from(key_words),
        }
    }

    /// The mask of query head `head` of batch entry `batch`, one of the units', of a launch of `heads` query heads.
    #[inline(always)]
    pub fn of_head(&self, batch: u32, head: u32, heads: u32) -> KeepMask {
        let number = batch * heads + head - self.first_head;
        let address = self.address.map_or(0, |address| address.get());
        KeepMask {
            address: address + number as u64 * self.head_words * WARP_BYTES as u64,
            key_words: self.key_words,
        }
    }
}

/// The mask of a query head.
#[derive(Clone, Copy, Debug)]
pub struct KeepMask {
    /// Address of its first word.
    address: u64,
    key_words: u32,
}

impl KeepMask {
    /// Address of lane `lane`'s word of the warp whose words hold `first`; [`WARP_BYTES`] behind it lies that of the next [`KEYS`] keys.
    #[inline(always)]
    pub fn word(&self, first: Pair, lane: u32) -> u64 {
        let words = first.query / QUERIES;
        let number = words as u64 * self.key_words as u64 + (first.key / KEYS) as u64;
        self.address + number * WARP_BYTES as u64 + (lane * size_of::<u32>() as u32) as u64
    }

    /// What a word of `first`'s is shifted left by, so that the bits of queries from `first` on come first.
    #[inline(always)]
    pub fn shift(first: Pair) -> u32 {
        first.query % QUERIES / 8
    }
}

/// The first pair of lane `lane` of a warp whose words begin with `first`.
#[inline(always)]
pub fn of_lane(first: Pair, lane: u32) -> Pair {
    Pair {
        query: first.query + row_column(lane, 0),
        key: first.key + lane / 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instances::{MODIFIED, Operation};

    /// Each bit is one register's, and those of a lane's word are a warp's pairs.
    #[test]
    fn bits_are_a_bijection() {
        let mut seen = 0u32;
        for (i, j) in (0..2).flat_map(|i| (0..16).map(move |j| (i, j))) {
            let bit = bit(register(i, j));
            assert_eq!(seen >> bit & 1, 0, "{i} {j}");
            seen |= 1 << bit;
        }
        assert_eq!(seen, !0);
    }

    /// A tile of keys, and a block of queries, of kernels that read a mask lie in one of the mask's.
    #[test]
    fn tiles_of_kernels_fit() {
        let fused = (MODIFIED.iter()).filter(|row| row.operation == Operation::BackwardFused);
        for row in fused {
            let (keys, queries) = (row.block_m, row.block_n);
            assert!(
                keys.is_power_of_two() && queries.is_power_of_two(),
                "{row:?}"
            );
            assert!(keys <= TILE_KEYS && queries <= QUERIES, "{row:?}");
        }
    }
}
