use std::sync::Arc;

use bytemuck::{NoUninit, cast_slice};

use crate::Error;

/// Values of an option: on the host, and copied to a device when they are first needed there, or on the device already.
///
/// As with [`AlibiSlopes`](crate::AlibiSlopes), clones share values and copies.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Array {
    /// `None` if only the device has them.
    values: Option<Arc<[u8]>>,
}

impl Array {
    /// Those on the host.
    pub fn new<T: NoUninit>(values: &[T]) -> Self {
        Self {
            values: Some(cast_slice(values).into()),
        }
    }

    /// Those on a device, at an address that is given with each launch.
    pub const ON_DEVICE: Self = Self { values: None };

    /// The bytes of those on the host.
    pub fn values(&self) -> Option<&Arc<[u8]>> {
        self.values.as_ref()
    }

    /// How many values of `T` the host has; `None` if only the device does.
    pub fn len<T>(&self) -> Option<usize> {
        let values = self.values.as_ref()?;
        Some(values.len() / size_of::<T>())
    }

    /// Value number `index`.
    ///
    /// # Panics
    /// If there is none, or only the device has it.
    pub fn get<T: bytemuck::AnyBitPattern>(&self, index: usize) -> T {
        let values = self.values.as_ref().expect("the host has the values");
        let bytes = &values[index * size_of::<T>()..][..size_of::<T>()];
        bytemuck::pod_read_unaligned(bytes)
    }
}

/// An array over pairs, `[batch or 1, heads_q or 1, seq_q or 1, seq_kv]`: axes of 1 hold for all.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PairArray {
    pub values: Array,
    pub shape: [usize; 4],
    /// In elements; 0 along axes of 1.
    pub strides: [i64; 4],
}

impl PairArray {
    /// One with `strides` along those axes that have several elements.
    pub fn new(values: Array, shape: [usize; 4], strides: [i64; 4]) -> Self {
        let stride = |axis: usize| if shape[axis] == 1 { 0 } else { strides[axis] };
        Self {
            values,
            shape,
            strides: [stride(0), stride(1), stride(2), stride(3)],
        }
    }

    /// One whose elements follow each other, the last axis first.
    ///
    /// # Errors
    /// [`Error::Argument`] on `argument` unless there is a value for each element.
    pub fn contiguous(
        argument: &'static str,
        values: Array,
        count: usize,
        shape: [usize; 4],
    ) -> Result<Self, Error> {
        let elements = shape
            .iter()
            .try_fold(1usize, |product, &size| product.checked_mul(size));
        if elements != Some(count) {
            let wrong = format!("it has {count} elements");
            return Err(Error::argument(
                argument,
                wrong,
                format!("as many as the shape {shape:?} has"),
            ));
        }
        let [_, b, c, d] = shape.map(|size| size as i64);
        Ok(Self::new(values, shape, [b * c * d, c * d, d, 1]))
    }

    /// Index of the element of a pair.
    pub fn index(&self, pair: [usize; 4]) -> i64 {
        let products = pair.iter().zip(self.strides);
        products.map(|(&at, stride)| at as i64 * stride).sum()
    }

    /// Refuses a shape that does not broadcast to `pairs`, `[batch, heads_q, seq_q, seq_kv]`.
    pub fn check(&self, argument: &'static str, pairs: [usize; 4]) -> Result<(), Error> {
        let names = ["batch", "heads_q", "seq_q", "seq_kv"];
        for ((size, expected), name) in self.shape.into_iter().zip(pairs).zip(names) {
            let may_broadcast = name != "seq_kv";
            if size != expected && !(may_broadcast && size == 1) {
                let or_1 = if may_broadcast { " or 1" } else { "" };
                return Err(Error::argument(
                    argument,
                    format!("{name} is {size}"),
                    format!("it must be {expected}{or_1}"),
                ));
            }
        }
        Ok(())
    }
}
