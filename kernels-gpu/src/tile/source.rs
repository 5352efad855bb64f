//! Source of a block's copies: one head of a strided operand.

use crate::abi::TensorArg;

/// Bytes of the widest copy, and the alignment it needs.
const VECTOR_BYTES: u32 = 16;

/// One head of an operand in global memory: `rows` × `dims` elements, any strides.
#[derive(Clone, Copy)]
pub struct Source {
    /// Bytes of an element; a number known at compile time, once inlined.
    pub elem_bytes: u32,
    pub address: u64,
    pub row_bytes: i64,
    pub dim_bytes: i64,
    pub rows: u32,
    pub dims: u32,
    /// Whether every 16 bytes of a row's elements are contiguous and aligned.
    pub is_vec16: bool,
}

impl Source {
    /// The head of `operand` whose row 0 is at `address`.
    #[inline(always)]
    pub fn new(operand: &TensorArg, address: u64, [rows, dims]: [u32; 2], elem_bytes: u32) -> Self {
        let row_bytes = operand.seq_stride * elem_bytes as i64;
        let aligned = (address | row_bytes as u64).is_multiple_of(VECTOR_BYTES as u64);
        Self {
            elem_bytes,
            address,
            row_bytes,
            dim_bytes: operand.dim_stride * elem_bytes as i64,
            rows,
            dims,
            is_vec16: operand.dim_stride == 1 && aligned,
        }
    }
}
