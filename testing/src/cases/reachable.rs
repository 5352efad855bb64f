//! Cases whose operands TMA can reach, so that the Hopper kernels are eligible.

use kernels_gpu::wgmma::tensor_map::ALIGN_BYTES;

use super::arrangement::Arrangement;
use super::spec::CaseSpec;
use ferroflash::{DType, MAX_HEAD_DIM};

/// 16-bit elements in the unit of which TMA takes widths and strides.
const UNIT: usize = ALIGN_BYTES as usize / DType::Bf16.bytes();
/// Number of the axis that must be contiguous ([`Arrangement`]).
const DIM: usize = 3;

impl CaseSpec {
    /// The case with head dimensions rounded up and arrangements changed to what TMA can express.
    pub fn reachable_by_tma(self) -> Self {
        let widen = |dim: usize| dim.next_multiple_of(UNIT).min(MAX_HEAD_DIM);
        Self {
            head_dim: widen(self.head_dim),
            head_dim_v: widen(self.head_dim_v),
            arrangements: self.arrangements.map(align),
            o: self.o.map(align),
            ..self
        }
    }
}

fn align(mut arrangement: Arrangement) -> Arrangement {
    let dim_last = |axis: &usize| *axis == DIM;
    arrangement.order.sort_by_key(dim_last);
    arrangement.padding[DIM] = arrangement.padding[DIM].next_multiple_of(UNIT);
    arrangement.reversed = [false; 4];
    arrangement
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_axes_keep_their_order() {
        let arrangement = Arrangement {
            order: [3, 1, 0, 2],
            padding: [1, 2, 3, 4],
            reversed: [true; 4],
        };
        let aligned = align(arrangement);
        assert_eq!(aligned.order, [1, 0, 2, 3]);
        assert_eq!(aligned.padding, [1, 2, 3, 8]);
        assert_eq!(aligned.reversed, [false; 4]);
    }
}
