//! P on its way from one warpgroup to the other.
//!
//! Where dS is rounded to bf16, P passes in f16, three bits finer, times 2¹⁵, so that none above 2⁻²⁹ loses bits; dS keeps the
//! factor. Where dS is rounded to f16, an error of f16 in P too would be more than the bound of the gradients allows: of each
//! element pass the three upper bytes of its f32, which is 16 bits of precision. That is half as much again to write and to
//! read, and costs bf16's kernels 1 to 2 % of their time on an H200.

use cuda_std::bytes::permute;
use cuda_std::half::{F16, Half};
use cuda_std::shared::{load4_bits, store4_bits};
use cuda_std::warp::WARP_SIZE;

use crate::config::wgmma::WARPGROUP;
use crate::layout::swizzle::VEC16_BYTES;
use crate::tile::element::Element;
use crate::wgmma::forward::lanes::Lanes;

/// P is at most 1 but for rounding, so that it does not overflow.
const F16_FACTOR: f32 = 32768.0;

/// Elements of which three bytes each are packed together, and the words that they take.
const GROUP: usize = 4;
const GROUP_WORDS: usize = 3;
/// Elements that are whole vec16s in either form, and the most words that they take.
const ELEMENTS: usize = 16;
const WORDS: usize = ELEMENTS / GROUP * GROUP_WORDS;
const VEC16_WORDS: usize = 4;

/// What dS is times because P is, before it is rounded to `E`.
#[inline(always)]
pub fn factor<E: Element>() -> f32 {
    if E::SCALES_DS { 1.0 } else { F16_FACTOR }
}

/// Stores a thread's fragment at `smem`, where the same thread of the other warpgroup loads it.
///
/// # Safety
/// A stage of P lies there, and no thread is reading it.
#[inline(always)]
pub unsafe fn store<E: Element, const S_REGS: usize>(smem: u32, p: &[f32; S_REGS], lanes: Lanes) {
    for part in 0..S_REGS / ELEMENTS {
        let mut elements = [0.0; ELEMENTS];
        for i in 0..ELEMENTS {
            elements[i] = p[part * ELEMENTS + i];
        }
        let words = pack::<E>(&elements);
        for i in 0..vec16s::<E>() {
            let at = i * VEC16_WORDS;
            let vec16 = [words[at], words[at + 1], words[at + 2], words[at + 3]];
            // SAFETY: forwarded to the caller.
            unsafe { store4_bits(address(smem, part * vec16s::<E>() + i, lanes), vec16) };
        }
    }
}

/// Loads what [`store`] stored: P times [`factor`].
///
/// # Safety
/// It is visible.
#[inline(always)]
pub unsafe fn load<E: Element, const S_REGS: usize>(smem: u32, lanes: Lanes) -> [f32; S_REGS] {
    let mut p = [0.0; S_REGS];
    for part in 0..S_REGS / ELEMENTS {
        let mut words = [0; WORDS];
        for i in 0..vec16s::<E>() {
            // SAFETY: forwarded to the caller.
            let vec16 = unsafe { load4_bits(address(smem, part * vec16s::<E>() + i, lanes)) };
            for j in 0..VEC16_WORDS {
                words[i * VEC16_WORDS + j] = vec16[j];
            }
        }
        let elements = unpack::<E>(&words);
        for i in 0..ELEMENTS {
            p[part * ELEMENTS + i] = elements[i];
        }
    }
    p
}

/// Address of vec16 number `vec16` of a thread's fragment.
#[inline(always)]
fn address(smem: u32, vec16: usize, lanes: Lanes) -> u32 {
    let thread = lanes.warp * WARP_SIZE + lanes.lane;
    smem + (vec16 as u32 * WARPGROUP + thread) * VEC16_BYTES
}

/// How many vec16s [`ELEMENTS`] take.
const fn vec16s<E: Element>() -> usize {
    if E::SCALES_DS {
        WORDS / VEC16_WORDS
    } else {
        ELEMENTS / 2 / VEC16_WORDS
    }
}

/// The words of the elements: pairs, or three for every four.
#[inline(always)]
fn pack<E: Element>(p: &[f32; ELEMENTS]) -> [u32; WORDS] {
    let mut words = [0; WORDS];
    if E::SCALES_DS {
        for group in 0..ELEMENTS / GROUP {
            let at = group * GROUP;
            let of_group = pack_bytes([p[at], p[at + 1], p[at + 2], p[at + 3]]);
            for i in 0..GROUP_WORDS {
                words[group * GROUP_WORDS + i] = of_group[i];
            }
        }
    } else {
        for pair in 0..ELEMENTS / 2 {
            words[pair] = F16::cvt_pair(p[2 * pair] * F16_FACTOR, p[2 * pair + 1] * F16_FACTOR);
        }
    }
    words
}

/// The elements of [`pack`]'s words.
#[inline(always)]
fn unpack<E: Element>(words: &[u32; WORDS]) -> [f32; ELEMENTS] {
    let mut p = [0.0; ELEMENTS];
    if E::SCALES_DS {
        for group in 0..ELEMENTS / GROUP {
            let at = group * GROUP_WORDS;
            let of_group = unpack_bytes([words[at], words[at + 1], words[at + 2]]);
            for i in 0..GROUP {
                p[group * GROUP + i] = of_group[i];
            }
        }
    } else {
        for pair in 0..ELEMENTS / 2 {
            let [low, high] = F16::widen_pair(words[pair]);
            p[2 * pair] = low;
            p[2 * pair + 1] = high;
        }
    }
    p
}

/// The upper bytes of four elements; those of the fourth lie above the others'.
#[inline(always)]
fn pack_bytes(p: [f32; GROUP]) -> [u32; GROUP_WORDS] {
    let [a, b, c, d] = p.map(f32::to_bits);
    [
        permute(a, d, 0x5321),
        permute(b, d, 0x6321),
        permute(c, d, 0x7321),
    ]
}

/// The middle of what the lost byte can have been takes its place: it halves the error.
#[inline(always)]
fn unpack_bytes([a, b, c]: [u32; GROUP_WORDS]) -> [f32; GROUP] {
    const MIDDLE: u32 = 0x80;
    let lower = |word| permute(word, MIDDLE, 0x2104);
    let ends = permute(c, MIDDLE, 0x3004);
    let d = permute(permute(a, b, 0x0730), ends, 0x7214);
    [lower(a), lower(b), lower(c), d].map(f32::from_bits)
}
