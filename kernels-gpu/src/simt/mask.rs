//! Hiding scores that a row does not see.

use super::{LANES, Place, Scores};
use crate::abi::ForwardParams;
use crate::tile::block_range::visible_keys;

/// Sets the scores of hidden keys to −∞.
#[inline(always)]
pub fn hide<const THREADS: u32, const ROWS: usize>(
    scores: &mut Scores<ROWS>,
    place: Place<THREADS>,
    m_begin: u32,
    key_begin: u32,
    params: &ForwardParams,
) {
    let first_key = (key_begin + place.lane) as i32;
    for (i, row) in scores.iter_mut().enumerate() {
        let query = (m_begin + place.row(i)) as i32;
        let (first, last) = visible_keys(query, params.band, params.seq_kv);
        let (first, last) = (first - first_key, last - first_key);
        for (j, score) in row.iter_mut().enumerate() {
            let key = (j * LANES) as i32;
            if key < first || key > last {
                *score = f32::NEG_INFINITY;
            }
        }
    }
}
