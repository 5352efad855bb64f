//! The parts of attention that do not depend on how a kernel multiplies: which rows a batch entry has, which keys a
//! tile of queries sees, which tile a block works on, and the running softmax.

pub mod appended;
pub mod bias_owners;
pub mod block_range;
#[cfg(target_arch = "nvptx64")]
pub mod block_states;
#[cfg(target_arch = "nvptx64")]
pub mod block_sum;
pub mod cached_keys;
pub mod dq_sums;
pub mod ds_tiles;
#[cfg(target_arch = "nvptx64")]
pub mod element;
pub mod grid;
#[cfg(target_arch = "nvptx64")]
pub mod keep_mask;
pub mod kv_tree;
pub mod l2;
#[cfg(target_arch = "nvptx64")]
pub mod mask;
#[cfg(target_arch = "nvptx64")]
pub mod non_finite;
#[cfg(target_arch = "nvptx64")]
pub mod quad;
pub mod query_range;
pub mod rotary;
pub mod row_coord;
pub mod row_state;
pub mod rows;
#[cfg(target_arch = "nvptx64")]
pub mod sequence;
#[cfg(target_arch = "nvptx64")]
pub mod softmax;
#[cfg(target_arch = "nvptx64")]
pub mod source;
#[cfg(target_arch = "nvptx64")]
pub mod warp_per_row;

/// Hides a value from the optimiser, as `std::hint::black_box` does: a loop bounded by it stays rolled (the build's high unrolling threshold
/// is meant for loops over register arrays), and what is computed from it is not kept in registers.
#[cfg(target_arch = "nvptx64")]
#[inline(always)]
pub fn black_box(value: u32) -> u32 {
    let result: u32;
    // SAFETY: moves a register. Not `pure`, so that it is not hoisted out of a loop.
    unsafe {
        core::arch::asm!("mov.b32 {}, {};", out(reg32) result, in(reg32) value,
            options(nomem, nostack));
    }
    result
}

/// [`black_box`] for 64 bits.
#[cfg(target_arch = "nvptx64")]
#[inline(always)]
pub fn black_box64(value: u64) -> u64 {
    let result: u64;
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("mov.b64 {}, {};", out(reg64) result, in(reg64) value,
            options(nomem, nostack));
    }
    result
}
