//! An element of a tensor in global memory.

use cuda_std::global;
use cuda_std::half::{Bf16, F16, Half};

use crate::e4m3;
use crate::units::{F32_BYTES, HALF_BYTES};

/// An element type in memory, computed with in f32.
pub trait Element {
    const BYTES: u32;
    /// Whether gradients of scores may be too large for it, so that they are rounded times a power of two.
    const SCALES_DS: bool;

    /// The elements of a word of memory, lowest first, two of them; 0 in place of a second one where a word is one element.
    fn unpack(word: u32) -> [f32; 2];

    /// # Safety
    /// An element lies at `address`, which nobody writes during the launch.
    unsafe fn load(address: u64) -> f32;

    /// Rounds `value` to nearest even.
    ///
    /// # Safety
    /// An element lies at `address`, which no other thread accesses.
    unsafe fn store(address: u64, value: f32);
}

/// f32.
pub struct F32;

impl Element for F32 {
    const BYTES: u32 = F32_BYTES;
    const SCALES_DS: bool = false;

    #[inline(always)]
    fn unpack(word: u32) -> [f32; 2] {
        [f32::from_bits(word), 0.0]
    }

    #[inline(always)]
    unsafe fn load(address: u64) -> f32 {
        // SAFETY: the caller vouches for the address.
        f32::from_bits(unsafe { global::load_u32(address) })
    }

    #[inline(always)]
    unsafe fn store(address: u64, value: f32) {
        // SAFETY: the caller vouches for the address.
        unsafe { global::store(address, value) }
    }
}

/// f16 and bf16.
macro_rules! half_element {
    ($($half:ident),*) => {
        $(
            impl Element for $half {
                const BYTES: u32 = HALF_BYTES;
                const SCALES_DS: bool = Self::LARGEST_EXPONENT.is_some();

                #[inline(always)]
                fn unpack(word: u32) -> [f32; 2] {
                    Self::widen_pair(word)
                }

                #[inline(always)]
                unsafe fn load(address: u64) -> f32 {
                    // SAFETY: the caller vouches for the address.
                    let bits = unsafe { global::load_u16(address) };
                    let [value, _] = Self::widen_pair(bits as u32);
                    value
                }

                #[inline(always)]
                unsafe fn store(address: u64, value: f32) {
                    // SAFETY: the caller vouches for the address.
                    unsafe { global::store_u16(address, Self::cvt_pair(value, 0.0) as u16) }
                }
            }
        )*
    };
}

half_element!(F16, Bf16);

/// e4m3.
pub struct E4m3;

impl Element for E4m3 {
    const BYTES: u32 = 1;
    const SCALES_DS: bool = false;

    #[inline(always)]
    fn unpack(word: u32) -> [f32; 2] {
        [word, word >> 8].map(|code| e4m3::to_f32(code as u8))
    }

    #[inline(always)]
    unsafe fn load(address: u64) -> f32 {
        // SAFETY: the caller vouches for the address.
        e4m3::to_f32(unsafe { global::load_u8(address) })
    }

    #[inline(always)]
    unsafe fn store(address: u64, value: f32) {
        // SAFETY: the caller vouches for the address.
        unsafe { global::store_u8(address, e4m3::of_f32(value)) }
    }
}
