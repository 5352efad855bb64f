//! Shapes and strides of one operand.

use crate::{DType, Error};

/// Sizes of the four logical axes of an operand, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Sequences in the batch.
    pub batch: usize,
    /// heads_q for q and o, heads_kv for k and v.
    pub heads: usize,
    /// seq_q for q and o, seq_kv for k and v.
    pub seq: usize,
    /// head_dim for q and k, head_dim_v for v and o.
    pub dim: usize,
}

impl Shape {
    /// Number of elements, or `None` if it does not fit an i64.
    pub fn element_count(self) -> Option<usize> {
        [self.batch, self.heads, self.seq, self.dim]
            .into_iter()
            .try_fold(1i64, |count, size| {
                count.checked_mul(i64::try_from(size).ok()?)
            })
            .map(|count| count as usize)
    }
}

/// Distance between neighbours along each logical axis, in elements; zero and negative included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Strides {
    /// From one batch entry to the next.
    pub batch: i64,
    /// From one head to the next.
    pub head: i64,
    /// From one sequence position to the next.
    pub seq: i64,
    /// From one component of a head vector to the next.
    pub dim: i64,
}

/// Axis order of a contiguous tensor in memory, slowest axis first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `[batch, seq, heads, dim]`.
    #[default]
    Bshd,
    /// `[batch, heads, seq, dim]`.
    Bhsd,
}

impl Layout {
    /// The shape in memory order, slowest axis first.
    pub const fn dims(self, shape: Shape) -> [usize; 4] {
        match self {
            Self::Bshd => [shape.batch, shape.seq, shape.heads, shape.dim],
            Self::Bhsd => [shape.batch, shape.heads, shape.seq, shape.dim],
        }
    }

    /// The inverse of [`dims`](Self::dims).
    pub const fn shape(self, dims: [usize; 4]) -> Shape {
        let [batch, first, second, dim] = dims;
        let (heads, seq) = match self {
            Self::Bshd => (second, first),
            Self::Bhsd => (first, second),
        };
        Shape {
            batch,
            heads,
            seq,
            dim,
        }
    }
}

/// Dtype, shape and strides of one operand: everything but where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorSpec {
    /// Element type.
    pub dtype: DType,
    /// Sizes of the logical axes.
    pub shape: Shape,
    /// Strides of the logical axes.
    pub strides: Strides,
}

/// The elements a [`TensorSpec`] reaches, as offsets from its element `[0, 0, 0, 0]`.
///
/// `lowest <= 0 <= highest`, except that a tensor without elements reaches none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reach {
    pub lowest: i64,
    pub highest: i64,
}

impl TensorSpec {
    /// A dense tensor in the axis order of `layout`.
    ///
    /// # Errors
    /// [`Error::Argument`] if its size in bytes does not fit an i64.
    pub fn contiguous(dtype: DType, shape: Shape, layout: Layout) -> Result<Self, Error> {
        let fits = shape
            .element_count()
            .and_then(|count| count.checked_mul(dtype.bytes()))
            .is_some_and(|bytes| i64::try_from(bytes).is_ok());
        if !fits {
            return Err(too_large("shape", shape));
        }
        // An axis of size 0 makes the whole tensor empty, so its strides are never used: counting
        // it as 1 keeps the others from overflowing or collapsing to 0.
        let step = |size: usize| size.max(1) as i64;
        let (outer, inner) = match layout {
            Layout::Bshd => (shape.seq, shape.heads),
            Layout::Bhsd => (shape.heads, shape.seq),
        };
        let inner_stride = step(shape.dim);
        let strides = step(inner)
            .checked_mul(inner_stride)
            .and_then(|outer_stride| Some((outer_stride, outer_stride.checked_mul(step(outer))?)));
        let Some((outer_stride, batch)) = strides else {
            return Err(too_large("shape", shape));
        };
        let (head, seq) = match layout {
            Layout::Bshd => (inner_stride, outer_stride),
            Layout::Bhsd => (outer_stride, inner_stride),
        };
        let strides = Strides {
            batch,
            head,
            seq,
            dim: 1,
        };
        Ok(Self {
            dtype,
            shape,
            strides,
        })
    }

    /// `(size, stride)` of each logical axis.
    pub(crate) fn axes(&self) -> [(usize, i64); 4] {
        let (shape, strides) = (self.shape, self.strides);
        [
            (shape.batch, strides.batch),
            (shape.heads, strides.head),
            (shape.seq, strides.seq),
            (shape.dim, strides.dim),
        ]
    }

    /// Whether the tensor has no elements.
    pub fn is_empty(&self) -> bool {
        self.axes().iter().any(|&(size, _)| size == 0)
    }

    /// The elements reached, checked so that every byte offset fits an i64.
    ///
    /// # Errors
    /// [`Error::Argument`] on `argument` if one does not.
    pub(crate) fn reach(&self, argument: &'static str) -> Result<Reach, Error> {
        if self.is_empty() {
            return Ok(Reach {
                lowest: 0,
                highest: -1,
            });
        }
        let checked = || {
            let mut reach = Reach {
                lowest: 0,
                highest: 0,
            };
            for (size, stride) in self.axes() {
                let far = i64::try_from(size - 1).ok()?.checked_mul(stride)?;
                let end = if far < 0 {
                    &mut reach.lowest
                } else {
                    &mut reach.highest
                };
                *end = end.checked_add(far)?;
            }
            let count = reach.highest.checked_sub(reach.lowest)?.checked_add(1)?;
            count.checked_mul(self.dtype.bytes() as i64)?;
            Some(reach)
        };
        checked().ok_or_else(|| too_large(argument, self.shape))
    }

    /// Whether two different logical elements may share a place in memory.
    ///
    /// Exact for every tensor made by slicing, padding, permuting or reversing a dense one; other
    /// strides may be reported as overlapping although they interleave without touching.
    pub(crate) fn may_overlap(&self) -> bool {
        if self.is_empty() {
            return false;
        }
        let mut axes = self.axes();
        axes.sort_by_key(|&(_, stride)| stride.unsigned_abs());
        let mut span: u128 = 0;
        for (size, stride) in axes.into_iter().filter(|&(size, _)| size > 1) {
            let stride = u128::from(stride.unsigned_abs());
            if stride <= span {
                return true;
            }
            span += stride * (size as u128 - 1);
        }
        false
    }

    /// Offset of one element from element `[0, 0, 0, 0]`, in elements.
    pub(crate) fn offset(&self, batch: usize, head: usize, seq: usize, dim: usize) -> i64 {
        batch as i64 * self.strides.batch
            + head as i64 * self.strides.head
            + seq as i64 * self.strides.seq
            + dim as i64 * self.strides.dim
    }
}

fn too_large(argument: &'static str, shape: Shape) -> Error {
    let Shape {
        batch,
        heads,
        seq,
        dim,
    } = shape;
    Error::argument(
        argument,
        format!("batch {batch}, heads {heads}, seq {seq}, dim {dim} is too large for its strides"),
        "every byte offset must fit a signed 64-bit integer",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        batch: 2,
        heads: 3,
        seq: 5,
        dim: 7,
    };

    #[test]
    fn contiguous_layouts_reach_exactly_their_elements() {
        for layout in [Layout::Bshd, Layout::Bhsd] {
            let spec = TensorSpec::contiguous(DType::F16, SHAPE, layout).unwrap();
            let reach = spec.reach("q").unwrap();
            assert_eq!((reach.lowest, reach.highest), (0, 2 * 3 * 5 * 7 - 1));
            assert!(!spec.may_overlap());
            assert_eq!(layout.shape(layout.dims(SHAPE)), SHAPE);
        }
    }

    #[test]
    fn overflow_and_overlap_are_seen() {
        let mut spec = TensorSpec::contiguous(DType::F32, SHAPE, Layout::Bshd).unwrap();
        spec.strides.seq = -100;
        assert_eq!(spec.reach("q").unwrap().lowest, -400);
        spec.strides.head = 0;
        assert!(spec.may_overlap());
        spec.strides.batch = i64::MAX / 3;
        assert!(spec.reach("q").is_err());
        let huge = Shape {
            batch: usize::MAX,
            ..SHAPE
        };
        assert!(TensorSpec::contiguous(DType::F32, huge, Layout::Bshd).is_err());
    }
}
