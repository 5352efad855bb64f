use ferroflash::{DType, Error, HostTensor, Layout, Shape, Strides, TensorSpec};
use serde::{Deserialize, Serialize};

/// How a tensor lies in its buffer: any order of axes, padding after each, any axis backwards.
///
/// Axes are numbered batch 0, head 1, seq 2, dim 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrangement {
    /// Axes from the slowest to the fastest.
    pub order: [usize; 4],
    /// Unused places after each axis's elements, by axis number.
    pub padding: [usize; 4],
    /// Axes that run backwards, by axis number.
    pub reversed: [bool; 4],
}

impl Arrangement {
    /// Dense `[batch, seq, heads, dim]`.
    pub const BSHD: Self = Self {
        order: [0, 2, 1, 3],
        padding: [0; 4],
        reversed: [false; 4],
    };

    /// Dense `[batch, heads, seq, dim]`.
    pub const BHSD: Self = Self {
        order: [0, 1, 2, 3],
        ..Self::BSHD
    };

    /// Rows that begin at no multiple of 16 bytes, some of them backwards.
    pub const ODD_ROWS: Self = Self {
        order: [0, 2, 1, 3],
        padding: [1, 0, 2, 3],
        reversed: [false, true, true, false],
    };

    /// Rows of which the first begins at a multiple of 16 bytes, if they are of whole ones, and the next does not.
    pub const ODD_DISTANCES: Self = Self {
        padding: [0, 0, 0, 1],
        ..Self::BSHD
    };

    /// Rows whose elements lie apart.
    pub const COLUMNS: Self = Self {
        order: [1, 0, 3, 2],
        padding: [0, 0, 3, 0],
        reversed: [false, false, false, true],
    };

    /// Rows of a multiple of 8 elements that begin at multiples of 16 bytes, with some between them.
    pub const ALIGNED_ROWS: Self = Self {
        order: [1, 0, 2, 3],
        padding: [1, 0, 2, 8],
        reversed: [false; 4],
    };

    /// Rows, of one head, that begin at multiples of 16 bytes and whose elements lie apart.
    pub const ALIGNED_COLUMNS: Self = Self {
        order: [0, 3, 2, 1],
        padding: [0, 7, 1, 0],
        reversed: [false; 4],
    };

    /// A zeroed tensor of this arrangement. Places that no element uses hold NaN, so that reading
    /// one shows.
    ///
    /// # Errors
    /// [`Error::Argument`] if the buffer would be too large.
    pub fn allocate(&self, dtype: DType, shape: Shape) -> Result<HostTensor, Error> {
        let sizes = [shape.batch, shape.heads, shape.seq, shape.dim];
        let mut strides = [0i64; 4];
        let mut origin = 0i64;
        let mut places = 1usize;
        for &axis in self.order.iter().rev() {
            let stride = places as i64;
            let extent = sizes[axis] + self.padding[axis];
            strides[axis] = stride;
            if self.reversed[axis] && sizes[axis] > 0 {
                strides[axis] = -stride;
                origin += stride * (sizes[axis] as i64 - 1);
            }
            places = places.saturating_mul(extent.max(1));
        }
        let [batch, head, seq, dim] = strides;
        let spec = TensorSpec {
            dtype,
            shape,
            strides: Strides {
                batch,
                head,
                seq,
                dim,
            },
        };
        let bytes = places.checked_mul(dtype.bytes());
        let Some(bytes) = bytes.filter(|&bytes| i64::try_from(bytes).is_ok()) else {
            let wrong = format!("{places} places do not fit an i64 of bytes");
            return Err(Error::argument("tensor", wrong, "a smaller one"));
        };
        let bytes = vec![0xff; bytes];
        let mut tensor = HostTensor::new(spec, origin as usize, bytes)?;
        tensor.fill(|| 0.0);
        Ok(tensor)
    }

    /// As [`allocate`](Self::allocate), for what is to be written: elements are NaN too.
    pub(super) fn unwritten(&self, dtype: DType, shape: Shape) -> Result<HostTensor, Error> {
        let mut tensor = self.allocate(dtype, shape)?;
        tensor.fill(|| f32::NAN);
        Ok(tensor)
    }
}

/// A dense `[batch, heads, seq, dim]` of f32 that is to be written: NaN all over.
pub(super) fn unwritten_f32(shape: Shape) -> Result<HostTensor, Error> {
    let unwritten = vec![f32::NAN; shape.element_count().unwrap_or(0)];
    HostTensor::from_f32(&unwritten, shape, Layout::Bhsd)
}

/// Whether `computed`, which was written where `place` was, has what `place` has between the elements.
pub(super) fn is_kept_between(place: &HostTensor, computed: &HostTensor) -> bool {
    let [place, computed] = [place, computed].map(|tensor| {
        let mut without = tensor.clone();
        without.fill(|| 0.0);
        without
    });
    // What is downloaded ends at the last element.
    computed.bytes() == &place.bytes()[..computed.bytes().len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_has_a_place_of_its_own() {
        let arrangement = Arrangement {
            order: [1, 3, 0, 2],
            padding: [1, 0, 3, 2],
            reversed: [false, true, true, false],
        };
        let shape = Shape {
            batch: 2,
            heads: 3,
            seq: 4,
            dim: 5,
        };
        let mut tensor = arrangement.allocate(DType::F32, shape).unwrap();
        assert!(!tensor.spec().may_overlap());
        let mut next = 0.0;
        tensor.fill(|| {
            next += 1.0;
            next
        });
        assert_eq!(tensor.get(0, 0, 0, 0), 1.0);
        assert_eq!(tensor.get(1, 2, 3, 4), 120.0);
        let unused = [0xff; size_of::<f32>()];
        let places = tensor.bytes().chunks_exact(size_of::<f32>());
        assert_eq!(places.filter(|bytes| *bytes != unused).count(), 120);
    }
}
