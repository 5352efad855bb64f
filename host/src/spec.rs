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

    /// The strides of a tensor whose axes, in the order of [`dims`](Self::dims), have these.
    pub const fn strides(self, strides: [i64; 4]) -> Strides {
        let [batch, first, second, dim] = strides;
        let (head, seq) = match self {
            Self::Bshd => (second, first),
            Self::Bhsd => (first, second),
        };
        Strides {
            batch,
            head,
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

/// Range of elements that a [`TensorSpec`] reaches, as offsets from its element `[0, 0, 0, 0]`.
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
        let [_, outer, inner, _] = layout.dims(shape);
        let inner_stride = step(shape.dim);
        let strides = step(inner)
            .checked_mul(inner_stride)
            .and_then(|outer_stride| Some((outer_stride, outer_stride.checked_mul(step(outer))?)));
        let Some((outer_stride, batch)) = strides else {
            return Err(too_large("shape", shape));
        };
        Ok(Self {
            dtype,
            shape,
            strides: layout.strides([batch, outer_stride, inner_stride, 1]),
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
    pub fn may_overlap(&self) -> bool {
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

    /// Whether a view of this shape whose element `[0, 0, 0, 0]` is element `origin` of a buffer may share an element
    /// with `other` at `other_origin`.
    ///
    /// Exact for slices along any axes of one tensor that is dense, padded or permuted. For views of different dtypes,
    /// and strides that interleave in too many ways, only the ranges from first to last element are compared.
    pub(crate) fn may_share_elements(
        &self,
        origin: usize,
        other: &Self,
        other_origin: usize,
    ) -> bool {
        if self.is_empty() || other.is_empty() {
            return false;
        }
        let (Ok(here), Ok(there)) = (self.reach("tensor"), other.reach("tensor")) else {
            return true;
        };
        let span = |reach: &Reach, origin: usize, dtype: DType| {
            let bytes = dtype.bytes() as i128;
            let first = (origin as i128 + i128::from(reach.lowest)) * bytes;
            first..(origin as i128 + i128::from(reach.highest) + 1) * bytes
        };
        let (a, b) = (
            span(&here, origin, self.dtype),
            span(&there, other_origin, other.dtype),
        );
        if a.end <= b.start || b.end <= a.start {
            return false;
        }
        if self.dtype != other.dtype {
            return true;
        }
        let distance = other_origin as i128 - origin as i128;
        meets(distance, &steps_between(self, other), &mut {
            MEETING_BUDGET
        })
    }

    /// Offset of one element from element `[0, 0, 0, 0]`, in elements.
    ///
    /// Exact for indices in range, once [`reach`](Self::reach) has been checked. A tensor without elements may have any
    /// strides: its offsets wrap, and are never used.
    pub(crate) fn offset(&self, batch: usize, head: usize, seq: usize, dim: usize) -> i64 {
        let along = |index: usize, stride: i64| (index as i64).wrapping_mul(stride);
        along(batch, self.strides.batch)
            .wrapping_add(along(head, self.strides.head))
            .wrapping_add(along(seq, self.strides.seq))
            .wrapping_add(along(dim, self.strides.dim))
    }
}

/// Most recursion steps spent to decide whether two views share an element.
const MEETING_BUDGET: u32 = 1000;

/// Multiples of `stride`, from `least` to `most` times.
struct Steps {
    stride: i128,
    least: i128,
    most: i128,
}

/// Offsets from an element of `b` to one of `a`, both counted from their origins, as sums of multiples of strides: axes
/// of equal strides are merged, longest strides first. Two views of shape `[2, 3]` and strides `[4, 1]` give −1 to 1
/// times 4 and −2 to 2 times 1.
fn steps_between(a: &TensorSpec, b: &TensorSpec) -> Vec<Steps> {
    let mut all: Vec<Steps> = Vec::new();
    for (axes, sign) in [(a.axes(), 1), (b.axes(), -1)] {
        for (size, stride) in axes.into_iter().filter(|&(size, _)| size > 1) {
            let last = size as i128 - 1;
            let stride = i128::from(stride) * sign;
            let (least, most) = if stride < 0 { (-last, 0) } else { (0, last) };
            let stride = stride.abs();
            match all.iter_mut().find(|steps| steps.stride == stride) {
                Some(steps) => {
                    steps.least += least;
                    steps.most += most;
                }
                None => all.push(Steps {
                    stride,
                    least,
                    most,
                }),
            }
        }
    }
    all.sort_by_key(|steps| std::cmp::Reverse(steps.stride));
    all
}

/// Whether `distance` is a sum of one multiple from each of `all`; also `true` if deciding takes more than `budget`
/// steps.
fn meets(distance: i128, all: &[Steps], budget: &mut u32) -> bool {
    let Some((first, rest)) = all.split_first() else {
        return distance == 0;
    };
    if first.stride == 0 {
        return meets(distance, rest, budget);
    }
    let end = |of: fn(&Steps) -> i128| rest.iter().map(|s| of(s) * s.stride).sum::<i128>();
    let (lowest, highest) = (end(|s| s.least), end(|s| s.most));
    // lowest <= distance - steps * stride <= highest
    let least = (distance - highest + first.stride - 1).div_euclid(first.stride);
    let most = (distance - lowest).div_euclid(first.stride);
    for steps in least.max(first.least)..=most.min(first.most) {
        if *budget == 0 {
            return true;
        }
        *budget -= 1;
        if meets(distance - steps * first.stride, rest, budget) {
            return true;
        }
    }
    false
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

    /// The elements of a view, each by its place in the buffer.
    fn places(spec: &TensorSpec, origin: usize) -> Vec<i64> {
        let Shape {
            batch,
            heads,
            seq,
            dim,
        } = spec.shape;
        let mut places = Vec::new();
        for b in 0..batch {
            for h in 0..heads {
                for s in 0..seq {
                    places.extend((0..dim).map(|d| origin as i64 + spec.offset(b, h, s, d)));
                }
            }
        }
        places
    }

    #[test]
    fn slices_of_one_tensor_are_told_apart_exactly() {
        let whole = Shape {
            batch: 2,
            heads: 4,
            seq: 3,
            dim: 4,
        };
        let whole = TensorSpec::contiguous(DType::F32, whole, Layout::Bshd).unwrap();
        // Halves and overlapping parts along every axis, in both directions.
        let mut slices = vec![(whole, 0)];
        for axis in 0..4 {
            for (first, count, reversed) in
                [(0, 1, false), (1, 1, false), (0, 2, true), (1, 2, false)]
            {
                let mut slice = whole;
                let (size, stride) = match axis {
                    0 => (&mut slice.shape.batch, &mut slice.strides.batch),
                    1 => (&mut slice.shape.heads, &mut slice.strides.head),
                    2 => (&mut slice.shape.seq, &mut slice.strides.seq),
                    _ => (&mut slice.shape.dim, &mut slice.strides.dim),
                };
                if first >= *size {
                    continue;
                }
                let count = count.min(*size - first);
                *size = count;
                let mut origin = first * *stride as usize;
                if reversed {
                    origin += (count - 1) * *stride as usize;
                    *stride = -*stride;
                }
                slices.push((slice, origin));
            }
        }
        let mut apart = 0;
        for (a, a_origin) in &slices {
            for (b, b_origin) in &slices {
                let theirs = places(b, *b_origin);
                let shared = places(a, *a_origin)
                    .iter()
                    .any(|place| theirs.contains(place));
                let found = a.may_share_elements(*a_origin, b, *b_origin);
                assert_eq!(found, shared, "{a:?} at {a_origin}, {b:?} at {b_origin}");
                apart += usize::from(!shared);
            }
        }
        assert!(apart > 10);
    }

    #[test]
    fn views_of_different_dtypes_are_told_apart_by_their_ends() {
        let narrow = TensorSpec::contiguous(DType::F16, SHAPE, Layout::Bshd).unwrap();
        let wide = TensorSpec::contiguous(DType::F32, SHAPE, Layout::Bshd).unwrap();
        let count = SHAPE.element_count().unwrap();
        assert!(!wide.may_share_elements(count / 2, &narrow, 0));
        assert!(wide.may_share_elements(count / 2 - 1, &narrow, 0));
        assert!(!wide.may_share_elements(0, &narrow, 2 * count));
        assert!(wide.may_share_elements(0, &narrow, 2 * count - 1));
        let mut empty = wide;
        empty.shape.seq = 0;
        assert!(!wide.may_share_elements(0, &empty, 3));
    }
}
