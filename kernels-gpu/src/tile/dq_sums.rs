//! Where dq is added up in f32 by blocks that each have a part of the keys.
//!
//! The sums lie as lanes of a warp hold accumulators of `mma` and `wgmma`, in the order in which a warp adds most consecutive
//! bytes at once ([`SumsOrder`]):
//!
//! ```text
//! [head of a batch entry][16 queries][8 dimensions][4 registers][32 lanes], or …[32 lanes][4 registers]
//! ```
//!
//! Sequences begin, and end, at a block of 64 queries of their own, and rows are as wide as the kernels for head_dim and
//! head_dim_v are, 64, 128 or 256: so a kernel adds whole blocks, of as many dimensions as it takes.

use crate::abi::AttentionParams;
use crate::layout::fragment::{TILE_M, TILE_N};
use crate::units::F32_BYTES;

/// Bytes of a register of a warp, and of the four that hold [`TILE_M`] queries × [`TILE_N`] dimensions.
pub const REGISTER_BYTES: u32 = 32 * F32_BYTES;
pub const UNIT_BYTES: u32 = 4 * REGISTER_BYTES;

/// Bytes of the registers of a lane.
pub const LANE_BYTES: u32 = 4 * F32_BYTES;

/// How a unit's registers and lanes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SumsOrder {
    /// All lanes of a register together: a warp adds a register at once.
    Registers,
    /// All registers of a lane together: a warp adds all four at once, as GPUs since sm_90 can.
    Lanes,
}

/// Queries and dimensions of a block, and the units of each.
const BLOCK: u32 = 64;
const BLOCK_ROW_UNITS: u64 = (BLOCK / TILE_M as u32) as u64;

/// The extents of the sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DqSums {
    /// Units of queries of a head: of all its sequences, where those are packed.
    row_units: u64,
    /// Units of dimensions, of which head_dim need not take all.
    col_units: u32,
    is_packed: bool,
    heads: u32,
}

impl DqSums {
    /// Those of a launch.
    #[inline(always)]
    pub const fn new(params: &AttentionParams) -> Self {
        let head_dim = if params.head_dim > params.head_dim_v {
            params.head_dim
        } else {
            params.head_dim_v
        };
        Self::of_dims(params, head_dim.div_ceil(BLOCK).next_power_of_two() * BLOCK)
    }

    /// Those of a launch whose rows have `dims` dimensions, as a kernel of that head_dim knows.
    #[inline(always)]
    pub const fn of_dims(params: &AttentionParams, dims: u32) -> Self {
        let is_packed = params.lengths.has_cu_seqlens();
        let blocks = if is_packed {
            (params.lengths.total_q / BLOCK) as u64 + params.batch as u64
        } else {
            params.seq_q.div_ceil(BLOCK) as u64
        };
        let row_units = blocks * BLOCK_ROW_UNITS;
        Self {
            row_units,
            col_units: dims / TILE_N as u32,
            is_packed,
            heads: params.heads_q,
        }
    }

    /// Bytes of all sums.
    pub const fn bytes(&self, params: &AttentionParams) -> u64 {
        let batch = if self.is_packed {
            1
        } else {
            params.batch as u64
        };
        batch * self.heads as u64 * self.row_units * self.row_bytes()
    }

    /// Dimensions of a row: a kernel that adds more does not fit.
    pub const fn dims(&self) -> u32 {
        self.col_units * TILE_N as u32
    }

    /// Bytes of 16 queries.
    #[inline(always)]
    pub const fn row_bytes(&self) -> u64 {
        self.col_units as u64 * UNIT_BYTES as u64
    }

    /// Bytes from the start to the first unit of a head of batch entry `batch`, whose rows begin at `q_begin` where
    /// sequences are packed.
    #[inline(always)]
    pub const fn offset(&self, batch: u32, head: u32, q_begin: u32) -> u64 {
        let (entry, first) = if self.is_packed {
            let block = (q_begin / BLOCK) as u64 + batch as u64;
            (0, block * BLOCK_ROW_UNITS)
        } else {
            (batch, 0)
        };
        let of_head = (entry as u64 * self.heads as u64 + head as u64) * self.row_units;
        (of_head + first) * self.row_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use bytemuck::Zeroable;

    use super::*;

    /// Every sequence of every head has units of its own, and all lie inside.
    #[test]
    fn sequences_lie_apart() {
        let lengths = [0u32, 1, 64, 65, 63, 130, 0, 2];
        for is_packed in [false, true] {
            let mut params = AttentionParams::zeroed();
            params.batch = lengths.len() as u32;
            (params.heads_q, params.head_dim, params.seq_q) = (3, 20, 130);
            if is_packed {
                params.lengths.total_q = lengths.iter().sum();
            }
            let sums = DqSums::new(&params);
            let units = sums.bytes(&params) / sums.row_bytes();
            let mut taken = vec![false; units as usize];
            for head in 0..params.heads_q {
                let mut begin = 0;
                for (batch, &length) in lengths.iter().enumerate() {
                    let offset = sums.offset(batch as u32, head, if is_packed { begin } else { 0 });
                    assert_eq!(offset % sums.row_bytes(), 0);
                    let first = (offset / sums.row_bytes()) as usize;
                    for unit in &mut taken[first..first + length.div_ceil(64) as usize * 4] {
                        assert!(!core::mem::replace(unit, true));
                    }
                    begin += length;
                }
            }
        }
    }
}
