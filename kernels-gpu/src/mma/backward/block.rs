//! One block of the passing side: scores, P and dS, and what they add to the sums.

use cuda_std::half::Half;
use cuda_std::named_barrier;
use cuda_std::thread::{sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, sync_warp};

use super::MmaBackwardKernel;
use super::dq::HeadSums;
use super::gemm::{add_accumulators, add_product, product_of_columns, product_of_rows, store_tile};
use super::keep_words::KeepWords;
use super::pairs::{Pairs, Slope};
use super::passing::Passing;
use super::sums::{Attempt, Sums};
use super::tile::{Smem, Step, Tile};
use crate::backward::exponent;
use crate::config::mma_backward::{MmaBackwardConfig, WarpTile};
use crate::layout::fragment::{TILE_K, TILE_N, a_row_vec16, k_row_vec16, v_row_vec16};
use crate::mma::gemm::LaneAddress;
use crate::modifiers::Modifiers;
use crate::tile::black_box;
use crate::units::pow2;

/// Numbers of barriers; 0 is the whole block's, at one place of the program. Groups have none where halves take turns.
pub const TURNS_BARRIER: u32 = 1;
const BLOCK_BARRIER: u32 = 2;
const FIRST_GROUP_BARRIER: u32 = 1;

/// One block of the passing side, and how it is taken in.
pub struct Block<'a, K: MmaBackwardKernel> {
    pub tile: &'a Tile<'a, K>,
    pub now: Step,
    pub attempt: Attempt,
    /// Whether the warp belongs to the half that comes later, where halves take turns.
    pub is_late: bool,
}

impl<K: MmaBackwardKernel> Block<'_, K> {
    /// Takes the block, but for its part of dq, which only a warp that is late adds here. The next block is asked for.
    ///
    /// # Safety
    /// As [`backward_tile`](super::backward_tile); the block has arrived and is visible, and with one stage its first operand
    /// if dq is not added up.
    #[inline(always)]
    pub unsafe fn take<
        const S_ROWS: usize,
        const S_COLS: usize,
        const O_ROWS: usize,
        const O_COLS: usize,
        const Q_ROWS: usize,
        const Q_COLS: usize,
    >(
        &self,
        passing: &mut Passing<K>,
        sums: &mut Sums<O_ROWS, O_COLS>,
    ) {
        let thread = black_box(thread_idx_x());
        let (lane, warp) = (thread % WARP_SIZE, thread / WARP_SIZE);
        let kept = Smem::kept::<K>();
        let stage = Smem::passing::<K>(passing.stage);
        let attempt = self.attempt;
        let [ds_smem, p_smem] = Smem::ds_and_p::<K>(passing.stage);
        if K::SCALES_DS {
            self.take_exponent(sums);
        }

        // S = A aᵀ, dP = B bᵀ
        let scores = |kept: u32, passing: u32| {
            let (row, col) = K::CONFIG.scores().origin(warp);
            let (a, b) = (a_row_vec16(lane), k_row_vec16(lane));
            let head_dim = K::CONFIG.head_dim;
            let a = LaneAddress::new(kept, head_dim, (row + a.0, a.1));
            let b = LaneAddress::new(passing, head_dim, (col + b.0, b.1));
            // SAFETY: the operands have arrived before it is called.
            unsafe { product_of_rows::<K::Element, S_ROWS, S_COLS>(a, b, head_dim / TILE_K) }
        };
        let pairs = Pairs {
            tile: self.tile,
            step: self.now,
            stage: passing.stage,
            lane,
            warp,
        };
        pairs.prefetch_keep_words::<S_ROWS>();

        // P = 2^(S − lse)
        let mut p = scores(kept[0], stage[0]);
        if !K::CONFIG.takes_turns {
            // Not before: other warps' products hide what it takes to find the next block.
            passing.load_next(self.now);
        }
        let words = pairs.keep_words::<S_ROWS, S_COLS>();
        let keeps_p = K::CONFIG.multiplies_registers();
        let takes_second = attempt.takes_second::<K>();
        // Told apart when the kernel is compiled; the rest stands here whole, as moving it moves its branches in the PTX.
        if K::Modifiers::HAS_SLOPE {
            self.weigh(&pairs, words, &mut p, &mut sums.second, stage[1]);
        } else if pairs.has_slope() {
            let mut slope = [[1.0; S_COLS]; S_ROWS];
            pairs.probabilities(&mut p, Slope::Into(&mut slope));
            if !keeps_p && takes_second {
                store_p(&pairs, &p, words, p_smem);
            }
            if keeps_p {
                self.add_registers(1, &mut sums.second, &p, words, stage[1], &pairs);
            }
            for i in 0..S_ROWS {
                for j in 0..S_COLS {
                    p[i][j] *= slope[i][j];
                }
            }
        } else {
            pairs.probabilities(&mut p, Slope::One);
            if !keeps_p && takes_second {
                store_p(&pairs, &p, words, p_smem);
            }
        }
        // Not in the branch: ptxas then needs more registers.
        if !K::Modifiers::HAS_SLOPE && keeps_p && !pairs.has_slope() {
            self.add_registers(1, &mut sums.second, &p, words, stage[1], &pairs);
        }

        // dS = P ∘ (dP − delta)
        passing.wait_second();
        let mut ds = scores(kept[1], stage[1]);
        let words = pairs.keep_words_again::<S_ROWS, S_COLS>(words);
        pairs.differentiate(&mut ds, &p, words, pow2(-sums.exponent));
        if K::CONFIG.takes_turns && !attempt.is_careful() && !self.is_late {
            // Nobody reads dS of the block before.
            named_barrier::sync(TURNS_BARRIER, K::CONFIG.threads());
        }
        if attempt.takes_first() && (K::ADDS_DQ || !keeps_p) {
            store(&pairs, &ds, ds_smem);
        }

        if keeps_p {
            self.add_registers(0, &mut sums.first, &ds, words, stage[0], &pairs);
            passing.advance();
            return;
        }
        if K::CONFIG.takes_turns {
            passing.take_turns(self.now, warp);
        } else {
            sync_group::<K>(warp);
        }
        let operand = if attempt.takes_first() { 0 } else { 1 };
        self.sanitize(stage[operand]);
        if self.is_late {
            self.add_dq::<Q_ROWS, Q_COLS>(ds_smem);
            if self.tile.next(self.now).is_some() {
                named_barrier::arrive(TURNS_BARRIER, K::CONFIG.threads());
            }
        }

        // dA += dS a
        if attempt.takes_first() {
            self.add(&mut sums.first, ds_smem, stage[0], warp, lane);
        }
        passing.release_first(self.now);

        // dB += P b
        if attempt.takes_second::<K>() {
            self.add(&mut sums.second, p_smem, stage[1], warp, lane);
        }
        passing.release_second(self.now);
        passing.advance();
    }

    /// As [`Block::take`] does where modifiers have a derivative: turns `q · k` into P, which takes part in dB or is stored for it, and
    /// then into P times the derivatives of scores.
    ///
    /// # Safety
    /// As [`Block::take`].
    #[inline(always)]
    unsafe fn weigh<
        const S_ROWS: usize,
        const S_COLS: usize,
        const O_ROWS: usize,
        const O_COLS: usize,
    >(
        &self,
        pairs: &Pairs<K>,
        words: KeepWords,
        p: &mut [[f32; S_COLS]; S_ROWS],
        second: &mut [[f32; O_COLS]; O_ROWS],
        operand: u32,
    ) {
        let mut slope = [[1.0; S_COLS]; S_ROWS];
        pairs.probabilities(p, Slope::Into(&mut slope));
        if K::CONFIG.multiplies_registers() {
            self.add_registers(1, second, p, words, operand, pairs);
        } else if self.attempt.takes_second::<K>() {
            let [_, p_smem] = Smem::ds_and_p::<K>(pairs.stage);
            store_p(pairs, p, words, p_smem);
        }
        for i in 0..S_ROWS {
            for j in 0..S_COLS {
                p[i][j] *= slope[i][j];
            }
        }
    }

    /// Takes what is not finite out of the operand at `smem` before a careful attempt multiplies with it, once the whole block's
    /// P or dS is known.
    ///
    /// # Safety
    /// As [`Block::take`].
    #[inline(always)]
    unsafe fn sanitize(&self, smem: u32) {
        if self.attempt.is_careful() {
            sync_block::<K>();
            self.attempt
                .marks::<K>()
                .sanitize(self.tile, self.now, smem);
            sync_block::<K>();
        }
    }

    /// `sum += values · operand`, the warp's part: dA += dS a, number 0, or dB += P b, number 1, if the attempt takes it.
    ///
    /// # Safety
    /// As [`Block::add`].
    #[inline(always)]
    unsafe fn add_registers<
        const S_ROWS: usize,
        const S_COLS: usize,
        const ROWS: usize,
        const COLS: usize,
    >(
        &self,
        number: usize,
        sum: &mut [[f32; COLS]; ROWS],
        values: &[[f32; S_COLS]; S_ROWS],
        words: KeepWords,
        operand: u32,
        pairs: &Pairs<K>,
    ) {
        let takes = if number == 0 {
            self.attempt.takes_first()
        } else {
            self.attempt.takes_second::<K>()
        };
        if !takes {
            return;
        }
        self.sanitize(operand);
        let (_, col) = K::CONFIG.output().origin(pairs.warp);
        let b = v_row_vec16(pairs.lane);
        let vec16 = col / TILE_N as u32 + b.1;
        let b = LaneAddress::new(operand, K::CONFIG.head_dim, (b.0, vec16));
        let pair = |i: usize, j: usize| match number {
            1 => pairs.kept_pair(values, words, i, j),
            _ => K::Element::cvt_pair(values[i][j], values[i][j + 1]),
        };
        add_accumulators::<K::Element, ROWS, COLS>(sum, pair, b, K::CONFIG.block_n / TILE_K);
    }

    /// `sum += tile · operand`, the warp's part.
    ///
    /// # Safety
    /// Both are in shared memory and visible; all 32 lanes must reach the same call.
    #[inline(always)]
    unsafe fn add<const ROWS: usize, const COLS: usize>(
        &self,
        sum: &mut [[f32; COLS]; ROWS],
        tile: u32,
        operand: u32,
        warp: u32,
        lane: u32,
    ) {
        let MmaBackwardConfig {
            head_dim, block_n, ..
        } = K::CONFIG;
        let (row, col) = K::CONFIG.output().origin(warp);
        let (a, b) = (a_row_vec16(lane), v_row_vec16(lane));
        let a = LaneAddress::new(tile, block_n, (row + a.0, a.1));
        let b = LaneAddress::new(operand, head_dim, (b.0, col / TILE_N as u32 + b.1));
        add_product::<K::Element, ROWS, COLS>(sum, a, b, block_n / TILE_K);
    }

    /// Adds the block's part of dq, dSᵀ A, to what is in global memory, where dS is at `ds_smem`.
    ///
    /// # Safety
    /// As [`Block::take`]; dS is visible.
    #[inline(always)]
    pub unsafe fn add_dq<const ROWS: usize, const COLS: usize>(&self, ds_smem: u32) {
        let thread = black_box(thread_idx_x());
        let (lane, warp) = (thread % WARP_SIZE, thread / WARP_SIZE);
        let MmaBackwardConfig {
            head_dim,
            block_m,
            block_n,
            ..
        } = K::CONFIG;
        let tile: WarpTile = K::CONFIG.dq();
        let (row, first_col) = tile.origin(warp);
        let (a, b) = (k_row_vec16(lane), v_row_vec16(lane));
        let a = LaneAddress::new(ds_smem, block_n, (a.0, row / TILE_N as u32 + a.1));
        for part in 0..K::CONFIG.dq_parts {
            let col = first_col + (part * tile.cols) as u32;
            let vec16 = col / TILE_N as u32 + b.1;
            let b = LaneAddress::new(Smem::kept::<K>()[0], head_dim, (b.0, vec16));
            let acc = product_of_columns::<K::Element, ROWS, COLS>(a, b, block_m / TILE_K);
            // Not before: its address would take registers from the product.
            let sums = HeadSums::new(self.tile, self.now);
            sums.add(&acc, (self.now.begin + row, col), lane);
        }
    }

    /// Takes κ from a query head's rows where its first block passes, and rescales the sums to it.
    ///
    /// # Safety
    /// As [`Block::take`].
    #[inline(always)]
    unsafe fn take_exponent<const ROWS: usize, const COLS: usize>(
        &self,
        sums: &mut Sums<ROWS, COLS>,
    ) {
        if !self.tile.begins_head(self.now) {
            return;
        }
        let (sequence, head) = (self.tile.sequence(), self.tile.query_head(self.now.head));
        let exponent = exponent::of_head(self.tile.params, &sequence, sequence.seq_q, head);
        if K::ADDS_DQ && thread_idx_x() == 0 {
            exponent::tell(self.tile.params, self.tile.batch(), head, exponent);
        }
        let factor = pow2(sums.exponent - exponent);
        sums.exponent = exponent;
        for row in &mut sums.first {
            for sum in row {
                *sum *= factor;
            }
        }
    }
}

/// Writes what the warp has of P to the tile at `smem`, rounded, 0 where it is dropped.
///
/// # Safety
/// Nobody reads the warp's part of the tile between the barriers before and after.
#[inline(always)]
unsafe fn store_p<K: MmaBackwardKernel, const ROWS: usize, const COLS: usize>(
    pairs: &Pairs<K>,
    p: &[[f32; COLS]; ROWS],
    words: KeepWords,
    smem: u32,
) {
    if pairs.drops() {
        let cols = K::CONFIG.block_n;
        let packed = |i, j| pairs.kept_pair(p, words, i, j);
        store_tile::<ROWS, COLS>(packed, smem, cols, pairs.origin(), pairs.lane);
    } else {
        store(pairs, p, smem);
    }
}

/// Writes what the warp has of a tile of P or dS to `smem`, rounded.
///
/// # Safety
/// As [`store_p`].
#[inline(always)]
unsafe fn store<K: MmaBackwardKernel, const ROWS: usize, const COLS: usize>(
    pairs: &Pairs<K>,
    values: &[[f32; COLS]; ROWS],
    smem: u32,
) {
    let cols = K::CONFIG.block_n;
    let packed = |i: usize, j: usize| K::Element::cvt_pair(values[i][j], values[i][j + 1]);
    store_tile::<ROWS, COLS>(packed, smem, cols, pairs.origin(), pairs.lane);
}

/// Waits for the whole block, whose halves may be at different places of the program where they take turns.
///
/// # Safety
/// All threads reach this call, or another.
#[inline(always)]
pub unsafe fn sync_block<K: MmaBackwardKernel>() {
    if K::CONFIG.takes_turns {
        named_barrier::sync(BLOCK_BARRIER, K::CONFIG.threads());
    } else {
        sync_threads();
    }
}

/// Waits for the warps of `warp`'s group.
///
/// # Safety
/// All of their threads must reach the same call.
#[inline(always)]
unsafe fn sync_group<K: MmaBackwardKernel>(warp: u32) {
    let threads = K::CONFIG.group_threads();
    if threads == WARP_SIZE {
        sync_warp();
    } else {
        named_barrier::sync(FIRST_GROUP_BARRIER + warp / (threads / WARP_SIZE), threads);
    }
}
