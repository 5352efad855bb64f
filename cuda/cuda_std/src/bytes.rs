//! Bytes of words.

unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.prmt"]
    fn nvvm_prmt(low: u32, high: u32, selector: u32) -> u32;
}

/// Four of the bytes of `low` (0 to 3) and `high` (4 to 7): those that the nibbles of `selector` name, the lowest nibble the
/// lowest byte (`prmt.b32`; CUDA's `__byte_perm`). No nibble is above 7.
#[inline(always)]
pub fn permute(low: u32, high: u32, selector: u32) -> u32 {
    // SAFETY: pure arithmetic.
    unsafe { nvvm_prmt(low, high, selector) }
}

/// All ones if the sign of byte `byte` of `word` is set, else 0 (`prmt.b32`).
#[inline(always)]
pub fn spread_sign(word: u32, byte: u32) -> u32 {
    // SAFETY: pure arithmetic.
    unsafe { nvvm_prmt(word, word, 0x8888 + 0x1111 * byte) }
}

/// As [`permute`], of the signs of bytes: each of four bytes is all ones or zeros. `SELECTOR`'s nibbles are those of `permute`, and 8
/// more.
#[inline(always)]
pub fn spread_signs<const SELECTOR: u32>(low: u32, high: u32) -> u32 {
    const { assert!(SELECTOR & 0x8888 == 0x8888 && SELECTOR <= 0xffff) };
    // SAFETY: pure arithmetic.
    unsafe { nvvm_prmt(low, high, SELECTOR) }
}
