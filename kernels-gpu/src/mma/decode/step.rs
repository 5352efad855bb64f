//! A step: scores, probabilities, output.

use cuda_std::cp_async::wait_group;
use cuda_std::half::Half;
use cuda_std::ldmatrix::{load_x4, load_x4_transposed};
use cuda_std::thread::sync_threads;
use cuda_std::warp::{any, lane_id, reduce_max, sync_warp};
use cuda_std::{global, shared};

use super::codes::{self, NanCodes};
use super::loader::gather;
use super::tile::Tile;
use super::work::Word;
use super::{DecodeKernel, State};
use crate::config::decode::DecodeConfig;
use crate::layout::fragment::row_column;
use crate::layout::swizzle::{VEC16_BYTES, VEC16_ELEMS, offset, row_bytes, row_vec16s};
use crate::math::{exp2, fma, max};
use crate::mma::Element;
use crate::mma::gemm::{LaneAddress, Operand, multiply};
use crate::tile::black_box;
use crate::tile::mask::apply_mask;
use crate::units::{F32_BYTES, HALF_BYTES};

/// A lane's scores of a step: of two rows, two keys of each 8.
type Scores<const S_COLS: usize> = [[f32; S_COLS]; 2];

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
        if tile.config.is_e4m3 {
            return Self {
                steps: codes::q_fragments(stage, head_dim),
            };
        }
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
    pub unsafe fn scores<K: DecodeKernel, const S_COLS: usize>(
        &self,
        tile: &Tile<'_>,
        k_slot: u32,
    ) -> Scores<S_COLS> {
        let lane = black_box(lane_id());
        let first_row = tile.warp() * K::CONFIG.warp_keys;
        let mut scores = [[0.0; S_COLS]; 2];
        for keys in 0..S_COLS / 2 {
            let row = first_row + 8 * keys as u32;
            // Two sums, so that an instruction does not wait for the one before.
            let mut acc = [[[0.0; 2]; 2]; 2];
            if K::CONFIG.is_e4m3 {
                codes::scores::<K, K_STEPS>(&mut acc, &self.steps, k_slot, row);
            } else {
                let row = row + lane % 8;
                let k = LaneAddress::new(k_slot, K::CONFIG.head_dim, (row, lane / 8));
                for pair in 0..K_STEPS / 2 {
                    let [b0, b1, b2, b3] = load_x4(k.at(0, 2 * pair));
                    multiply::<K::Element, 2, 2>(&mut acc[0], 0, &self.steps[2 * pair], [b0, b1]);
                    let next = &self.steps[2 * pair + 1];
                    multiply::<K::Element, 2, 2>(&mut acc[1], 0, next, [b2, b3]);
                }
            }
            for i in 0..2 {
                for j in 0..2 {
                    scores[i][2 * keys + j] = acc[0][i][j] + acc[1][i][j];
                }
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
    /// Multiplies scores with the scales of their keys, of an e4m3 cache; returns those of the values.
    ///
    /// # Safety
    /// The keys of the slot have arrived.
    #[inline(always)]
    pub unsafe fn scale_scores<const S_COLS: usize>(
        &self,
        slot: u32,
        scores: &mut Scores<S_COLS>,
    ) -> [f32; S_COLS] {
        let config = self.tile.config;
        let mut of_values = [1.0; S_COLS];
        if !config.is_e4m3 {
            return of_values;
        }
        let first = self.tile.warp() * config.warp_keys + row_column(black_box(lane_id()), 0);
        let address = self.tile.scales_address(slot) + first * F32_BYTES;
        if self.tile.scales.k.address.is_some() {
            for keys in 0..S_COLS / 2 {
                let [a, b] = shared::load2(address + 8 * keys as u32 * F32_BYTES);
                for i in 0..2 {
                    scores[i][2 * keys] *= a;
                    scores[i][2 * keys + 1] *= b;
                }
            }
        }
        if self.tile.scales.v.address.is_some() {
            let address = address + config.scales_bytes();
            for keys in 0..S_COLS / 2 {
                let [a, b] = shared::load2(address + 8 * keys as u32 * F32_BYTES);
                of_values[2 * keys] = a;
                of_values[2 * keys + 1] = b;
            }
        }
        of_values
    }

    /// Transforms and masks the scores of step `step`, and shows their maxima to the other warps.
    ///
    /// # Safety
    /// All 32 lanes reach the same call; nobody reads the maxima.
    #[inline(always)]
    pub unsafe fn show_maxima<E: Element, const S_COLS: usize>(
        &self,
        step: u32,
        scores: &mut Scores<S_COLS>,
    ) {
        let tile = self.tile;
        let lane = black_box(lane_id());
        let begin = step * tile.config.step_keys();
        let first_key = begin + tile.warp() * tile.config.warp_keys + row_column(lane, 0);
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
        let end = begin + tile.config.step_keys();
        if any((begin as i32) < first || end as i32 - 1 > last) {
            let kv_len = tile.get(Word::KvLen);
            apply_mask(scores, query, first_key, column, tile.band(), kv_len);
        }
        for i in 0..2 {
            let mut largest = max(scores[i][0], scores[i][1]);
            for j in 2..S_COLS {
                largest = max(largest, scores[i][j]);
            }
            let largest = reduce_max::<4>(largest);
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
    pub unsafe fn show_probabilities<K: DecodeKernel, const O_COLS: usize, const S_COLS: usize>(
        &self,
        scores: &mut Scores<S_COLS>,
        scales: &[f32; S_COLS],
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
            for j in 0..S_COLS {
                state.rows[i].accumulate(&mut scores[i][j], scale_log2);
                if K::CONFIG.is_e4m3 {
                    scores[i][j] *= scales[j];
                }
            }
            let row = lane / 4 + i as u32 * 8;
            for keys in 0..S_COLS / 2 {
                let pair = K::Weight::cvt_pair(scores[i][2 * keys], scores[i][2 * keys + 1]);
                let vec16 = self.tile.warp() * (S_COLS as u32 / 2) + keys as u32;
                let place = offset(K::CONFIG.step_keys() as usize, row, vec16);
                shared::store_bits(p_smem::<K>() + place + lane % 4 * 2 * HALF_BYTES, pair);
            }
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

/// O += P V of the warp's columns; of an e4m3 cache `nan` takes in which are NaN.
///
/// # Safety
/// P and V are visible; all 32 lanes reach the same call.
#[inline(always)]
pub unsafe fn add_output<K: DecodeKernel, const O_COLS: usize>(
    tile: &Tile<'_>,
    v_slot: u32,
    state: &mut State<O_COLS>,
    nan: &mut NanCodes<O_COLS>,
) {
    const BLOCK_KEYS: u32 = 32;
    let head_dim = K::CONFIG.head_dim;
    let lane = black_box(lane_id());
    let p = LaneAddress::q(p_smem::<K>(), K::CONFIG.step_keys() as usize, lane);
    for block in 0..K::CONFIG.step_keys() / BLOCK_KEYS {
        let mut p_frag = [[[0; 2]; 2]; 2];
        for half in 0..2 {
            let a = load_x4(p.at(0, 2 * block as usize + half));
            p_frag[half] = [[a[0], a[2]], [a[1], a[3]]];
        }
        if K::CONFIG.is_e4m3 {
            codes::add_output::<K, O_COLS>(tile, v_slot, block * BLOCK_KEYS, &p_frag, state, nan);
            continue;
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
fn p_smem<K: DecodeKernel>() -> u32 {
    shared::dynamic_base() + K::CONFIG.p_offset()
}
