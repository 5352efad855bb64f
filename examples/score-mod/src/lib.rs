//! Attention with score modifications of one's own: a function for each of the types in `kernels`, which makes the option that a
//! problem takes.
//!
//! What they compute is said at the types: [`DistanceBias`], [`DocumentCausal`], [`BlockHoles`], [`SlidingWindow`].

use ferroflash::{Error, PtxModules, ScoreModification, include_ptx};
pub use score_mod_kernels::{BlockHoles, DistanceBias, DocumentCausal, SlidingWindow};

/// The PTX of the kernels, which the build script compiled.
pub fn ptx() -> PtxModules {
    include_ptx!("SCORE_MOD_PTX")
}

/// `gain · cap · tanh((score + table[head][distance]) / cap)`, with the f32 `table` of `heads` rows.
///
/// # Errors
/// [`Error::Argument`] if the PTX is that of another type.
pub fn distance_bias(
    table: &[f32],
    heads: u32,
    cap: f32,
    gain: f32,
) -> Result<ScoreModification, Error> {
    let distances = table.len() as u32 / heads;
    let value = DistanceBias::new(heads, distances, cap, gain);
    // SAFETY: the PTX was compiled from the type; it reads its buffer alone.
    Ok(unsafe { ScoreModification::new(value, ptx()) }?.buffer(table))
}

/// Documents behind each other, each causal: `ids`, `[batch, seq]`, are those of rows, and rise.
///
/// # Errors
/// As [`distance_bias`].
pub fn document_causal(ids: &[u32], batch: u32) -> Result<ScoreModification, Error> {
    let value = DocumentCausal::new(batch, ids.len() as u32 / batch);
    // SAFETY: as above.
    Ok(unsafe { ScoreModification::new(value, ptx()) }?.buffer(ids))
}

/// Blocks of `2^block_log2` rows that see each other, but for a hole of `hole` keys.
///
/// # Errors
/// As [`distance_bias`].
pub fn block_holes(block_log2: u32, hole: u32) -> Result<ScoreModification, Error> {
    let value = BlockHoles { block_log2, hole };
    // SAFETY: as above; it reads nothing.
    unsafe { ScoreModification::new(value, ptx()) }
}

/// The key at a query's own position and the `left` keys before it.
///
/// # Errors
/// As [`distance_bias`].
pub fn sliding_window(left: u32) -> Result<ScoreModification, Error> {
    let value = SlidingWindow { left };
    // SAFETY: as above.
    unsafe { ScoreModification::new(value, ptx()) }
}
