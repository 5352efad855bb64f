//! Marking the elements of a score tile that a row does not see.

use crate::abi::Band;
use crate::tile::block_range::visible_keys;

/// Marks in P a key that the row does not see. Its sign tells it from a probability that underflowed: a masked-out key
/// contributes nothing, an underflowed one NaN where V is not finite.
pub const MASKED_OUT: f32 = -0.0;

/// Sets the scores of masked-out keys to −∞; the arguments are those of [`mark_masked_out`].
#[inline(always)]
pub fn apply_mask<const COLS: usize, const ROWS: usize>(
    scores: &mut [[f32; COLS]; ROWS],
    query: impl Fn(usize) -> u32,
    first_key: u32,
    column: impl Fn(usize) -> i32,
    band: Band,
    seq_kv: u32,
) {
    mark_masked_out(
        scores,
        query,
        first_key,
        column,
        band,
        seq_kv,
        f32::NEG_INFINITY,
    );
}

/// Sets the elements of masked-out keys to `mark`.
///
/// Row `i` of `tile` belongs to query `query(i)`; its element `j` to key `first_key + column(j)`, where `column` gives
/// compile-time constants, so that only two comparisons an element remain.
#[inline(always)]
pub fn mark_masked_out<const COLS: usize, const ROWS: usize>(
    tile: &mut [[f32; COLS]; ROWS],
    query: impl Fn(usize) -> u32,
    first_key: u32,
    column: impl Fn(usize) -> i32,
    band: Band,
    seq_kv: u32,
    mark: f32,
) {
    for i in 0..ROWS {
        let (first, last) = visible_keys(query(i) as i32, band, seq_kv);
        let (first, last) = (first - first_key as i32, last - first_key as i32);
        for j in 0..COLS {
            let key = column(j);
            if key < first || key > last {
                tile[i][j] = mark;
            }
        }
    }
}
