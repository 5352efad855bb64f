//! Scales of an e4m3 cache.

use ferroflash::{DType, Error, HostTensor, Layout, Shape};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

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

/// The scale of a key among `scales`, of which there is one for each or for all of an axis; 1 without.
pub(super) fn scale_of(scales: Option<&HostTensor>, [page, head, place]: [usize; 3]) -> f32 {
    let Some(scales) = scales else {
        return 1.0;
    };
    let shape = scales.spec().shape;
    let index = |axis: usize, at: usize| if axis == 1 { 0 } else { at };
    let (page, head) = (index(shape.batch, page), index(shape.heads, head));
    debug_assert_eq!(scales.spec().dtype, DType::F32);
    scales.get(page, head, index(shape.seq, place), 0)
}
