//! A step of 64 keys: scores, probabilities, output.

use cuda_std::cp_async::wait_group;
use cuda_std::half::Half;
use cuda_std::ldmatrix::{load_x4, load_x4_transposed};
use cuda_std::thread::sync_threads;
use cuda_std::warp::{any, lane_id, reduce_max, sync_warp};
use cuda_std::{global, shared};

use super::loader::gather;
use super::tile::Tile;
use super::work::Word;
use super::{DecodeKernel, State};
use crate::config::decode::DecodeConfig;
use crate::layout::fragment::{TILE_K, row_column};
use crate::layout::swizzle::{VEC16_BYTES, VEC16_ELEMS, offset, row_bytes, row_vec16s};
use crate::math::{exp2, fma, max};
use crate::mma::Element;
use crate::mma::gemm::{LaneAddress, Operand, multiply};
use crate::tile::black_box;
use crate::tile::mask::apply_mask;
use crate::units::{F32_BYTES, HALF_BYTES};

/// A lane's scores of a step: two keys of two rows.
type Scores = [[f32; 2]; 2];

/// Fragments of Q, in registers.
pub struct QFragments<const K_STEPS: usize> {
    steps: [Operand<2>; K_STEPS],
}

impl<const K_STEPS: usize> QFragments<K_STEPS> {
    /// Loads the tile's rows by way of shared memory at `stage`.
    ///
    /// # Safety
    /// The whole block calls it; nobody else accesses the stage, and nobody writes it before the next barrier after this.
    #[inline(always)]
    pub unsafe fn load(tile: &Tile<'_>, stage: u32) -> Self {
        let head_dim = tile.config.head_dim;
        let row_pieces = row_vec16s(head_dim) as u32;
        let attention = &tile.params().forward.attention;
        let q = &attention.q;
        let (row_begin, row_end) = tile.rows();
        let mut piece = cuda_std::thread::thread_idx_x();
        while piece < black_box(DecodeConfig::ROWS * row_pieces) {
            let (row, vec16) = (piece / row_pieces, piece % row_pieces);
            let in_tile = row_begin + row;
            let is_there = in_tile < row_end;
            let in_tile = in_tile.min(row_end - 1);
            let elements = tile.get(Word::Batch) as i64 * q.batch_stride
                + tile.head(in_tile) as i64 * q.head_stride
                + tile.query(in_tile) as i64 * q.seq_stride;
            let address = q.address.wrapping_add_signed(elements * HALF_BYTES as i64);
            let dims = if is_there { attention.head_dim } else { 0 };
            let dim = vec16 * VEC16_ELEMS as u32;
            let is_whole = q.dim_stride == 1
                && address.is_multiple_of(VEC16_BYTES as u64)
                && dim + VEC16_ELEMS as u32 <= dims;
            let words = if is_whole {
                global::load4_bits(address + (dim * HALF_BYTES) as u64)
            } else {
                gather(address, q.dim_stride, dim, dims)
            };
            shared::store4_bits(stage + offset(head_dim, row, vec16), words);
            piece += DecodeConfig::THREADS;
        }
        sync_threads();
        let address = LaneAddress::q(stage, head_dim, lane_id());
        let mut steps = [[[0; 2]; 2]; K_STEPS];
        for step in 0..K_STEPS {
            let a = load_x4(address.at(0, step));
            steps[step] = [[a[0], a[2]], [a[1], a[3]]];
        }
        Self { steps }
    }

    /// S = Q Kᵀ of the warp's keys.
    ///
    /// # Safety
    /// K has arrived and is visible to the warp; all 32 lanes reach the same call.
    #[inline(always)]
    pub unsafe fn scores<K: DecodeKernel>(&self, tile: &Tile<'_>, k_slot: u32) -> Scores {
        let lane = black_box(lane_id());
        let row = tile.warp() * DecodeConfig::WARP_KEYS + lane % 8;
        let k = LaneAddress::new(k_slot, K::CONFIG.head_dim, (row, lane / 8));
        // Two sums, so that an instruction does not wait for the one before.
        let mut acc = [[[0.0; 2]; 2]; 2];
        for pair in 0..K_STEPS / 2 {
            let [b0, b1, b2, b3] = load_x4(k.at(0, 2 * pair));
            multiply::<K::Element, 2, 2>(&mut acc[0], 0, &self.steps[2 * pair], [b0, b1]);
            multiply::<K::Element, 2, 2>(&mut acc[1], 0, &self.steps[2 * pair + 1], [b2, b3]);
        }
        let mut scores = [[0.0; 2]; 2];
        for i in 0..2 {
            for j in 0..2 {
                scores[i][j] = acc[0][i][j] + acc[1][i][j];
            }
        }
        scores
    }
}

/// What steps have in common.
pub struct Steps<'a> {
    pub tile: &'a Tile<'a>,
}

impl Steps<'_> {
    /// Transforms and masks the scores of step `step`, and shows their maxima to the other warps.
    ///
    /// # Safety
    /// All 32 lanes reach the same call; nobody reads the maxima.
    #[inline(always)]
    pub unsafe fn show_maxima<E: Element>(&self, step: u32, scores: &mut Scores) {
        let tile = self.tile;
        let lane = black_box(lane_id());
        let begin = step * DecodeConfig::STEP_KEYS;
        let first_key = begin + tile.warp() * DecodeConfig::WARP_KEYS + row_column(lane, 0);
        let query = |i: usize| tile.query(tile.row(i));
        let column = |j: usize| row_column(0, j as u32) as i32;
        let transform = tile.transform::<E>();
        if !any(transform.is_plain) {
            let seq_q = tile.params().forward.attention.seq_q;
            let corner = tile.get(Word::KvLen) as i32 - seq_q as i32 - first_key as i32;
            let slopes = [tile.slope(0), tile.slope(1)];
            transform.apply_by_row(scores, &slopes, |i| query(i) as i32 + corner, column);
        }
        let (first, last) = tile.seen_by_all();
        let end = begin + DecodeConfig::STEP_KEYS;
        if any((begin as i32) < first || end as i32 - 1 > last) {
            let kv_len = tile.get(Word::KvLen);
            apply_mask(scores, query, first_key, column, tile.band(), kv_len);
        }
        for i in 0..2 {
            let largest = reduce_max::<4>(max(scores[i][0], scores[i][1]));
            let largest = fma(largest, transform.scale_log2, E::SHIFT);
            if lane.is_multiple_of(4) {
                let row = lane / 4 + i as u32 * 8;
                shared::store(maximum(row) + tile.warp() * F32_BYTES, largest);
            }
        }
    }

    /// Takes the maxima in, and turns the scores into probabilities, which the other warps get.
    ///
    /// # Safety
    /// As [`show_maxima`](Self::show_maxima); the maxima are visible, and nobody reads P.
    #[inline(always)]
    pub unsafe fn show_probabilities<K: DecodeKernel, const O_COLS: usize>(
        &self,
        scores: &mut Scores,
        state: &mut State<O_COLS>,
    ) {
        let lane = black_box(lane_id());
        let scale_log2 = self.tile.transform::<K::Element>().scale_log2;
        let mut bits = [0.0; 2];
        for i in 0..2 {
            let row = maximum(lane / 4 + i as u32 * 8);
            let [a, b, c, d] = shared::load4(row);
            let [e, f, g, h] = shared::load4(row + 4 * F32_BYTES);
            let largest = max(max(max(a, b), max(c, d)), max(max(e, f), max(g, h)));
            bits[i] = state.rows[i].update_max(largest);
        }
        if any(bits[0] != 0.0 || bits[1] != 0.0) {
            rescale(state, bits);
        }
        for i in 0..2 {
            for j in 0..2 {
                state.rows[i].accumulate(&mut scores[i][j], scale_log2);
            }
            let pair = K::Element::cvt_pair(scores[i][0], scores[i][1]);
            let row = lane / 4 + i as u32 * 8;
            let vec16 = offset(DecodeConfig::STEP_KEYS as usize, row, self.tile.warp());
            shared::store_bits(p_smem() + vec16 + lane % 4 * 2 * HALF_BYTES, pair);
        }
    }
}

/// Multiplies what was accumulated by 2^`bits`, by its square root twice as it may be too small for f32. A row whose bits are
/// 0 keeps its own.
#[inline(always)]
fn rescale<const O_COLS: usize>(state: &mut State<O_COLS>, bits: [f32; 2]) {
    for i in 0..2 {
        let root = exp2(0.5 * bits[i]);
        state.rows[i].row_sum = state.rows[i].row_sum * root * root;
        for col in 0..O_COLS {
            state.acc_o[i][col] = state.acc_o[i][col] * root * root;
        }
    }
}

/// O += P V of the warp's columns.
///
/// # Safety
/// P and V are visible; all 32 lanes reach the same call.
#[inline(always)]
pub unsafe fn add_output<K: DecodeKernel, const O_COLS: usize>(
    tile: &Tile<'_>,
    v_slot: u32,
    state: &mut State<O_COLS>,
) {
    const BLOCK_KEYS: u32 = 32;
    let head_dim = K::CONFIG.head_dim;
    let lane = black_box(lane_id());
    let p = LaneAddress::q(p_smem(), DecodeConfig::STEP_KEYS as usize, lane);
    for block in 0..DecodeConfig::STEP_KEYS / BLOCK_KEYS {
        let mut p_frag = [[[0; 2]; 2]; 2];
        for half in 0..2 {
            let a = load_x4(p.at(0, 2 * block as usize + half));
            p_frag[half] = [[a[0], a[2]], [a[1], a[3]]];
        }
        for part in 0..O_COLS / 2 {
            // 32 keys × 8 columns.
            let vec16 = tile.warp() * (O_COLS as u32 / 2) + part as u32;
            let row = block * BLOCK_KEYS * row_bytes(head_dim);
            let [b0, b1, b2, b3] = load_x4_transposed(v_slot + row + offset(head_dim, lane, vec16));
            multiply::<K::Element, 2, O_COLS>(&mut state.acc_o, 2 * part, &p_frag[0], [b0, b1]);
            multiply::<K::Element, 2, O_COLS>(&mut state.acc_o, 2 * part, &p_frag[1], [b2, b3]);
        }
    }
}

/// Waits until at most `KEPT` of this thread's copies are unfinished, and shows the others to the warp.
///
/// # Safety
/// All 32 lanes reach the same call.
#[inline(always)]
pub unsafe fn wait_k<const KEPT: usize>() {
    wait_group::<KEPT>();
    sync_warp();
}

/// Address of the maxima of a row.
#[inline(always)]
pub fn maximum(row: u32) -> u32 {
    let row = row * DecodeConfig::WARPS * F32_BYTES;
    shared::dynamic_base() + DecodeConfig::MAX_OFFSET + row
}

#[inline(always)]
fn p_smem() -> u32 {
    shared::dynamic_base() + DecodeConfig::P_OFFSET
}

const _: () = assert!(TILE_K * 4 == DecodeConfig::STEP_KEYS as usize);
