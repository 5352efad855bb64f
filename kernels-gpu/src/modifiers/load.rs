//! Loads of elements by address, on the GPU and on the host.

#[cfg(target_arch = "nvptx64")]
mod target {
    use cuda_std::half::{F16, Half};

    /// The number with these bits of an f16.
    #[inline(always)]
    pub fn widen_f16(bits: u16) -> f32 {
        F16::widen_pair(bits as u32)[0]
    }

    /// # Safety
    /// The element is live.
    #[inline(always)]
    pub unsafe fn u8(address: u64) -> u8 {
        // SAFETY: forwarded to the caller.
        unsafe { cuda_std::global::load_u8(address) }
    }

    /// # Safety
    /// As [`u8()`], and aligned.
    #[inline(always)]
    pub unsafe fn u16(address: u64) -> u16 {
        // SAFETY: forwarded to the caller.
        unsafe { cuda_std::global::load_u16(address) }
    }

    /// # Safety
    /// As [`u16()`].
    #[inline(always)]
    pub unsafe fn u32(address: u64) -> u32 {
        // SAFETY: forwarded to the caller.
        unsafe { cuda_std::global::load_u32(address) }
    }

    /// # Safety
    /// As [`u16()`].
    #[inline(always)]
    pub unsafe fn u64(address: u64) -> u64 {
        // SAFETY: forwarded to the caller.
        unsafe { cuda_std::global::load_u64(address) }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
mod target {
    /// The number with these bits of an f16.
    pub fn widen_f16(bits: u16) -> f32 {
        half::f16::from_bits(bits).to_f32()
    }

    /// # Safety
    /// The element is live.
    unsafe fn at<T: Copy>(address: u64) -> T {
        let pointer: *const T = core::ptr::with_exposed_provenance(address as usize);
        // SAFETY: the caller vouches for the element.
        unsafe { pointer.read_unaligned() }
    }

    /// # Safety
    /// The element is live.
    pub unsafe fn u8(address: u64) -> u8 {
        // SAFETY: forwarded to the caller.
        unsafe { at(address) }
    }

    /// # Safety
    /// As [`u8()`].
    pub unsafe fn u16(address: u64) -> u16 {
        // SAFETY: forwarded to the caller.
        unsafe { at(address) }
    }

    /// # Safety
    /// As [`u8()`].
    pub unsafe fn u32(address: u64) -> u32 {
        // SAFETY: forwarded to the caller.
        unsafe { at(address) }
    }

    /// # Safety
    /// As [`u8()`].
    pub unsafe fn u64(address: u64) -> u64 {
        // SAFETY: forwarded to the caller.
        unsafe { at(address) }
    }
}

pub use target::{u8, u16, u32, u64, widen_f16};

/// # Safety
/// The element is live, and aligned.
#[inline(always)]
pub unsafe fn f32(address: u64) -> f32 {
    // SAFETY: forwarded to the caller.
    f32::from_bits(unsafe { u32(address) })
}

/// The number with these bits of a bf16.
#[inline(always)]
pub fn widen_bf16(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << u16::BITS)
}
