//! Words of four e4m3 codes as pairs of f16, which every code is exactly: by `cvt`, or by shifts and a multiplication where a GPU has
//! no such instruction.
//!
//! | | pairs of a key's components | pairs of two keys' components | a word |
//! |---|---|---|---|
//! | `cvt`, sm_89 | `(d, d + 1)`, `(d + 2, d + 3)` | the same of permuted bytes | 2 or 3 instructions |
//! | shifts | `(d, d + 2)`, `(d + 1, d + 3)` | the same | 9, and 3 that look for NaN |

use cuda_std::bytes::permute;
use cuda_std::half::F16;

/// A pair's bits of an f16's exponent and fraction that a code has, and by how many bits they are higher than in a code of the lower byte.
const CODE_BITS: u32 = 0x007f_007f << CODE_SHIFT;
const CODE_SHIFT: u32 = 10 - 3;
/// 2⁸ twice, the difference of the biases.
const REBIAS: u32 = 0x5c00_5c00;
/// Signs of a pair.
const PAIR_SIGNS: u32 = 0x8000_8000;
/// Even bytes, then odd ones.
const EVENS_AND_ODDS: u32 = 0x3120;

/// Q's pairs that [`key`]'s are multiplied with, from those of four components in order.
#[inline(always)]
pub fn query(has_cvt: bool, [first, second]: [u32; 2]) -> [u32; 2] {
    if has_cvt {
        [first, second]
    } else {
        [
            first & 0xffff | second << 16,
            first >> 16 | second & 0xffff_0000,
        ]
    }
}

/// A key's components `d .. d + 4` as two pairs.
#[inline(always)]
pub fn key(has_cvt: bool, codes: u32) -> [u32; 2] {
    if has_cvt {
        F16::pairs_of_e4m3(codes)
    } else {
        evens_and_odds(codes)
    }
}

/// Component `d` of two keys and `d + 1` of both, which alternate in `codes`, as a pair each.
#[inline(always)]
pub fn values(has_cvt: bool, codes: u32) -> [u32; 2] {
    if has_cvt {
        F16::pairs_of_e4m3(permute(codes, 0, EVENS_AND_ODDS))
    } else {
        evens_and_odds(codes)
    }
}

/// The even and the odd codes, NaN as some number: exponent and fraction are moved to their places, and the difference of the
/// biases is multiplied in, exactly, also where a code is subnormal.
#[inline(always)]
fn evens_and_odds(codes: u32) -> [u32; 2] {
    let even = (codes << CODE_SHIFT) & CODE_BITS | (codes << 8) & PAIR_SIGNS;
    let odd = (codes >> (8 - CODE_SHIFT)) & CODE_BITS | codes & PAIR_SIGNS;
    [even, odd].map(|pair| F16::mul_pair(pair, REBIAS))
}
