//! Four lanes that hold a row of a fragment together: each has a pair of every eight columns.

// Both operations need exactly the condition under their `# Safety`.
#![allow(unsafe_op_in_unsafe_fn)]

use cuda_std::warp::shuffle_xor;

/// Lanes that share a row of a fragment.
pub const QUAD: u32 = 4;

/// Row `lane` of the quad's 4 × 4 words, of which each lane gives a column.
///
/// # Safety
/// All lanes of the warp call it, with their lane in the quad.
#[inline(always)]
pub unsafe fn transposed([a, b, c, d]: [u32; 4], lane: u32) -> [u32; 4] {
    // Two by two, and then the quarters.
    let (a, b) = exchanged(a, b, lane, 1);
    let (c, d) = exchanged(c, d, lane, 1);
    let (a, c) = exchanged(a, c, lane, 2);
    let (b, d) = exchanged(b, d, lane, 2);
    [a, b, c, d]
}

/// Of two words, exchanges the second with the first of the lane `distance` further on, a bit of which tells the two apart.
///
/// # Safety
/// As [`transposed`].
#[inline(always)]
unsafe fn exchanged(first: u32, second: u32, lane: u32, distance: u32) -> (u32, u32) {
    let is_further = lane & distance != 0;
    let given = if is_further { first } else { second };
    let taken = shuffle_xor(f32::from_bits(given), distance).to_bits();
    if is_further {
        (taken, second)
    } else {
        (first, taken)
    }
}
