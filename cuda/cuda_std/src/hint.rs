//! Steering the optimiser.

use core::arch::asm;

/// Hides a value from the optimiser: what is computed from it is computed where it stands, not hoisted out of a
/// loop and kept in registers.
#[inline(always)]
pub fn opaque(value: u32) -> u32 {
    let result: u32;
    // SAFETY: moves a register. Not `pure`, so that it is not hoisted itself.
    unsafe { asm!("mov.b32 {}, {};", out(reg32) result, in(reg32) value, options(nomem, nostack)) };
    result
}

/// Blocks in the grid, read where it stands (`%nctaid.x`).
#[inline(always)]
pub fn opaque_grid_dim_x() -> u32 {
    let blocks: u32;
    // SAFETY: reads a special register. Not `pure`, so that it is not hoisted.
    unsafe { asm!("mov.u32 {}, %nctaid.x;", out(reg32) blocks, options(nomem, nostack)) };
    blocks
}
