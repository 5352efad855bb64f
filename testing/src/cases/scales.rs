//! Scales of an e4m3 cache.

use ferroflash::{DType, Error, HostTensor, Layout, Shape};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

use super::decode_place::Place;

/// What one scale is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScaleKind {
    /// All of k, or of v.
    Tensor,
    /// A head.
    Head,
    /// A page, or a sequence of a cache without pages.
    Page,
    /// A key of a head.
    Key,
}

impl ScaleKind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Tensor, Self::Head, Self::Page, Self::Key];

    /// Scales for `cache`, of few bits so that they times a code are exact in f32.
    ///
    /// # Errors
    /// [`Error::Argument`] if there would be too many.
    pub fn make(self, cache: Shape, seed: u64) -> Result<HostTensor, Error> {
        let (pages, heads, keys) = match self {
            Self::Tensor => (1, 1, 1),
            Self::Head => (1, cache.heads, 1),
            Self::Page => (cache.batch, 1, 1),
            Self::Key => (cache.batch, cache.heads, cache.seq),
        };
        let shape = Shape {
            batch: pages,
            heads,
            seq: keys,
            dim: 1,
        };
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut scale = || {
            let eighths: u32 = rng.random_range(8..16);
            let exponent: i32 = rng.random_range(-8..5);
            eighths as f32 / 8.0 * 2f32.powi(exponent)
        };
        let values: Vec<f32> = (0..pages * heads * keys).map(|_| scale()).collect();
        HostTensor::from_f32(&values, shape, Layout::Bhsd)
    }
}

/// Makes those NaN that are of no key of sequences with `kv_lens` keys: nobody may read them.
pub(super) fn spoil_unused(scales: &mut HostTensor, place: &Place, kv_lens: &[usize]) {
    let shape = scales.spec().shape;
    let keys = kv_lens.iter().enumerate();
    let keys = keys.flat_map(|(sequence, &len)| (0..len).map(move |key| (sequence, key)));
    let used: HashSet<_> = keys
        .map(|(sequence, key)| {
            let (page, row) = place.of(sequence, key);
            (index(shape.batch, page), index(shape.seq, row))
        })
        .collect();
    for (page, row) in (0..shape.batch).flat_map(|page| (0..shape.seq).map(move |row| (page, row)))
    {
        if !used.contains(&(page, row)) {
            for head in 0..shape.heads {
                scales.set(page, head, row, 0, f32::NAN);
            }
        }
    }
}

/// Where along an axis of `extent` the scale of `at` is: those of an axis of 1 hold for all.
fn index(extent: usize, at: usize) -> usize {
    if extent == 1 { 0 } else { at }
}

/// The scale of a key among `scales`, of which there is one for each or for all of an axis; 1 without.
pub(super) fn scale_of(scales: Option<&HostTensor>, [page, head, place]: [usize; 3]) -> f32 {
    let Some(scales) = scales else {
        return 1.0;
    };
    let shape = scales.spec().shape;
    let (page, head) = (index(shape.batch, page), index(shape.heads, head));
    debug_assert_eq!(scales.spec().dtype, DType::F32);
    scales.get(page, head, index(shape.seq, place), 0)
}
