//! dq from the sums that blocks added up in f32: scaled and rounded, or computed again where they are not finite. A warp takes
//! 16 rows at a time.

use cuda_std::global;
use cuda_std::half::Half;
use cuda_std::thread::{block_idx_x, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, any, lane_id, sync_warp};

use super::careful::{Code, Head, Which};
use super::exponent;
use super::side::{KeepQueries, Side};
use crate::abi::BackwardParams;
use crate::config::round::ROWS;
use crate::layout::fragment::{ROW_STEP, TILE_M, TILE_N};
use crate::layout::swizzle::VEC16_BYTES;
use crate::modifiers::Modifiers;
use crate::tile::dq_sums::{DqSums, LANE_BYTES, REGISTER_BYTES, SumsOrder, UNIT_BYTES};
use crate::tile::element::Element;
use crate::tile::grid::TileGrid;
use crate::tile::non_finite::shift;
use crate::tile::quad::{QUAD, transposed};
use crate::tile::sequence::Sequence;
use crate::units::{F32_BYTES, HALF_BYTES};

/// Rounds all rows of dq, a unit of them a warp.
///
/// # Safety
/// `params` describes live allocations that hold every element it can address; the launch has a block for each [`ROWS`] rows of
/// a head.
#[inline(always)]
pub unsafe fn round<E: Half + Element, M: Modifiers>(params: &BackwardParams, modifiers: &M) {
    let attention = &params.attention;
    let tiles = TileGrid::new(attention.batch, attention.heads_q, attention.seq_q, ROWS);
    let tile = tiles.get(block_idx_x());
    let row_unit = tile.m_block * (ROWS / TILE_M as u32) + thread_idx_x() / WARP_SIZE;
    // SAFETY: the tile is the launch's, and its warps take its units one each.
    unsafe { round_rows::<E, M>(params, modifiers, tile.batch, tile.head, row_unit) };
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
    let is_by_lane = params.dq_sums_order == SumsOrder::Lanes as u32;
    let part = Part::of_lane(lane, is_by_lane);
    let mut factor = attention.score.softmax_scale;
    if E::SCALES_DS {
        // SAFETY: forwarded to the caller.
        factor *= unsafe { exponent::told(params, batch, head) };
    }
    let mut is_finite = true;
    let mut col_unit = 0;
    while col_unit < attention.head_dim.div_ceil(TILE_N as u32) {
        // Two at once, for more loads in flight: rows of sums are padded to twice as many units as a warp takes.
        let ahead = UNITS_AT_ONCE * UNIT_BYTES;
        let units = unit + (col_unit * UNIT_BYTES) as u64;
        // SAFETY: the sums have the units.
        let both = unsafe { [part.load(units), part.load(units + ahead as u64)] };
        let mut dim = (col_unit + part.unit) * TILE_N as u32;
        for mut sums in both {
            for i in 0..4 {
                for j in 0..4 {
                    sums[i][j] *= factor;
                    is_finite &= sums[i][j].is_finite();
                }
            }
            // SAFETY: dq has the rows that the sequence has.
            let write = |row: u32, vec16: [u32; 4]| unsafe {
                if row < sequence.seq_q {
                    store(params, head_address, row, dim, vec16);
                }
            };
            // SAFETY: the whole warp is here.
            unsafe {
                write(begin + part.first_row, part.row::<E>(&sums, 0, lane));
                let second = begin + part.first_row + ROW_STEP;
                write(second, part.row::<E>(&sums, 1, lane));
            }
            dim += UNITS_AT_ONCE * TILE_N as u32;
        }
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
                code: Code::ANY_ROW,
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

/// Units, side by side, that a warp takes at once.
const UNITS_AT_ONCE: u32 = 4;

/// Of the units that a warp takes at once, where the sums are that a lane loads, and which rows it rounds and writes.
struct Part {
    /// Which of the units it writes.
    unit: u32,
    /// The first row, of the unit; the other is [`ROW_STEP`] further on.
    first_row: u32,
    /// Bytes from the units to the first four sums, and from those to the next.
    offset: u32,
    step: u32,
    is_by_lane: bool,
}

impl Part {
    #[inline(always)]
    fn of_lane(lane: u32, is_by_lane: bool) -> Self {
        if is_by_lane {
            // What the lane added of each unit: the quad exchanges it.
            return Self {
                unit: lane % QUAD,
                first_row: lane / QUAD,
                offset: lane * LANE_BYTES,
                step: UNIT_BYTES,
                is_by_lane: true,
            };
        }
        // What a quad added of one of the units.
        let (unit, row) = (lane / ROW_STEP, lane % ROW_STEP);
        Self {
            unit,
            first_row: row,
            offset: unit * UNIT_BYTES + row * QUAD * F32_BYTES,
            step: REGISTER_BYTES,
            is_by_lane: false,
        }
    }

    /// Four times four sums of the units from `units` on.
    ///
    /// # Safety
    /// They are of the sums.
    #[inline(always)]
    unsafe fn load(&self, units: u64) -> [[f32; 4]; 4] {
        let address = units + self.offset as u64;
        // SAFETY: forwarded to the caller.
        let four = |i: u32| unsafe { global::load4_bits(address + (i * self.step) as u64) };
        [0, 1, 2, 3].map(|i| four(i).map(f32::from_bits))
    }

    /// Eight dimensions, rounded, of the first or the second row: registers `2 · half` and the next of an accumulator are a
    /// pair of one row.
    ///
    /// # Safety
    /// All lanes of the warp call it, with their numbers.
    #[inline(always)]
    unsafe fn row<E: Half>(&self, sums: &[[f32; 4]; 4], half: usize, lane: u32) -> [u32; 4] {
        let mut words = [0; 4];
        for i in 0..4 {
            let (even, odd) = if self.is_by_lane {
                (sums[i][2 * half], sums[i][2 * half + 1])
            } else {
                (sums[2 * half][i], sums[2 * half + 1][i])
            };
            words[i] = E::cvt_pair(even, odd);
        }
        if self.is_by_lane {
            // SAFETY: forwarded to the caller; the order is the same in all lanes.
            words = unsafe { transposed(words, lane % QUAD) };
        }
        words
    }
}

/// Writes eight dimensions of row `row` from `dim` on, of those that exist.
///
/// # Safety
/// dq has the row, whose head begins at `head`.
#[inline(always)]
unsafe fn store(params: &BackwardParams, head: u64, row: u32, dim: u32, vec16: [u32; 4]) {
    let offset = row as i64 * params.dq.seq_stride * HALF_BYTES as i64;
    let address = head.wrapping_add_signed(offset);
    let head_dim = params.attention.head_dim;
    let is_vec16 = params.dq.dim_stride == 1
        && head_dim.is_multiple_of(TILE_N as u32)
        && address.is_multiple_of(VEC16_BYTES as u64);
    if !is_vec16 {
        // SAFETY: forwarded to the caller.
        unsafe { store_each(params, address, dim, vec16) };
    } else if dim < head_dim {
        // SAFETY: forwarded to the caller.
        unsafe { global::store4_bits(address + (dim * HALF_BYTES) as u64, vec16) };
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
