//! Shared memory by 32-bit address.
//!
//! A kernel's dynamic shared memory starts at [`dynamic_base`] and is 1024-byte aligned, which the widest
//! tensor-core swizzle needs. PTX ISA, "Data Movement and Conversion Instructions: ld, st".

use core::arch::{asm, global_asm};

global_asm!(".extern .shared .align 1024 .b8 cuda_std_dynamic_shared[];");

/// First address of the block's dynamic shared memory.
#[inline(always)]
pub fn dynamic_base() -> u32 {
    let address: u32;
    // SAFETY: reads the address of a symbol that this module declares.
    unsafe {
        asm!("mov.u32 {}, cuda_std_dynamic_shared;", out(reg32) address,
            options(pure, nomem, nostack));
    }
    address
}

/// Loads one f32 (`ld.shared.f32`).
///
/// # Safety
/// `address` is 4-byte aligned and inside the block's shared memory.
#[inline(always)]
pub unsafe fn load(address: u32) -> f32 {
    let value: f32;
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("ld.shared.f32 {}, [{}];", out(reg32) value, in(reg32) address,
            options(pure, readonly, nostack));
    }
    value
}

/// Loads two consecutive f32 (`ld.shared.v2.f32`).
///
/// # Safety
/// `address` is 8-byte aligned and the 8 bytes are inside the block's shared memory.
#[inline(always)]
pub unsafe fn load2(address: u32) -> [f32; 2] {
    let [a, b]: [f32; 2];
    // SAFETY: the caller vouches for the address. Not `pure`, so that it stays behind the barrier before it.
    unsafe {
        asm!("ld.shared.v2.f32 {{{}, {}}}, [{}];", out(reg32) a, out(reg32) b, in(reg32) address,
            options(readonly, nostack));
    }
    [a, b]
}

/// Loads four consecutive f32 (`ld.shared.v4.f32`).
///
/// # Safety
/// `address` is 16-byte aligned and the 16 bytes are inside the block's shared memory.
#[inline(always)]
pub unsafe fn load4(address: u32) -> [f32; 4] {
    let [a, b, c, d]: [f32; 4];
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("ld.shared.v4.f32 {{{}, {}, {}, {}}}, [{}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) address,
            options(pure, readonly, nostack));
    }
    [a, b, c, d]
}

/// As [`load4`], but stays where it is written among barriers and other such loads: for what is loaded ahead of its use, which the
/// compiler would otherwise move there.
///
/// # Safety
/// As [`load4`].
#[inline(always)]
pub unsafe fn load4_ahead(address: u32) -> [f32; 4] {
    let [a, b, c, d]: [f32; 4];
    // SAFETY: the caller vouches for the address. Not `pure`, so that it is not moved.
    unsafe {
        asm!("ld.shared.v4.f32 {{{}, {}, {}, {}}}, [{}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) address,
            options(readonly, nostack));
    }
    [a, b, c, d]
}

/// Stores one f32 (`st.shared.f32`).
///
/// # Safety
/// `address` is 4-byte aligned and inside the block's shared memory, and no other thread accesses it
/// without a barrier in between.
#[inline(always)]
pub unsafe fn store(address: u32, value: f32) {
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("st.shared.f32 [{}], {};", in(reg32) address, in(reg32) value, options(nostack));
    }
}

/// Loads one word (`ld.shared.b32`).
///
/// # Safety
/// As [`load`].
#[inline(always)]
pub unsafe fn load_bits(address: u32) -> u32 {
    // SAFETY: the caller's contract is this function's; an f32 may have any bits.
    unsafe { load(address) }.to_bits()
}

/// Sets the bits of `value` in a word that other threads may be setting bits of too (`red.shared.or.b32`).
///
/// # Safety
/// `address` is 4-byte aligned and inside the block's shared memory; other accesses are a barrier apart.
#[inline(always)]
pub unsafe fn atomic_or(address: u32, value: u32) {
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("red.shared.or.b32 [{}], {};", in(reg32) address, in(reg32) value, options(nostack));
    }
}

/// Adds `value` to a word that other threads may be adding to too; returns its old value (`atom.shared.add.u32`).
///
/// # Safety
/// `address` is 4-byte aligned and inside the block's shared memory; other accesses are a barrier apart.
#[inline(always)]
pub unsafe fn fetch_add(address: u32, value: u32) -> u32 {
    let old: u32;
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("atom.relaxed.cta.shared.add.u32 {}, [{}], {};", out(reg32) old, in(reg32) address,
            in(reg32) value, options(nostack));
    }
    old
}

/// Loads 16 bytes as four words (`ld.shared.v4.b32`).
///
/// # Safety
/// As [`load4`].
#[inline(always)]
pub unsafe fn load4_bits(address: u32) -> [u32; 4] {
    // SAFETY: the caller's contract is this function's; an f32 may have any bits.
    unsafe { load4(address) }.map(f32::to_bits)
}

/// Stores one word (`st.shared.b32`).
///
/// # Safety
/// As [`store`].
#[inline(always)]
pub unsafe fn store_bits(address: u32, value: u32) {
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("st.shared.b32 [{}], {};", in(reg32) address, in(reg32) value, options(nostack));
    }
}

/// Stores 16 bytes given as four words (`st.shared.v4.b32`).
///
/// # Safety
/// `address` is 16-byte aligned, its 16 bytes are inside the block's shared memory, and no other thread
/// accesses them without a barrier in between.
#[inline(always)]
pub unsafe fn store4_bits(address: u32, [a, b, c, d]: [u32; 4]) {
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("st.shared.v4.b32 [{}], {{{}, {}, {}, {}}};", in(reg32) address,
            in(reg32) a, in(reg32) b, in(reg32) c, in(reg32) d, options(nostack));
    }
}
