//! A 64 × 64 tile of dS between two Hopper kernels, as `wgmma` reads it from shared memory: a row of 128 bytes a key, under
//! the 128-byte swizzle, of which the transpose is the left operand of dQ = dS K.
//!
//! The kernel that computes a tile has it as accumulator, keys by queries ([`super::wgmma`]): a thread has 16 queries of
//! each of two keys, two of them in every eight. It stores eight of those at a time as one vec16, so that queries change
//! places among 32; the product's rows come out in that order ([`query`]).
//!
//! ```text
//! place   0  1 | 2  3 | 4  5  | 6  7  |  8  9 | 10 11 | ...      lane 0 of a quad: queries 0, 1, 8, 9, 16, 17, 24, 25
//! query   0  1 | 8  9 | 16 17 | 24 25 |  2  3 | 10 11 | ...      lane 1:           queries 2, 3, 10, 11, ...
//! ```

/// Keys of a tile, and queries.
pub const ROWS: u32 = 64;
/// Bytes of a key.
const ROW_BYTES: u32 = ROWS * 2;
/// Bytes of a tile.
pub const BYTES: u32 = ROWS * ROW_BYTES;
/// Queries among which places are changed, and those of them that a thread has as one vec16.
const SPAN: u32 = 32;
const VEC16_ELEMS: u32 = 8;
const VEC16_BYTES: u32 = 16;
/// Vec16s of a key that a thread has.
pub const VEC16S: u32 = ROWS / SPAN;

/// Offset in a tile of a thread's vec16 number `vec16` of key `key`; `lane` is its lane in the quad.
#[inline(always)]
pub const fn offset(key: u32, lane: u32, vec16: u32) -> u32 {
    let place = vec16 * (SPAN / VEC16_ELEMS) + lane;
    key * ROW_BYTES + (place ^ (key % 8)) * VEC16_BYTES
}

/// The query in place `place` of a tile.
#[inline(always)]
pub const fn query(place: u32) -> u32 {
    let (span, lane, pair) = (place / SPAN, place / VEC16_ELEMS % 4, place / 2 % 4);
    span * SPAN + pair * 8 + lane * 2 + place % 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::wgmma;

    /// Registers of a thread: those of a row are every second pair.
    const REGISTERS: u32 = ROWS / 2;

    /// Every element has one place, and the place says which query it is.
    #[test]
    fn places_say_their_query() {
        let mut seen = [[false; ROWS as usize]; ROWS as usize];
        for thread in 0..wgmma::THREADS {
            for register in 0..REGISTERS {
                let (key, query) = wgmma::accumulator(thread, register);
                // Of the row's 16 elements: eight to a vec16.
                let index = register / 4 * 2 + register % 2;
                let at = offset(key, thread % 4, index / VEC16_ELEMS);
                assert_eq!(at / ROW_BYTES, key);
                let vec16 = (at % ROW_BYTES / VEC16_BYTES) ^ (key % 8);
                let place = vec16 * VEC16_ELEMS + index % VEC16_ELEMS;
                assert_eq!(super::query(place), query);
                let seen = &mut seen[key as usize][place as usize];
                assert!(!core::mem::replace(seen, true));
            }
        }
        assert!(seen.iter().flatten().all(|is_seen| *is_seen));
    }

    /// What eight lanes store at once fills sectors of 32 bytes.
    #[test]
    fn stores_fill_sectors() {
        for key in 0..ROWS {
            for vec16 in 0..VEC16S {
                let halves = (0..4).map(|lane| offset(key, lane, vec16) / 32);
                let sectors: std::vec::Vec<_> = halves.collect();
                let twice = |sector: &&u32| sectors.iter().filter(|is| is == sector).count() == 2;
                assert!(sectors.iter().all(|sector| twice(&sector)));
            }
        }
    }
}
