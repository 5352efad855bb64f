//! ALiBi (Press et al. 2022): a score gets `−slope · |i + seq_kv − seq_q − j|` added, in nats.

use crate::math::fma;

/// The slope of a query head of a batch entry; 0 without slopes.
///
/// # Safety
/// The slopes that `params` names are live, and there is one for the head.
#[cfg(target_arch = "nvptx64")]
#[inline(always)]
pub unsafe fn slope(params: &crate::abi::ScoreParams, batch: u32, head: u32) -> f32 {
    match params.alibi_slopes {
        None => 0.0,
        Some(slopes) => {
            let index = batch as u64 * params.alibi_batch_stride + head as u64;
            let address = slopes.get() + index * crate::units::F32_BYTES as u64;
            // SAFETY: the caller vouches for the slopes and for the head's.
            f32::from_bits(unsafe { cuda_std::global::load_u32(address) })
        }
    }
}

/// Adds the bias to the scores of a fragment: element `j` of row `i` is `distance(i) - column(j)` keys away from the
/// query, counted on the diagonal that ends in the bottom-right corner.
#[inline(always)]
pub fn add_bias<const COLS: usize, const ROWS: usize>(
    scores: &mut [[f32; COLS]; ROWS],
    slope: f32,
    distance: impl Fn(usize) -> i32,
    column: impl Fn(usize) -> i32,
) {
    for (i, row) in scores.iter_mut().enumerate() {
        let distance = distance(i);
        for (j, score) in row.iter_mut().enumerate() {
            let keys = (distance - column(j)).unsigned_abs() as f32;
            *score = fma(-slope, keys, *score);
        }
    }
}
