//! A step of a warp: scores, probabilities and output of its own keys. No other warp has a part in it.

use cuda_std::cp_async::{commit_group, copy16, wait_group};
use cuda_std::half::Half;
use cuda_std::ldmatrix::{load_x4, load_x4_transposed};
use cuda_std::shared;
use cuda_std::thread::sync_threads;
use cuda_std::warp::{any, broadcast, lane_id, reduce_max, sync_warp};

use super::DecodeKernel;
use super::codes::{self, NanCodes, Scales};
use super::loader::gather;
use super::tile::Tile;
use super::work::Word;
use crate::config::decode::DecodeConfig;
use crate::layout::fragment::{k_row_vec16, row_column};
use crate::layout::swizzle::{VEC16_BYTES, VEC16_ELEMS, offset, row_bytes, row_vec16s};
use crate::math::{exp2, fma, max};
use crate::mma::Element;
use crate::mma::accumulator::Row;
use crate::mma::gemm::{LaneAddress, Operand, multiply};
use crate::tile::black_box;
use crate::tile::mask::apply_mask;
use crate::units::{HALF_BYTES, SMALLEST_EXPONENT};

/// Bits that a row's scores may be above its maximum so far before it moves, and what was accumulated is rescaled. f16 holds
/// probabilities of as many bits above 1.
pub const SLACK: f32 = 6.0;

/// A lane's scores of its warp's keys: of a row of each half, two keys of each 8.
pub type Scores<const HALVES: usize, const S_COLS: usize> = [[f32; S_COLS]; HALVES];

/// Q Kᵀ before it is complete, in two sums, so that an instruction does not wait for the one before: of rows `lane / 4` and
/// `lane / 4 + 8` ([`QFragments::operand`]).
pub type Products<const S_COLS: usize> = [[[f32; S_COLS]; 2]; 2];

/// Operand B of each half and 16 of the warp's keys: probabilities, with the scales of values in them.
pub type Weights<const HALVES: usize> = [[[u32; 2]; HALVES]; DecodeConfig::MOST_V_STEPS];

/// Starts copying the tile's rows to shared memory at `stage`, as a group of its own.
///
/// # Safety
/// The whole block calls it, and nobody else accesses the stage until [`QFragments::load`] has returned.
#[inline(always)]
pub unsafe fn copy_q(tile: &Tile<'_>, stage: u32) {
    let head_dim = tile.config.head_dim;
    let row_pieces = row_vec16s(head_dim) as u32;
    let attention = &tile.params().forward.attention;
    let q = &attention.q;
    let (row_begin, row_end) = tile.rows();
    let mut piece = cuda_std::thread::thread_idx_x();
    while piece < black_box(tile.config.rows * row_pieces) {
        let (row, vec16) = (piece / row_pieces, piece % row_pieces);
        let in_tile = row_begin + row;
        let is_there = in_tile < row_end;
        let (head, q_row) = tile.head_and_q_row(in_tile.min(row_end - 1));
        let elements = tile.get(Word::Batch) as i64 * q.batch_stride
            + head as i64 * q.head_stride
            + q_row as i64 * q.seq_stride;
        let address = q.address.wrapping_add_signed(elements * HALF_BYTES as i64);
        let dims = if is_there { attention.head_dim } else { 0 };
        let dim = vec16 * VEC16_ELEMS as u32;
        let is_whole = q.dim_stride == 1
            && address.is_multiple_of(VEC16_BYTES as u64)
            && dim + VEC16_ELEMS as u32 <= dims;
        let to = stage + offset(head_dim, row, vec16);
        if is_whole {
            copy16(to, address + (dim * HALF_BYTES) as u64);
        } else {
            shared::store4_bits(to, gather(address, q.dim_stride, dim, dims));
        }
        piece += DecodeConfig::THREADS;
    }
    commit_group();
}

/// Fragments of Q, in registers.
pub struct QFragments<const HALVES: usize, const D_STEPS: usize> {
    steps: [Operand<HALVES>; D_STEPS],
    /// What products of this lane's rows with an e4m3 cache's keys are to be multiplied with.
    factors: [f32; HALVES],
}

impl<const HALVES: usize, const D_STEPS: usize> QFragments<HALVES, D_STEPS> {
    /// Loads the tile's rows by way of shared memory at `stage`, where they are copied to by the oldest but `KEPT` groups.
    ///
    /// # Safety
    /// The whole block calls it after [`copy_q`].
    #[inline(always)]
    pub unsafe fn load<K: DecodeKernel, const KEPT: usize>(k_scale: f32, stage: u32) -> Self {
        wait_group::<KEPT>();
        sync_threads();
        let mut fragments = Self::of_shared::<K>(stage);
        for factor in &mut fragments.factors {
            *factor *= k_scale;
        }
        // The stage is a slot that each warp copies its own keys into.
        sync_threads();
        fragments
    }

    #[inline(always)]
    unsafe fn of_shared<K: DecodeKernel>(stage: u32) -> Self {
        let head_dim = K::CONFIG.head_dim;
        if K::CONFIG.is_e4m3 {
            let (steps, factors) = codes::q_fragments::<K, HALVES, D_STEPS>(stage);
            return Self { steps, factors };
        }
        let lane = black_box(lane_id());
        let mut steps = [[[0; 2]; HALVES]; D_STEPS];
        for half in 0..HALVES {
            let row = half as u32 * DecodeConfig::HALF_ROWS + lane % 8;
            let address = LaneAddress::new(stage, head_dim, (row, lane / 8));
            for pair in 0..D_STEPS / 2 {
                let [a, b, c, d] = load_x4(address.at(0, 2 * pair));
                steps[2 * pair][half] = [a, b];
                steps[2 * pair + 1][half] = [c, d];
            }
        }
        let factors = [1.0; HALVES];
        Self { steps, factors }
    }

    /// Makes scores of products with an e4m3 cache's keys.
    #[inline(always)]
    pub fn scale<const S_COLS: usize>(
        &self,
        tile: &Tile<'_>,
        products: &mut Scores<HALVES, S_COLS>,
        scales: &Scales<S_COLS>,
    ) {
        scales.scale(tile, products, &self.factors);
    }

    /// Operand A of 16 components, for sum `step % 2`. Tiles of 8 rows have two steps' components in it, of which the other one's rows
    /// of a sum mean nothing: half of the operand would be empty otherwise, and take registers.
    #[inline(always)]
    pub fn operand(&self, step: usize) -> Operand<2> {
        if HALVES == 2 {
            return [self.steps[step][0], self.steps[step][HALVES - 1]];
        }
        let even = step / 2 * 2;
        [self.steps[even][0], self.steps[even + 1][0]]
    }

    /// Adds the products of part `part` of the warp's keys.
    ///
    /// # Safety
    /// The part has arrived in `slot` and is visible to the warp; all 32 lanes reach the same call.
    #[inline(always)]
    pub unsafe fn add_products<K: DecodeKernel, const S_COLS: usize>(
        &self,
        products: &mut Products<S_COLS>,
        tile: &Tile<'_>,
        slot: u32,
        part: usize,
    ) {
        let config = K::CONFIG;
        let lane = black_box(lane_id());
        let slot = tile.slot_address(slot);
        let steps = config.part_dims() / 16;
        let first_row = tile.warp_key();
        if config.is_e4m3 {
            for keys in 0..S_COLS / 2 {
                let row = first_row + 8 * keys as u32;
                let of_part = (part * steps, slot);
                codes::add_products::<K, HALVES, D_STEPS, S_COLS>(
                    products,
                    self,
                    of_part,
                    (keys, row),
                );
            }
            return;
        }
        let k = LaneAddress::new(slot, config.row_units(), (first_row + lane % 8, lane / 8));
        for pair in 0..steps / 2 {
            let step = part * steps + 2 * pair;
            let q = [self.operand(step), self.operand(step + 1)];
            for keys in 0..S_COLS / 2 {
                let key_bytes = 8 * keys as u32 * row_bytes(config.row_units());
                let [b0, b1, b2, b3] = load_x4(k.at(0, 2 * pair) + key_bytes);
                multiply::<K::Element, 2, S_COLS>(&mut products[0], 2 * keys, &q[0], [b0, b1]);
                multiply::<K::Element, 2, S_COLS>(&mut products[1], 2 * keys, &q[1], [b2, b3]);
            }
        }
    }
}

/// Products, complete.
#[inline(always)]
pub fn complete<const HALVES: usize, const S_COLS: usize>(
    products: &Products<S_COLS>,
) -> Scores<HALVES, S_COLS> {
    let mut scores = [[0.0; S_COLS]; HALVES];
    for i in 0..HALVES {
        for j in 0..S_COLS {
            // Sum 1 has the rows of tiles of 8 in its second half.
            let of_odd = if HALVES == 2 { i } else { 1 };
            scores[i][j] = products[0][i][j] + products[1][of_odd][j];
        }
    }
    scores
}

/// The largest of a lane's scores of a row.
#[inline(always)]
pub fn largest<const S_COLS: usize>(scores: &[f32; S_COLS]) -> f32 {
    let mut largest = max(scores[0], scores[1]);
    for j in 2..S_COLS {
        largest = max(largest, scores[j]);
    }
    largest
}

/// Transforms and masks the warp's scores of step `step`.
///
/// # Safety
/// All 32 lanes reach the same call.
#[inline(always)]
pub unsafe fn mask_scores<E: Element, const HALVES: usize, const S_COLS: usize>(
    tile: &Tile<'_>,
    step: u32,
    scores: &mut Scores<HALVES, S_COLS>,
) {
    let lane = black_box(lane_id());
    let begin = step * tile.config.step_keys() + tile.warp_key();
    let first_key = begin + row_column(lane, 0);
    let query = |i: usize| tile.query(tile.row(i));
    let column = |j: usize| row_column(0, j as u32) as i32;
    if !any(tile.get(Word::IsPlain) != 0) {
        let transform = tile.transform::<E>();
        let (kv_len, seq_q) = (tile.get(Word::KvLen), tile.get(Word::SeqQ));
        let corner = kv_len as i32 - seq_q as i32 - first_key as i32;
        let mut slopes = [0.0; HALVES];
        for i in 0..HALVES {
            slopes[i] = tile.slope(i);
        }
        transform.apply_by_row(scores, &slopes, |i| query(i) as i32 + corner, column);
    }
    let (first, last) = tile.seen_by_all();
    let end = begin + tile.config.warp_keys();
    if any((begin as i32) < first || end as i32 - 1 > last) {
        let kv_len = tile.get(Word::KvLen);
        apply_mask(scores, query, first_key, column, tile.band(), kv_len);
        if let Some(first_draft) = tile.first_draft() {
            for i in 0..HALVES {
                let seen = tile.sees_drafts(query(i), first_key as i32 - first_draft);
                for j in 0..S_COLS {
                    if seen >> row_column(0, j as u32) & 1 == 0 {
                        scores[i][j] = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }
}

/// What a warp has computed of its keys of a chunk: the state of rows `lane / 4` of each half, and the output, transposed: of
/// each half and 16 components, components `lane / 4` and 8 further of rows `lane % 4 · 2` and 1 further.
pub struct WarpState<const HALVES: usize, const D_STEPS: usize> {
    pub rows: [Row; HALVES],
    pub acc_o: [[[[f32; 2]; 2]; D_STEPS]; HALVES],
}

impl<const HALVES: usize, const D_STEPS: usize> WarpState<HALVES, D_STEPS> {
    /// No key seen.
    #[inline(always)]
    pub fn new() -> Self {
        Self {
            rows: [Row::new(); HALVES],
            acc_o: [[[[0.0; 2]; 2]; D_STEPS]; HALVES],
        }
    }

    /// Turns scores into probabilities under the maxima so far, and adds them to the sums.
    ///
    /// # Safety
    /// All 32 lanes reach the same call.
    #[inline(always)]
    pub unsafe fn add_scores<K: DecodeKernel, const S_COLS: usize>(
        &mut self,
        tile: &Tile<'_>,
        scores: &mut Scores<HALVES, S_COLS>,
        scales: &Scales<S_COLS>,
    ) -> Weights<HALVES> {
        let scale_log2 = f32::from_bits(tile.get(Word::ScaleLog2));
        let mut bits = [0.0; HALVES];
        let mut is_moved = false;
        for i in 0..HALVES {
            let reference = if K::CONFIG.is_e4m3 {
                scales.reference(tile, &scores[i], scale_log2)
            } else {
                fma(largest(&scores[i]), scale_log2, K::Element::SHIFT)
            };
            let row = &mut self.rows[i];
            let has_output = row.has_max();
            bits[i] = row.update_max_beyond(SLACK, reduce_max::<4>(reference));
            is_moved |= has_output && bits[i] != 0.0;
        }
        if any(is_moved) {
            self.scale(&bits, 1.0);
        }
        let mut p = [[[0; 2]; HALVES]; DecodeConfig::MOST_V_STEPS];
        for i in 0..HALVES {
            for j in 0..S_COLS {
                self.rows[i].accumulate(&mut scores[i][j], scale_log2);
            }
            if K::CONFIG.is_e4m3 {
                scales.weigh(tile, &mut scores[i]);
            }
            for keys in 0..S_COLS / 2 {
                let [even, odd] = [scores[i][2 * keys], scores[i][2 * keys + 1]];
                p[keys / 2][i][keys % 2] = K::Weight::cvt_pair(even, odd);
            }
        }
        p
    }

    /// Multiplies what was accumulated by 2^`bits` of its row, and the output by `factor` too. A row whose bits are 0 keeps its own.
    ///
    /// # Safety
    /// All 32 lanes reach the same call.
    #[inline(always)]
    pub unsafe fn scale(&mut self, bits: &[f32; HALVES], factor: f32) {
        let is_small = bits.map(|bits| bits < SMALLEST_EXPONENT as f32);
        let mut bits = *bits;
        if any(is_small.contains(&true)) {
            // By the square root twice, as f32 does not hold the factor; other rows by 1, so that theirs do not change.
            for i in 0..HALVES {
                bits[i] = if is_small[i] { 0.5 * bits[i] } else { bits[i] };
            }
            let mut roots = [1.0; HALVES];
            for i in 0..HALVES {
                roots[i] = if is_small[i] { exp2(bits[i]) } else { 1.0 };
            }
            self.multiply(&roots, 1.0);
        }
        self.multiply(&bits.map(exp2), factor);
    }

    /// Multiplies rows' sums by `factors`, and their outputs by `factor` too.
    #[inline(always)]
    unsafe fn multiply(&mut self, factors: &[f32; HALVES], factor: f32) {
        let lane = black_box(lane_id());
        for i in 0..HALVES {
            self.rows[i].rescale(factors[i]);
            for j in 0..2 {
                let factor = factor * broadcast(factors[i], lane % 4 * 8 + j as u32 * 4);
                for step in 0..D_STEPS {
                    for o in &mut self.acc_o[i][step] {
                        o[j] *= factor;
                    }
                }
            }
        }
    }

    /// Oᵀ += Vᵀ Pᵀ of part `part` of V; of an e4m3 cache `nan` takes in which components are NaN.
    ///
    /// # Safety
    /// The part has arrived in `slot` and is visible to the warp; all 32 lanes reach the same call.
    #[inline(always)]
    pub unsafe fn add_output<K: DecodeKernel>(
        &mut self,
        tile: &Tile<'_>,
        p: &Weights<HALVES>,
        (slot, part): (u32, usize),
        nan: &mut NanCodes,
    ) {
        let config = K::CONFIG;
        let slot = tile.slot_address(slot);
        let steps = config.part_dims() / 16;
        let first = part * steps;
        if config.is_e4m3 {
            codes::add_output::<K, HALVES, D_STEPS>(tile, slot, (first, steps), p, self, nan);
            return;
        }
        let (row, vec16) = k_row_vec16(black_box(lane_id()));
        let v = LaneAddress::new(slot, config.row_units(), (tile.warp_key() + row, vec16));
        for step in 0..steps {
            let [a0, a1, a2, a3] = load_x4_transposed(v.at(0, step));
            let v = [[a0, a2], [a1, a3]];
            for half in 0..HALVES {
                let acc_o = &mut self.acc_o[half][first + step];
                multiply::<K::Weight, 2, 2>(acc_o, 0, &v, p[0][half]);
            }
        }
    }
}

/// Waits until at most `KEPT` of this thread's copies are unfinished, and shows the others to the warp.
///
/// # Safety
/// All 32 lanes reach the same call.
#[inline(always)]
pub unsafe fn wait<const KEPT: usize>() {
    wait_group::<KEPT>();
    sync_warp();
}
