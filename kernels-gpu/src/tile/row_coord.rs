//! The rows of an operand one by one, in the order of lse: `[batch, heads, seq]`, contiguous.

use super::grid::divide_long;
use crate::abi::TensorArg;

/// A row of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowCoord {
    batch: u64,
    head: u64,
    seq: u64,
}

impl RowCoord {
    /// Row number `row` of operands with `heads` heads of `seq` rows. Row 7 of 2 heads of 3 rows is row 1 of head 0 of batch
    /// entry 1.
    #[inline(always)]
    pub fn new(row: u64, heads: u32, seq: u32) -> Self {
        let (sequence, seq) = divide_long(row, seq as u64);
        let (batch, head) = divide_long(sequence, heads as u64);
        Self { batch, head, seq }
    }

    /// Address of the row's first component in `tensor`, of elements of `element_bytes`.
    #[inline(always)]
    pub fn address(self, tensor: &TensorArg, element_bytes: u32) -> u64 {
        let offset = self.batch as i64 * tensor.batch_stride
            + self.head as i64 * tensor.head_stride
            + self.seq as i64 * tensor.seq_stride;
        tensor
            .address
            .wrapping_add_signed(offset * element_bytes as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_counted_through_heads_and_batch() {
        let row = RowCoord::new(7, 2, 3);
        let (batch, head, seq) = (1, 0, 1);
        assert_eq!(row, RowCoord { batch, head, seq });
        let tensor = TensorArg {
            address: 1000,
            batch_stride: -100,
            head_stride: 7,
            seq_stride: 10,
            dim_stride: 1,
        };
        assert_eq!(row.address(&tensor, 2), 1000 - 200 + 20);
    }
}
