//! Normalising a warpgroup's output and handing it to TMA, which writes it under the next tile.

use cuda_std::half::Half;
use cuda_std::math::fma;
use cuda_std::warp::{self, WARP_SIZE};
use cuda_std::wgmma::InFlight;
use cuda_std::{global, shared, stmatrix, tma};

use super::Launch;
use super::blocks::row_begin;
use super::lanes::{CHUNK_ELEMS, CHUNKS, Lanes, swizzled};
use super::policy::Policy;
use super::repair::Repair;
use super::softmax::{ROWS, Rows};
use crate::barriers::Turns;
use crate::config::wgmma::{PANEL_COLS, Staging, WARP_ROWS, WARPGROUP, WARPGROUP_ROWS, WgmmaTile};
use crate::layout::fragment::ROW_STEP;
use crate::pipeline::Ring;
use crate::tile::opaque;
use crate::tile::sequence::Sequence;
use crate::units::{F32_BYTES, HALF_BYTES};
use crate::wgmma::schedule::Tile;
use crate::wgmma::tensor_map::parameter;

/// Writes the warpgroup's rows of `o` and `lse`, its part of tile `place`; rows past the sequence are left
/// out, by TMA and by predicates.
///
/// # Safety
/// `launch` holds; all threads of the warpgroup reach the same call.
#[expect(clippy::too_many_arguments, reason = "what a tile's end needs, once")]
#[inline(always)]
pub unsafe fn store<K, const S: usize, const P: usize, const O: usize>(
    launch: &Launch,
    warpgroup: u32,
    lanes: Lanes,
    acc_o: &[f32; O],
    rows: &Rows,
    place: Tile,
    sequence: &Sequence,
    v: &mut Ring,
) where
    K: Policy<S, P, O>,
    [f32; O]: InFlight,
{
    let tile = &K::TILE;
    let params = launch.params;
    let lanes = lanes.anew();
    let row_begin = opaque(row_begin(launch, tile, place, warpgroup));
    let over_v = matches!(tile.staging, Staging::OverV);
    let turns = Turns::new(warpgroup, tile.consumers);
    // SAFETY: the stage is private to the warpgroup and free after the waits and the barrier.
    unsafe {
        let finalized = rows.finalize();
        if over_v {
            pass_over(v, warpgroup, lanes, tile);
            v.wait_full();
        }
        let o_smem = opaque(launch.smem)
            + if over_v {
                tile.v_offset() + v.stage * tile.v_bytes()
            } else {
                // Only the first thread has stores, the previous tile's.
                tma::wait_stores_read();
                turns.gather();
                tile.o_offset() + warpgroup * tile.o_bytes()
            };
        let poisoned = !is_finite(acc_o, finalized.keep);
        let mut step = 0;
        while step < O / 8 {
            let col = step as u32 * 16;
            let panel = col / PANEL_COLS * tile.row_panel_bytes();
            let pair = |register: usize, row: usize| {
                let low = acc_o[register] * finalized.norm[row];
                let high = acc_o[register + 1] * finalized.norm[row];
                K::Element::pack(low, high) & finalized.keep[row]
            };
            let r = 8 * step;
            stmatrix::store4(
                o_smem + panel + lanes.matrix_row(col % PANEL_COLS / 8),
                [pair(r, 0), pair(r + 2, 1), pair(r + 4, 0), pair(r + 6, 1)],
            );
            step += 1;
        }
        if warp::any(poisoned) {
            warp::sync_warp();
            let repair = Repair {
                launch,
                tile,
                sequence,
                place,
                lanes,
                o_smem,
                row_begin: opaque(row_begin + lanes.warp * WARP_ROWS),
                lse: finalized.lse,
            };
            repair.run::<K::Element>();
            // Without it ptxas spills in some instances.
            warp::sync_warp();
        }
        tma::fence_shared();
        turns.gather();
        let packing = launch.packing();
        let own_rows = packing.rows(sequence.seq_q).saturating_sub(row_begin);
        if tile.varlen && own_rows < WARPGROUP_ROWS {
            // The rows below belong to the next sequence, which TMA cannot know.
            store_rows(
                launch, tile, lanes, place, sequence, row_begin, own_rows, o_smem,
            );
            turns.gather();
        } else {
            let mut panel = 0;
            while panel < tile.panels_v() {
                let query = sequence.q_begin + packing.query(row_begin);
                let col = panel * PANEL_COLS;
                let to = [col, place.head, query, place.head_kv, sequence.batch];
                let from = o_smem + panel * tile.row_panel_bytes();
                tma::store5d_if(lanes.is_first(), K::address::<{ parameter::O }>(), to, from);
                panel += 1;
            }
            tma::commit_stores();
        }
        if over_v {
            let own = *v;
            v.advance();
            pass_over(v, tile.consumers - 1 - warpgroup, lanes, tile);
            tma::wait_stores_read();
            // One lane has stored, as many as the cluster has blocks release.
            warp::sync_warp();
            own.release(lanes.lane, tile.cluster);
        }

        for i in 0..ROWS {
            let row = row_begin + lanes.row() + i as u32 * ROW_STEP;
            let exists = launch.has_row(place, sequence, row);
            let of_head = sequence.lse_address(params, launch.query_head(place, row));
            let address = of_head + packing.query(row) as u64 * F32_BYTES as u64;
            global::store_if(lanes.col() == 0 && exists, address, finalized.lse[i]);
        }
    }
}

/// Passes over stages of V that other warpgroups stage their output in.
#[inline(always)]
unsafe fn pass_over(v: &mut Ring, stages: u32, lanes: Lanes, tile: &WgmmaTile) {
    // Hidden, or trip counts of an unrolled loop would be kept through the kernel.
    let mut left = opaque(stages);
    while left > 0 {
        // SAFETY: forwarded to the caller.
        unsafe {
            v.wait_full();
            v.release(lanes.lane, tile.cluster);
        }
        v.advance();
        left -= 1;
    }
}

/// Whether the elements of the rows to keep are all finite.
#[inline(always)]
fn is_finite<const O: usize>(acc_o: &[f32; O], keep: [u32; ROWS]) -> bool {
    // A sum of zeros becomes NaN with the first number that is not finite. Two sums a row, for speed.
    let mut zeros = [[0.0; 2]; ROWS];
    let mut i = 0;
    while i < O {
        let zero = &mut zeros[i / 2 % 2][i % 2];
        *zero = fma(acc_o[i], 0.0, *zero);
        i += 1;
    }
    let kept = |row: usize| (zeros[row][0] + zeros[row][1]).to_bits() & keep[row];
    f32::from_bits(kept(0)) == 0.0 && f32::from_bits(kept(1)) == 0.0
}

/// Copies `rows` staged rows to global memory, a row at a time by as many lanes as it has 16-byte chunks.
///
/// # Safety
/// As [`store`]; the staged rows are visible to the whole warpgroup.
#[expect(clippy::too_many_arguments, reason = "what a tile's end needs, once")]
#[inline(always)]
unsafe fn store_rows(
    launch: &Launch,
    tile: &WgmmaTile,
    lanes: Lanes,
    place: Tile,
    sequence: &Sequence,
    row_begin: u32,
    rows: u32,
    o_smem: u32,
) {
    let params = launch.params;
    let head_address = sequence.q_address(&params.o, launch.query_head(place, 0), HALF_BYTES);
    let packing = launch.packing();
    let o = &params.o;
    let thread = lanes.warp * WARP_SIZE + lanes.lane;
    // A panel's row is eight chunks wide.
    let chunk = thread % CHUNKS;
    let mut row = thread / CHUNKS;
    while row < rows {
        let (query, head) = (packing.query(row_begin + row), packing.head(row));
        let offset = query as i64 * o.seq_stride + head as i64 * o.head_stride;
        let row_address = head_address.wrapping_add_signed(offset * HALF_BYTES as i64);
        let exists = launch.has_row(place, sequence, row_begin + row);
        let mut panel = 0;
        while panel < tile.panels_v() {
            let col = panel * PANEL_COLS + chunk * CHUNK_ELEMS;
            if exists && col < params.attention.head_dim_v {
                let from = o_smem + panel * tile.row_panel_bytes() + swizzled(row, chunk);
                // SAFETY: the chunk is staged, and exists in global memory, as head_dim_v is a multiple of it.
                unsafe {
                    let bits = shared::load4_bits(from);
                    global::store4_bits(row_address + (col * HALF_BYTES) as u64, bits);
                }
            }
            panel += 1;
        }
        row += WARPGROUP / CHUNKS;
    }
}

/// Waits for the thread's stores, before the block exits.
#[inline(always)]
pub fn finish() {
    tma::wait_stores();
}
