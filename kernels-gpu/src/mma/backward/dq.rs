//! Adding up a block's part of dq.

use cuda_std::global;

use super::MmaBackwardKernel;
use super::tile::{Step, Tile};
use crate::abi::AttentionParams;
use crate::layout::fragment::{TILE_M, TILE_N};
use crate::tile::dq_sums::{DqSums, REGISTER_BYTES, UNIT_BYTES};
use crate::units::F32_BYTES;

/// The sums of one query head of a sequence.
pub struct HeadSums {
    /// Of its first unit.
    address: u64,
    layout: DqSums,
    /// Units of rows and of dimensions that it has. All of a block's have room, but with the sums of one after the other in
    /// branches of their own, ptxas needs fewer registers.
    row_units: u32,
    col_units: u32,
}

impl HeadSums {
    /// Those of the head that passes in `step`.
    ///
    /// # Safety
    /// As [`Tile::new`].
    #[inline(always)]
    pub unsafe fn new<K: MmaBackwardKernel>(tile: &Tile<K>, step: Step) -> Self {
        let sequence = tile.sequence();
        let attention = &tile.params.attention;
        let attention = &AttentionParams {
            seq_q: step.renew(attention.seq_q),
            heads_q: step.renew(attention.heads_q),
            ..*attention
        };
        let layout = DqSums::of_dims(attention, K::CONFIG.head_dim as u32);
        let start = tile.params.dq_sums.map_or(0, |address| address.get());
        let batch = tile.batch();
        Self {
            address: start + layout.offset(batch, step.head, sequence.q_begin),
            layout,
            row_units: sequence.seq_q.div_ceil(TILE_M as u32),
            col_units: step.renew(attention.head_dim).div_ceil(TILE_N as u32),
        }
    }

    /// Adds a warp's part, whose first row and column are `row` and `col`, times 2^−κ, where dS is. Rows and dimensions are there for
    /// all of a block.
    ///
    /// # Safety
    /// The sums were 0 before the launch.
    #[inline(always)]
    pub unsafe fn add<const ROWS: usize, const COLS: usize>(
        &self,
        acc: &[[f32; COLS]; ROWS],
        (row, col): (u32, u32),
        lane: u32,
    ) {
        let (row_unit, col_unit) = (row / TILE_M as u32, col / TILE_N as u32);
        let unit = row_unit as u64 * self.layout.row_bytes() + (col_unit * UNIT_BYTES) as u64;
        let mut address = self.address + unit + (lane * F32_BYTES) as u64;
        for i in 0..ROWS / 2 {
            let exists = row_unit + (i as u32) < self.row_units;
            for j in 0..COLS / 2 {
                if exists && col_unit + (j as u32) < self.col_units {
                    for register in 0..4 {
                        let value = acc[2 * i + register / 2][2 * j + register % 2];
                        let offset = j as u32 * UNIT_BYTES + register as u32 * REGISTER_BYTES;
                        global::add(address + offset as u64, value);
                    }
                }
            }
            address += self.layout.row_bytes();
        }
    }
}
