//! A chunk's end: what the warps have computed, each of its own keys, becomes one state.
//!
//! Outputs meet in shared memory, where a warp's last V was: 8 rows × as many components as there is room for at a time. Each
//! thread then adds the 8 warps' numbers of its own rows and components, in the order of warps.
//!
//! ```text
//! a warp's room    [8 rows][round_dims], f32, in pieces of 32 bytes; piece p of row r in place p xor mask(r)
//! writing          a lane has components g and g + 8 of rows 2t and 2t + 1    (g = lane / 4, t = lane mod 4)
//! reading          a lane has round_cols components of row g
//! ```

use cuda_std::shared;
use cuda_std::thread::sync_threads;
use cuda_std::warp::lane_id;

use super::step::WarpState;
use super::tile::Tile;
use super::{DecodeKernel, State};
use crate::config::decode::DecodeConfig;
use crate::math::max;
use crate::tile::black_box;
use crate::units::F32_BYTES;

/// Bytes of a piece, within which nothing changes places.
const PIECE_BYTES: u32 = 32;
/// Components of an instruction's output.
const TILE_DIMS: u32 = 16;

/// Address of the maxima of a row, one a warp.
#[inline(always)]
pub fn maximum(row: u32) -> u32 {
    let row = row * DecodeConfig::WARPS * F32_BYTES;
    shared::dynamic_base() + DecodeConfig::MAX_OFFSET + row
}

/// By which the pieces of a row are moved: rows that lanes write at once, 2t and 2t + 1, and that they read at once, differ in it.
#[inline(always)]
fn mask(row: u32) -> u32 {
    ((row / 2) ^ (row % 2 * 2)) % 4 * PIECE_BYTES
}

/// Merges the warps' states, and multiplies their outputs by `factor`; `slot` is that of the last V, which is free.
///
/// # Safety
/// The whole block calls it; nobody reads the maxima, and no copy into the slot is under way. Afterwards nobody accesses the maxima; others
/// may still read the slot.
#[inline(always)]
pub unsafe fn merge_warps<
    K: DecodeKernel,
    const HALVES: usize,
    const O_COLS: usize,
    const D_STEPS: usize,
>(
    tile: &Tile<'_>,
    own: &mut WarpState<HALVES, D_STEPS>,
    factor: f32,
    slot: u32,
) -> State<HALVES, O_COLS> {
    let config = K::CONFIG;
    let lane = black_box(lane_id());
    let mut state = State::<HALVES, O_COLS>::new();
    for half in 0..HALVES {
        if lane.is_multiple_of(4) {
            let of_row = maximum(lane / 4 + half as u32 * DecodeConfig::HALF_ROWS);
            shared::store(of_row + tile.warp() * F32_BYTES, own.rows[half].row_max);
        }
    }
    sync_threads();
    let first_room = tile.slot_address(slot);
    let room = first_room + tile.warp() * config.warp_bytes();
    let mut bits = [0.0; HALVES];
    for half in 0..HALVES {
        let of_row = maximum(lane / 4 + half as u32 * DecodeConfig::HALF_ROWS);
        let [a, b, c, d] = shared::load4(of_row);
        let [e, f, g, h] = shared::load4(of_row + 4 * F32_BYTES);
        let largest = max(max(max(a, b), max(c, d)), max(max(e, f), max(g, h)));
        state.rows[half].row_max = largest;
        bits[half] = own.rows[half].row_max - largest;
    }
    own.scale(&bits, factor);
    for half in 0..HALVES {
        state.rows[half].row_sum = own.rows[half].row_sum;
        for round in 0..config.rounds() {
            if half + round > 0 {
                // All have read the round before.
                sync_threads();
            }
            write::<K, HALVES, D_STEPS>(own, half, round, room);
            sync_threads();
            read::<K, HALVES, O_COLS>(tile, &mut state, half, round, first_room);
        }
    }
    state
}

/// Writes a round of this warp's output.
#[inline(always)]
unsafe fn write<K: DecodeKernel, const HALVES: usize, const D_STEPS: usize>(
    own: &WarpState<HALVES, D_STEPS>,
    half: usize,
    round: usize,
    room: u32,
) {
    let round_dims = K::CONFIG.round_dims();
    let tiles = (round_dims / TILE_DIMS) as usize;
    let lane = black_box(lane_id());
    for j in 0..2 {
        let row = lane % 4 * 2 + j as u32;
        let to = room + row * round_dims * F32_BYTES;
        for tile in 0..tiles {
            let of_tile = &own.acc_o[half][round * tiles + tile];
            for i in 0..2 {
                let dim = tile as u32 * TILE_DIMS + dim_in_tile::<K>(lane, i as u32);
                shared::store(to + (dim * F32_BYTES ^ mask(row)), of_tile[i][j]);
            }
        }
    }
}

/// Adds up the round's numbers of this thread.
#[inline(always)]
unsafe fn read<K: DecodeKernel, const HALVES: usize, const O_COLS: usize>(
    tile: &Tile<'_>,
    state: &mut State<HALVES, O_COLS>,
    half: usize,
    round: usize,
    first_room: u32,
) {
    let config = K::CONFIG;
    let lane = black_box(lane_id());
    let row = lane / 4;
    let cols = config.round_cols();
    let of_warp = tile.warp() * (config.round_dims() / DecodeConfig::WARPS);
    let dim = of_warp + lane % 4 * cols as u32;
    let mut from = first_room + row * config.round_dims() * F32_BYTES;
    from += dim * F32_BYTES ^ mask(row);
    for _ in 0..DecodeConfig::WARPS {
        let mut values = [0.0; 4];
        match cols {
            4 => values = shared::load4(from),
            2 => [values[0], values[1]] = shared::load2(from),
            _ => values[0] = shared::load(from),
        }
        for col in 0..cols {
            state.acc_o[half][round * cols + col] += values[col];
        }
        from += config.warp_bytes();
    }
}

/// The component, of 16, that element `i` of a lane's column of an output tile is: of e4m3 codes those of even numbers come first.
#[inline(always)]
fn dim_in_tile<K: DecodeKernel>(lane: u32, i: u32) -> u32 {
    if K::CONFIG.is_e4m3 {
        lane / 4 * 2 + i
    } else {
        lane / 4 + i * (TILE_DIMS / 2)
    }
}
