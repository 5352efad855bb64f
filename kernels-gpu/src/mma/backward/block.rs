//! One block of the passing side: scores, P and dS, and what they add to the sums.

use cuda_std::cp_async::{commit_group, wait_group};
use cuda_std::thread::{sync_threads, thread_idx_x};
use cuda_std::warp::WARP_SIZE;

use super::MmaBackwardKernel;
use super::dq::HeadSums;
use super::gemm::{add_product, product_of_columns, product_of_rows, store_tile};
use super::pairs::Pairs;
use super::passing::Passing;
use super::sums::{Attempt, Sums};
use super::tile::{Smem, Step, Tile};
use crate::backward::exponent;
use crate::config::mma_backward::{MmaBackwardConfig, WarpTile};
use crate::layout::fragment::{TILE_K, TILE_N, a_row_vec16, k_row_vec16, v_row_vec16};
use crate::mma::gemm::LaneAddress;
use crate::tile::black_box;
use crate::units::pow2;

/// One block of the passing side, and how it is taken in.
pub struct Block<'a, K> {
    pub tile: &'a Tile<'a, K>,
    pub now: Step,
    pub attempt: Attempt,
}

impl<K: MmaBackwardKernel> Block<'_, K> {
    /// Takes the block, and starts loading the next.
    ///
    /// # Safety
    /// As [`backward_tile`](super::backward_tile); the block is asked for.
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
        let [ds_smem, p_smem] = Smem::ds_and_p::<K>();
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
        let store = |tile: u32, values: &[[f32; S_COLS]; S_ROWS]| {
            let origin = K::CONFIG.scores().origin(warp);
            let value = |i: usize, j: usize| values[i][j];
            let cols = K::CONFIG.block_n;
            // SAFETY: nobody reads the tile between the barriers before and after.
            unsafe { store_tile::<K::Element, S_ROWS, S_COLS>(value, tile, cols, origin, lane) };
        };
        let attempt = self.attempt;
        let pairs = Pairs {
            tile: self.tile,
            step: self.now,
            stage: passing.stage,
            lane,
            warp,
        };

        // P = 2^(S − lse)
        passing.wait_first(self.now);
        let mut p = scores(kept[0], stage[0]);
        let mut slope = [[1.0; S_COLS]; S_ROWS];
        pairs.probabilities(&mut p, &mut slope);
        if attempt.takes_second {
            store(p_smem, &p);
        }
        if pairs.has_slope() {
            for i in 0..S_ROWS {
                for j in 0..S_COLS {
                    p[i][j] *= slope[i][j];
                }
            }
        }

        // dS = P ∘ (dP − delta)
        passing.wait_second();
        let mut ds = scores(kept[1], stage[1]);
        pairs.differentiate(&mut ds, &p, pow2(-sums.exponent));
        if attempt.takes_first {
            store(ds_smem, &ds);
        }
        sync_threads();
        if attempt.is_careful {
            let operand = if attempt.takes_first {
                stage[0]
            } else {
                stage[1]
            };
            attempt.marks::<K>().sanitize(self.tile, self.now, operand);
            sync_threads();
        }

        // dA += dS a
        if attempt.takes_first {
            self.add(&mut sums.first, ds_smem, stage[0], warp, lane);
        }
        passing.release_first(self.now);

        // dB += P b
        if attempt.takes_second {
            self.add(&mut sums.second, p_smem, stage[1], warp, lane);
        }
        passing.release_second(self.now);

        // dq += dSᵀ A, which the first attempt does
        if K::ADDS_DQ && !attempt.is_careful {
            self.add_dq::<Q_ROWS, Q_COLS>(ds_smem, pow2(sums.exponent), warp, lane);
        }
        passing.advance();
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

    /// Adds the block's part of dq to what is in global memory.
    ///
    /// # Safety
    /// As [`Block::take`]; dS is in shared memory and visible.
    #[inline(always)]
    unsafe fn add_dq<const ROWS: usize, const COLS: usize>(
        &self,
        ds_smem: u32,
        factor: f32,
        warp: u32,
        lane: u32,
    ) {
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
            sums.add(&acc, factor, (self.now.begin + row, col), lane);
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
        let factor = pow2(sums.exponent - exponent);
        sums.exponent = exponent;
        for row in &mut sums.first {
            for sum in row {
                *sum *= factor;
            }
        }
    }
}
