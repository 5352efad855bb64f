//! Global memory by 64-bit address.
//!
//! PTX ISA, "Data Movement and Conversion Instructions: ld, st".

use core::arch::asm;

/// Stores one f32 (`st.global.f32`).
///
/// # Safety
/// `address` is 4-byte aligned, inside an allocation, and no other thread writes it.
#[inline(always)]
pub unsafe fn store(address: u64, value: f32) {
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("st.global.f32 [{}], {};", in(reg64) address, in(reg32) value, options(nostack));
    }
}

/// As [`store`], a word.
///
/// # Safety
/// As [`store`].
#[inline(always)]
pub unsafe fn store_bits(address: u64, value: u32) {
    // SAFETY: the caller's contract is this function's; the bits of a word are those of an f32.
    unsafe { store(address, f32::from_bits(value)) }
}

/// Where `condition` holds, stores one f32; predicated, not branched around.
///
/// # Safety
/// As [`store`], where `condition` holds.
#[inline(always)]
pub unsafe fn store_if(condition: bool, address: u64, value: f32) {
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("{{ .reg .pred p; setp.ne.b32 p, {}, 0; @p st.global.f32 [{}], {}; }}",
            in(reg32) condition as u32, in(reg64) address, in(reg32) value, options(nostack));
    }
}

/// Adds 1 to a counter that wraps to 0 after `last`; returns its old value (`atom.global.inc.u32`).
///
/// # Safety
/// `address` is 4-byte aligned and inside an allocation.
#[inline(always)]
pub unsafe fn fetch_increment(address: u64, last: u32) -> u32 {
    let old: u32;
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("atom.relaxed.gpu.global.inc.u32 {}, [{}], {};", out(reg32) old, in(reg64) address,
            in(reg32) last, options(nostack));
    }
    old
}

/// [`fetch_increment`] that orders this thread's accesses before it, and what it has seen of others', before those after it
/// (`atom.acq_rel.gpu.global.inc.u32`): a release of what others acquire by the same counter. PTX ISA, "Memory Consistency Model".
///
/// # Safety
/// As [`fetch_increment`].
#[inline(always)]
pub unsafe fn fetch_increment_acq_rel(address: u64, last: u32) -> u32 {
    let old: u32;
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("atom.acq_rel.gpu.global.inc.u32 {}, [{}], {};", out(reg32) old, in(reg64) address,
            in(reg32) last, options(nostack));
    }
    old
}

/// Sets bits of a word that other threads of the GPU may be setting bits of too (`red.global.or.b32`).
///
/// # Safety
/// `address` is 4-byte aligned and inside an allocation.
#[inline(always)]
pub unsafe fn set_bits(address: u64, bits: u32) {
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("red.relaxed.gpu.global.or.b32 [{}], {};", in(reg64) address, in(reg32) bits,
            options(nostack));
    }
}

/// Adds to an f32 that other threads of the GPU may be adding to too (`red.global.add.f32`).
///
/// # Safety
/// `address` is 4-byte aligned and inside an allocation; other accesses are ordered before or after.
#[inline(always)]
pub unsafe fn add(address: u64, value: f32) {
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("red.relaxed.gpu.global.add.f32 [{}], {};", in(reg64) address, in(reg32) value,
            options(nostack));
    }
}

/// Adds four numbers to those at `address` and behind, as [`add`] does each (`red.relaxed.gpu.global.add.v4.f32`, sm_90). PTX ISA,
/// "red".
///
/// # Safety
/// As [`add`], of all four; `address` is 16-byte aligned.
#[inline(always)]
pub unsafe fn add4(address: u64, [a, b, c, d]: [f32; 4]) {
    // SAFETY: the caller vouches for the addresses.
    unsafe {
        asm!("red.relaxed.gpu.global.add.v4.f32 [{}], {{{}, {}, {}, {}}};", in(reg64) address,
            in(reg32) a, in(reg32) b, in(reg32) c, in(reg32) d, options(nostack));
    }
}

/// Stores four consecutive f32 (`st.global.v4.f32`).
///
/// # Safety
/// `address` is 16-byte aligned, its 16 bytes are inside an allocation, and no other thread writes them.
#[inline(always)]
pub unsafe fn store4(address: u64, [a, b, c, d]: [f32; 4]) {
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("st.global.v4.f32 [{}], {{{}, {}, {}, {}}};", in(reg64) address,
            in(reg32) a, in(reg32) b, in(reg32) c, in(reg32) d, options(nostack));
    }
}

/// Stores 16 bytes given as four words (`st.global.v4.b32`).
///
/// # Safety
/// As [`store4`].
#[inline(always)]
pub unsafe fn store4_bits(address: u64, [a, b, c, d]: [u32; 4]) {
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("st.global.v4.b32 [{}], {{{}, {}, {}, {}}};", in(reg64) address,
            in(reg32) a, in(reg32) b, in(reg32) c, in(reg32) d, options(nostack));
    }
}

/// Stores 16 bits (`st.global.b16`).
///
/// # Safety
/// `address` is 2-byte aligned, inside an allocation, and no other thread writes it.
#[inline(always)]
pub unsafe fn store_u16(address: u64, value: u16) {
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("st.global.b16 [{}], {};", in(reg64) address, in(reg16) value, options(nostack));
    }
}

/// Stores a byte (`st.global.u8`).
///
/// # Safety
/// `address` is inside an allocation, and no other thread writes it.
#[inline(always)]
pub unsafe fn store_u8(address: u64, value: u8) {
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("st.global.u8 [{}], {};", in(reg64) address, in(reg16) value as u16, options(nostack));
    }
}

/// Loads a byte of memory that nobody writes during the launch (`ld.global.nc.u8`).
///
/// # Safety
/// `address` is inside an allocation that is only read.
#[inline(always)]
pub unsafe fn load_u8(address: u64) -> u8 {
    let value: u16;
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("ld.global.nc.u8 {}, [{}];", out(reg16) value, in(reg64) address,
            options(pure, readonly, nostack));
    }
    value as u8
}

/// Loads 16 bits of memory that nobody writes during the launch (`ld.global.nc.b16`).
///
/// # Safety
/// `address` is 2-byte aligned and inside an allocation that is only read.
#[inline(always)]
pub unsafe fn load_u16(address: u64) -> u16 {
    let value: u16;
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("ld.global.nc.b16 {}, [{}];", out(reg16) value, in(reg64) address,
            options(pure, readonly, nostack));
    }
    value
}

/// Loads 32 bits of memory that nobody writes during the launch (`ld.global.nc.b32`).
///
/// # Safety
/// `address` is 4-byte aligned and inside an allocation that is only read.
#[inline(always)]
pub unsafe fn load_u32(address: u64) -> u32 {
    let value: u32;
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("ld.global.nc.b32 {}, [{}];", out(reg32) value, in(reg64) address,
            options(pure, readonly, nostack));
    }
    value
}

/// Loads 64 bits of memory that nobody writes during the launch (`ld.global.nc.b64`).
///
/// # Safety
/// `address` is 8-byte aligned and inside an allocation that is only read.
#[inline(always)]
pub unsafe fn load_u64(address: u64) -> u64 {
    let value: u64;
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("ld.global.nc.b64 {}, [{}];", out(reg64) value, in(reg64) address,
            options(pure, readonly, nostack));
    }
    value
}

/// Loads 16 bytes, as four words, of memory that nobody writes during the launch (`ld.global.nc.v4.b32`).
///
/// # Safety
/// `address` is 16-byte aligned and its 16 bytes are inside an allocation that is only read.
#[inline(always)]
pub unsafe fn load4_bits(address: u64) -> [u32; 4] {
    let [a, b, c, d]: [u32; 4];
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("ld.global.nc.v4.b32 {{{}, {}, {}, {}}}, [{}];", out(reg32) a, out(reg32) b,
            out(reg32) c, out(reg32) d, in(reg64) address, options(pure, readonly, nostack));
    }
    [a, b, c, d]
}

/// Loads one f32, which this or an earlier launch wrote (`ld.global.f32`).
///
/// # Safety
/// `address` is 4-byte aligned, inside an allocation, and no other thread writes it without a barrier in between.
#[inline(always)]
pub unsafe fn load(address: u64) -> f32 {
    let value: f32;
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("ld.global.f32 {}, [{}];", out(reg32) value, in(reg64) address,
            options(readonly, nostack));
    }
    value
}

/// Brings the line at an address to L2, for loads that come later (`prefetch.global.L2`).
///
/// # Safety
/// `address` is inside an allocation.
#[inline(always)]
pub unsafe fn prefetch_l2(address: u64) {
    // SAFETY: the caller vouches for the address.
    unsafe { asm!("prefetch.global.L2 [{}];", in(reg64) address, options(nostack)) }
}

/// As [`load`], a word.
///
/// # Safety
/// As [`load`].
#[inline(always)]
pub unsafe fn load_bits(address: u64) -> u32 {
    // SAFETY: the caller's contract is this function's; an f32 may have any bits.
    unsafe { load(address) }.to_bits()
}
