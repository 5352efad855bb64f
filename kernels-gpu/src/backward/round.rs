//! dq from the sums that blocks added up in f32: scaled and rounded, or computed again where they are not finite. A warp takes
//! 16 rows at a time.

use cuda_std::global;
use cuda_std::half::Half;
use cuda_std::thread::{block_dim_x, block_idx_x, grid_dim_x, thread_idx_x};
use cuda_std::warp::{any, lane_id, sync_warp};

use super::careful::{Head, Which};
use super::side::{KeepQueries, Side};
use crate::abi::BackwardParams;
use crate::layout::fragment::{ROW_STEP, TILE_M, TILE_N};
use crate::layout::swizzle::VEC16_BYTES;
use crate::modifiers::Modifiers;
use crate::tile::dq_sums::{DqSums, REGISTER_BYTES, UNIT_BYTES};
use crate::tile::element::Element;
use crate::tile::grid::TileGrid;
use crate::tile::non_finite::shift;
use crate::tile::sequence::Sequence;
use crate::units::{F32_BYTES, HALF_BYTES};

const WARP: u32 = 32;

/// Rounds all rows of dq, with any number of blocks of whole warps.
///
/// # Safety
/// `params` describes live allocations that hold every element it can address.
#[inline(always)]
pub unsafe fn round<E: Half + Element, M: Modifiers>(params: &BackwardParams, modifiers: &M) {
    let attention = &params.attention;
    let tiles = TileGrid::new(
        attention.batch,
        attention.heads_q,
        attention.seq_q,
        TILE_M as u32,
    );
    let warps_per_block = block_dim_x() / WARP;
    let mut index = block_idx_x() as u64 * warps_per_block as u64 + (thread_idx_x() / WARP) as u64;
    while index < tiles.count {
        let tile = tiles.get(index);
        // SAFETY: the tile is the launch's.
        unsafe { round_rows::<E, M>(params, modifiers, tile.batch, tile.head, tile.m_block) };
        index += grid_dim_x() as u64 * warps_per_block as u64;
    }
}

/// # Safety
/// As [`round`]; the head has the unit of rows, if the sequence is as long as can be.
#[inline(always)]
unsafe fn round_rows<E: Half + Element, M: Modifiers>(
    params: &BackwardParams,
    modifiers: &M,
    batch: u32,
    head: u32,
    row_unit: u32,
) {
    let attention = &params.attention;
    // SAFETY: forwarded to the caller.
    let sequence = unsafe { Sequence::new(attention, batch) };
    let begin = row_unit * TILE_M as u32;
    if begin >= sequence.seq_q {
        return;
    }
    let sums = DqSums::new(attention);
    let start = params.dq_sums.map_or(0, |address| address.get());
    let unit =
        start + sums.offset(batch, head, sequence.q_begin) + row_unit as u64 * sums.row_bytes();
    let head_address = sequence.q_address(&params.dq, head, HALF_BYTES);
    let lane = lane_id();
    let part = Part::of_lane(lane);
    let row = begin + part.row;
    let row_address =
        head_address.wrapping_add_signed(row as i64 * params.dq.seq_stride * HALF_BYTES as i64);
    let is_vec16 = params.dq.dim_stride == 1
        && attention.head_dim.is_multiple_of(TILE_N as u32)
        && row_address.is_multiple_of(VEC16_BYTES as u64);
    let mut is_finite = true;
    let mut col_unit = part.unit;
    while col_unit < attention.head_dim.div_ceil(TILE_N as u32) {
        // Two at once, for more loads in flight: rows of sums are padded to an even number of pairs of units.
        let (first, second) = (col_unit, col_unit + UNITS_AT_ONCE);
        let at = |col_unit: u32| unit + (col_unit * UNIT_BYTES) as u64;
        // SAFETY: the sums have both units of the row.
        let (first_sums, second_sums) = unsafe { (part.load(at(first)), part.load(at(second))) };
        let mut write = |col_unit: u32, sums| {
            let (vec16, finite) = scaled::<E>(sums, attention.score.softmax_scale);
            is_finite &= finite;
            let dim = col_unit * TILE_N as u32;
            if row < sequence.seq_q && dim < attention.head_dim {
                // SAFETY: dq has the row, and the elements that are below its dimension.
                unsafe {
                    if is_vec16 {
                        global::store4_bits(row_address + (dim * HALF_BYTES) as u64, vec16);
                    } else {
                        store_each(params, row_address, dim, vec16);
                    }
                }
            }
        };
        write(first, first_sums);
        write(second, second_sums);
        col_unit += 2 * UNITS_AT_ONCE;
    }
    // SAFETY: the whole warp is here.
    if unsafe { any(!is_finite) } {
        // SAFETY: the rows are this warp's, whose lanes have stored what they computed.
        unsafe {
            sync_warp();
            let head = Head {
                params,
                modifiers,
                extent: KeepQueries::extent(&sequence),
                sequence: &sequence,
                batch,
                head,
            };
            repair::<E, M>(&head, begin, lane);
        }
    }
}

/// Computes 16 rows from `begin` on again: with a K that is not finite, the sums are not finite of queries that do not see it.
///
/// # Safety
/// As [`Head::compute`].
#[inline(always)]
unsafe fn repair<E: Half + Element, M: Modifiers>(head: &Head<M>, begin: u32, lane: u32) {
    let end = (begin + TILE_M as u32).min(head.extent.kept);
    let mut row = begin;
    while row < end {
        // SAFETY: forwarded to the caller.
        unsafe { head.compute::<E, KeepQueries>(row, lane, Which::First) };
        row += 1;
    }
}

/// Eight dimensions, the even and the odd ones of which are given, times `scale` and rounded; and whether all are finite.
#[inline(always)]
fn scaled<E: Half>((even, odd): ([u32; 4], [u32; 4]), scale: f32) -> ([u32; 4], bool) {
    let (mut vec16, mut is_finite) = ([0; 4], true);
    for i in 0..4 {
        let (even, odd) = (
            f32::from_bits(even[i]) * scale,
            f32::from_bits(odd[i]) * scale,
        );
        is_finite &= even.is_finite() & odd.is_finite();
        vec16[i] = E::cvt_pair(even, odd);
    }
    (vec16, is_finite)
}

/// Units, side by side, that a warp takes at once: half of it each.
const UNITS_AT_ONCE: u32 = 2;

/// What a lane takes of each unit: eight dimensions of a row, which four lanes added, one register for the even and one for the
/// odd of them.
struct Part {
    /// Which of the units.
    unit: u32,
    /// Row of the unit.
    row: u32,
    /// Bytes from the unit to the even dimensions.
    offset: u32,
}

impl Part {
    #[inline(always)]
    fn of_lane(lane: u32) -> Self {
        const LANES: u32 = WARP / UNITS_AT_ONCE;
        let row = lane % LANES;
        let (half, row_of_half) = (row / ROW_STEP, row % ROW_STEP);
        Self {
            unit: lane / LANES,
            row,
            offset: 2 * half * REGISTER_BYTES + row_of_half * (TILE_N as u32 / 2) * F32_BYTES,
        }
    }

    /// The even and the odd dimensions of the unit at `unit`.
    ///
    /// # Safety
    /// It is one of the sums.
    #[inline(always)]
    unsafe fn load(&self, unit: u64) -> ([u32; 4], [u32; 4]) {
        let address = unit + self.offset as u64;
        // SAFETY: forwarded to the caller.
        unsafe {
            let even = global::load4_bits(address);
            (even, global::load4_bits(address + REGISTER_BYTES as u64))
        }
    }
}

/// Writes the elements from `dim` on that exist, one by one.
///
/// # Safety
/// `row` is the address of a row of dq.
#[inline(always)]
unsafe fn store_each(params: &BackwardParams, row: u64, dim: u32, vec16: [u32; 4]) {
    for i in 0..4 {
        for half in 0..2 {
            let dim = dim + (2 * i + half) as u32;
            if dim < params.attention.head_dim {
                let offset = dim as i64 * params.dq.dim_stride * HALF_BYTES as i64;
                let bits = (vec16[i] >> shift(half)) as u16;
                // SAFETY: forwarded to the caller.
                unsafe { global::store_u16(row.wrapping_add_signed(offset), bits) };
            }
        }
    }
}
