//! Normalising a warpgroup's output and handing it to TMA, which writes it under the next tile.

use cuda_std::half::Half;
use cuda_std::hint::opaque;
use cuda_std::wgmma::InFlight;
use cuda_std::{global, mbarrier, stmatrix, tma};

use super::Launch;
use super::lanes::{Lanes, ROW_STEP};
use super::policy::Policy;
use super::softmax::Rows;
use crate::barriers::Turns;
use crate::config::wgmma::{PANEL_COLS, Staging, WARPGROUP_ROWS};
use crate::pipeline::Ring;
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
    q: &Ring,
) where
    K: Policy<S, P, O>,
    [f32; O]: InFlight,
{
    let tile = &K::TILE;
    let params = launch.params;
    let lanes = lanes.anew();
    let m_begin = place.super_block * tile.cluster_m() + launch.rank * tile.block_m();
    let row_begin = m_begin + warpgroup * WARPGROUP_ROWS;
    let o_smem = opaque(launch.smem) + tile.o_offset() + warpgroup * tile.o_pitch();
    // SAFETY: the stage is private to the warpgroup and free after the wait and the barrier.
    unsafe {
        let turns = Turns::new(warpgroup, tile.consumers);
        let closed = rows.close();
        if matches!(tile.staging, Staging::Own) {
            // Only the first thread has stores, the previous tile's.
            tma::wait_stores_read();
        }
        turns.gather();
        let mut step = 0;
        while step < O / 8 {
            let col = step as u32 * 16;
            let panel = col / PANEL_COLS * tile.row_panel_bytes();
            let pair = |register: usize, row: usize| {
                let packed = K::Element::pack(
                    acc_o[register] * closed.norm[row],
                    acc_o[register + 1] * closed.norm[row],
                );
                packed & closed.keep[row]
            };
            let r = 8 * step;
            stmatrix::store4(
                o_smem + panel + lanes.matrix_row(col % PANEL_COLS / 8),
                [pair(r, 0), pair(r + 2, 1), pair(r + 4, 0), pair(r + 6, 1)],
            );
            step += 1;
        }
        tma::fence_shared();
        turns.gather();
        let mut panel = 0;
        while panel < tile.panels_v() {
            let to = [panel * PANEL_COLS, row_begin, place.head, place.batch];
            let from = o_smem + panel * tile.row_panel_bytes();
            tma::store4d_if(lanes.is_first(), K::address::<{ parameter::O }>(), to, from);
            panel += 1;
        }
        tma::commit_stores();
        if matches!(tile.staging, Staging::OverQ) {
            tma::wait_stores_read();
            mbarrier::arrive_if(lanes.is_first(), q.empty());
        }

        let sequence = place.batch as u64 * params.heads_q as u64 + place.head as u64;
        let row = row_begin + lanes.row();
        let lse =
            params.lse + (sequence * params.seq_q as u64 + row as u64) * size_of::<f32>() as u64;
        let first_col = lanes.col() == 0;
        global::store_if(first_col && row < params.seq_q, lse, closed.lse[0]);
        let below = row + ROW_STEP;
        let lse = lse + ROW_STEP as u64 * size_of::<f32>() as u64;
        global::store_if(first_col && below < params.seq_q, lse, closed.lse[1]);
    }
}

/// Waits for the thread's stores, before the block exits.
#[inline(always)]
pub fn finish() {
    tma::wait_stores();
}
