//! Strided operands of any dtype to and from dense f32 tiles.

use crate::DType;
use crate::dtype::{Element, VisitElement, visit};
use crate::spec::TensorSpec;

/// One head of an operand: a `[seq][dim]` matrix somewhere in memory.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    dtype: DType,
    /// Address of element (0, 0).
    address: u64,
    seq_stride: i64,
    dim_stride: i64,
}

impl Matrix {
    /// The matrix of one (batch, head), from position `first` on, of the operand whose element
    /// `[0, 0, 0, 0]` lies at `address`.
    pub fn new(spec: &TensorSpec, address: u64, batch: usize, head: usize, first: usize) -> Self {
        // It wraps where the operand has no elements, as the offset does.
        let offset = spec.offset(batch, head, first, 0);
        let offset_bytes = offset.wrapping_mul(spec.dtype.bytes() as i64);
        Self {
            dtype: spec.dtype,
            address: address.wrapping_add_signed(offset_bytes),
            seq_stride: spec.strides.seq,
            dim_stride: spec.strides.dim,
        }
    }

    /// Row `seq` as f32.
    ///
    /// # Safety
    /// The first `out.len()` elements of the row must lie inside the operand, readable.
    #[inline(always)]
    pub unsafe fn read_row(&self, seq: usize, out: &mut [f32]) {
        let (matrix, row) = (*self, seq);
        visit(self.dtype, ReadRow { matrix, row, out });
    }

    /// Rounds `values` into row `seq`.
    ///
    /// # Safety
    /// The first `values.len()` elements of the row must lie inside the operand, accessed by nobody
    /// else.
    pub unsafe fn write_row(&self, seq: usize, values: &[f32]) {
        let (matrix, row) = (*self, seq);
        visit(
            self.dtype,
            WriteRow {
                matrix,
                row,
                values,
            },
        );
    }

    #[inline(always)]
    fn row_start<T>(&self, row: usize) -> *mut T {
        let offset_bytes = row as i64 * self.seq_stride * size_of::<T>() as i64;
        let address = self.address.wrapping_add_signed(offset_bytes);
        std::ptr::with_exposed_provenance_mut(address as usize)
    }
}

/// Made only by [`Matrix::read_row`], whose caller vouches for the row.
struct ReadRow<'a> {
    matrix: Matrix,
    row: usize,
    out: &'a mut [f32],
}

impl VisitElement for ReadRow<'_> {
    type Output = ();
    // Compiled with the vector instructions that the caller is compiled for.
    #[inline(always)]
    fn visit<T: Element>(self) {
        let start = self.matrix.row_start::<T>(self.row).cast_const();
        let stride = self.matrix.dim_stride as isize;
        if stride == 1 {
            // SAFETY: the row is dense and lies inside the operand.
            T::widen(
                unsafe { std::slice::from_raw_parts(start, self.out.len()) },
                self.out,
            );
        } else {
            for (dim, out) in self.out.iter_mut().enumerate() {
                // SAFETY: this element of the row lies inside the operand.
                *out = unsafe { *start.offset(dim as isize * stride) }.to_f32();
            }
        }
    }
}

/// Made only by [`Matrix::write_row`], whose caller vouches for the row.
struct WriteRow<'a> {
    matrix: Matrix,
    row: usize,
    values: &'a [f32],
}

impl VisitElement for WriteRow<'_> {
    type Output = ();
    fn visit<T: Element>(self) {
        let start = self.matrix.row_start::<T>(self.row);
        let stride = self.matrix.dim_stride as isize;
        for (dim, &value) in self.values.iter().enumerate() {
            // SAFETY: this element of the row lies inside the operand.
            unsafe { *start.offset(dim as isize * stride) = T::from_f32(value) };
        }
    }
}
