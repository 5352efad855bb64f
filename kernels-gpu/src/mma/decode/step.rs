//! A step of a warp: scores, probabilities and output of its own keys. No other warp has a part in it.

use cuda_std::cp_async::{commit_group, copy16, wait_group};
use cuda_std::half::Half;
use cuda_std::ldmatrix::{load_x4, load_x4_transposed};
use cuda_std::shared;
use cuda_std::thread::sync_threads;
use cuda_std::warp::{any, broadcast, lane_id, reduce_max, sync_warp};

use super::DecodeKernel;
use super::codes::{self, NanCodes};
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
use crate::units::{F32_BYTES, HALF_BYTES};

/// Scores that a lane has of a row.
const S_COLS: usize = DecodeConfig::SCORE_COLS;

/// A lane's scores of its warp's keys: of a row of each half, two keys of each 8.
pub type Scores<const HALVES: usize> = [[f32; S_COLS]; HALVES];

/// Q Kᵀ before it is complete, in two sums, so that an instruction does not wait for the one before: of rows `lane / 4` and
/// `lane / 4 + 8`, the second of which means nothing where tiles have 8.
pub type Products = [[[f32; S_COLS]; 2]; 2];

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
}

impl<const HALVES: usize, const D_STEPS: usize> QFragments<HALVES, D_STEPS> {
    /// Loads the tile's rows by way of shared memory at `stage`, where they are copied to by the oldest but `KEPT` groups.
    ///
    /// # Safety
    /// The whole block calls it after [`copy_q`].
    #[inline(always)]
    pub unsafe fn load<const KEPT: usize>(tile: &Tile<'_>, stage: u32) -> Self {
        wait_group::<KEPT>();
        sync_threads();
        let fragments = Self::of_shared(tile, stage);
        // The stage is a slot that each warp copies its own keys into.
        sync_threads();
        fragments
    }

    #[inline(always)]
    unsafe fn of_shared(tile: &Tile<'_>, stage: u32) -> Self {
        let head_dim = tile.config.head_dim;
        if tile.config.is_e4m3 {
            return Self {
                steps: codes::q_fragments(stage, head_dim),
            };
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
        Self { steps }
    }

    /// Operand A of 16 components; rows that tiles do not have are zeros.
    #[inline(always)]
    pub fn operand(&self, step: usize) -> Operand<2> {
        let rows = &self.steps[step];
        [
            rows[0],
            if HALVES == 2 {
                rows[HALVES - 1]
            } else {
                [0; 2]
            },
        ]
    }

    /// Adds the products of part `part` of the warp's keys.
    ///
    /// # Safety
    /// The part has arrived in `slot` and is visible to the warp; all 32 lanes reach the same call.
    #[inline(always)]
    pub unsafe fn add_products<K: DecodeKernel>(
        &self,
        products: &mut Products,
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
                codes::add_products::<K, HALVES, D_STEPS>(products, self, of_part, (keys, row));
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
pub fn complete<const HALVES: usize>(products: &Products) -> Scores<HALVES> {
    let mut scores = [[0.0; S_COLS]; HALVES];
    for i in 0..HALVES {
        for j in 0..S_COLS {
            scores[i][j] = products[0][i][j] + products[1][i][j];
        }
    }
    scores
}

/// Scales of a lane's keys, and of the values, of an e4m3 cache.
pub struct Scales {
    k: [f32; S_COLS],
    v: [f32; S_COLS],
}

impl Scales {
    pub const ONE: Self = Self {
        k: [1.0; S_COLS],
        v: [1.0; S_COLS],
    };

    /// # Safety
    /// The keys of the slot have arrived.
    #[inline(always)]
    pub unsafe fn load(tile: &Tile<'_>, slot: u32) -> Self {
        let mut scales = Self::ONE;
        let first = tile.warp_key() + row_column(black_box(lane_id()), 0);
        let address = tile.scales_address(slot) + first * F32_BYTES;
        for keys in 0..S_COLS / 2 {
            let address = address + 8 * keys as u32 * F32_BYTES;
            if tile.scales.k.address.is_some() {
                [scales.k[2 * keys], scales.k[2 * keys + 1]] = shared::load2(address);
            }
            if tile.scales.v.address.is_some() {
                let address = address + tile.config.scales_bytes();
                [scales.v[2 * keys], scales.v[2 * keys + 1]] = shared::load2(address);
            }
        }
        scales
    }

    #[inline(always)]
    pub fn scale<const HALVES: usize>(&self, scores: &mut Scores<HALVES>) {
        for row in scores {
            for j in 0..S_COLS {
                row[j] *= self.k[j];
            }
        }
    }
}

/// Transforms and masks the warp's scores of step `step`.
///
/// # Safety
/// All 32 lanes reach the same call.
#[inline(always)]
pub unsafe fn mask_scores<E: Element, const HALVES: usize>(
    tile: &Tile<'_>,
    step: u32,
    scores: &mut Scores<HALVES>,
) {
    let lane = black_box(lane_id());
    let begin = step * DecodeConfig::STEP_KEYS + tile.warp_key();
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
    let end = begin + DecodeConfig::WARP_KEYS;
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

    /// Turns scores into probabilities under the maxima so far, and adds them to the sums. Returns operand B of each half, with
    /// the values' scales in it.
    ///
    /// # Safety
    /// All 32 lanes reach the same call.
    #[inline(always)]
    pub unsafe fn add_scores<K: DecodeKernel>(
        &mut self,
        tile: &Tile<'_>,
        scores: &mut Scores<HALVES>,
        scales: &Scales,
    ) -> [[u32; 2]; HALVES] {
        let scale_log2 = f32::from_bits(tile.get(Word::ScaleLog2));
        let mut bits = [0.0; HALVES];
        let mut is_moved = false;
        for i in 0..HALVES {
            let mut largest = max(scores[i][0], scores[i][1]);
            for j in 2..S_COLS {
                largest = max(largest, scores[i][j]);
            }
            let largest = reduce_max::<4>(largest);
            bits[i] = self.rows[i].update_max(fma(largest, scale_log2, K::Element::SHIFT));
            is_moved |= bits[i] != 0.0;
        }
        if any(is_moved) {
            self.rescale(&bits);
        }
        let mut p = [[0; 2]; HALVES];
        for i in 0..HALVES {
            for j in 0..S_COLS {
                self.rows[i].accumulate(&mut scores[i][j], scale_log2);
                if K::CONFIG.is_e4m3 {
                    scores[i][j] *= scales.v[j];
                }
            }
            for keys in 0..2 {
                p[i][keys] = K::Weight::cvt_pair(scores[i][2 * keys], scores[i][2 * keys + 1]);
            }
        }
        p
    }

    /// Multiplies what was accumulated by 2^`bits`, by its square root twice as it may be too small for f32. A row whose bits
    /// are 0 keeps its own.
    #[inline(always)]
    unsafe fn rescale(&mut self, bits: &[f32; HALVES]) {
        let lane = black_box(lane_id());
        for i in 0..HALVES {
            let root = exp2(0.5 * bits[i]);
            self.rows[i].row_sum = self.rows[i].row_sum * root * root;
            for j in 0..2 {
                let root = broadcast(root, lane % 4 * 8 + j as u32 * 4);
                for step in 0..D_STEPS {
                    for o in &mut self.acc_o[i][step] {
                        o[j] = o[j] * root * root;
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
        p: &[[u32; 2]; HALVES],
        (slot, part): (u32, usize),
        nan: &mut NanCodes<D_STEPS>,
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
                multiply::<K::Weight, 2, 2>(acc_o, 0, &v, p[half]);
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
