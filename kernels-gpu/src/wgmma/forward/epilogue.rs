//! Normalising a warpgroup's output and handing it to TMA, which writes it under the next tile.

use cuda_std::half::Half;
use cuda_std::math::fma;
use cuda_std::warp::{self, WARP_SIZE};
use cuda_std::wgmma::InFlight;
use cuda_std::{global, shared, stmatrix, tma};

use super::Launch;
use super::blocks::row_begin;
use super::lanes::{ATOM_VEC16S, Lanes, VEC16_ELEMS, swizzled};
use super::non_finite::NonFiniteFixup;
use super::softmax::{Finalized, PerRow, ROWS, Rows};
use super::traits::{ForwardKernel, TensorMapParams};
use crate::config::wgmma::{ATOM_COLS, WARP_ROWS, WARPGROUP, WARPGROUP_ROWS, WgmmaConfig};
use crate::layout::fragment::ROW_STEP;
use crate::modifiers::Modifiers;
use crate::tile::black_box;
use crate::tile::sequence::Sequence;
use crate::units::{F32_BYTES, HALF_BYTES};
use crate::wgmma::barriers::WarpSchedulerBarrier;
use crate::wgmma::pages::Pages;
use crate::wgmma::pipeline::PipelineState;
use crate::wgmma::scheduler::TileCoord;
use crate::wgmma::tensor_map::parameter;

/// Columns that a warp stages at once, and the accumulator registers that hold them.
const STEP_COLS: u32 = 16;
const STEP_REGS: usize = 8;

/// The end of a warpgroup's part of a tile.
pub struct Epilogue<'a> {
    launch: &'a Launch<'a>,
    config: &'a WgmmaConfig,
    warpgroup: u32,
    lanes: Lanes,
    work_tile: TileCoord,
    sequence: &'a Sequence,
    /// First row of the warpgroup.
    row_begin: u32,
    scheduler_barrier: WarpSchedulerBarrier,
}

impl<'a> Epilogue<'a> {
    /// The end of `work_tile`, which `sequence` is the batch entry of.
    #[inline(always)]
    pub fn new(
        launch: &'a Launch<'a>,
        config: &'a WgmmaConfig,
        warpgroup: u32,
        lanes: Lanes,
        work_tile: TileCoord,
        sequence: &'a Sequence,
    ) -> Self {
        Self {
            launch,
            config,
            warpgroup,
            lanes: lanes.reload(),
            work_tile,
            sequence,
            row_begin: black_box(row_begin(launch, config, work_tile, warpgroup)),
            scheduler_barrier: WarpSchedulerBarrier::new(warpgroup, config.consumers),
        }
    }

    /// Writes the warpgroup's rows of `o` and `lse`; rows past the sequence are left out, by TMA and by predicates.
    ///
    /// # Safety
    /// `launch` holds; all threads of the warpgroup reach the same call.
    #[inline(always)]
    pub unsafe fn store<K, const S_REGS: usize, const P_REGS: usize, const O_REGS: usize>(
        &self,
        acc_o: &[f32; O_REGS],
        rows: &Rows,
        modifiers: &K::Modifiers,
        v: &mut PipelineState,
    ) where
        K: ForwardKernel<S_REGS, P_REGS, O_REGS>,
        [f32; O_REGS]: InFlight,
    {
        let mut finalized = rows.finalize(modifiers, self.heads());
        if self.config.cached && Pages::new(self.launch.pages).is_poisoned(self.work_tile.batch) {
            finalized.poison();
        }
        let o_smem = self.acquire_o_smem(v);
        let needs_fixup = !is_finite(acc_o, finalized.keep);
        self.stage_o::<K::Element, O_REGS>(o_smem, acc_o, &finalized);
        if warp::any(needs_fixup) {
            self.fix_non_finite::<K::Element, _>(o_smem, modifiers, finalized.lse);
        }
        self.store_o::<K>(o_smem);
        if self.config.reuses_v() {
            self.return_v_stages(v);
        }
        self.store_lse(finalized.lse);
    }

    /// The query heads of the thread's rows; of a row without one, another.
    #[inline(always)]
    fn heads(&self) -> [u32; ROWS] {
        let first = self.launch.query_head(self.work_tile, 0);
        if !self.config.cached {
            // With modifiers heads do not share tiles; without, nobody asks.
            return [first; ROWS];
        }
        let mut heads = [first; ROWS];
        for i in 0..ROWS {
            let row = self.row(i);
            if self.launch.has_row(self.work_tile, self.sequence, row) {
                heads[i] = self.launch.query_head(self.work_tile, row);
            }
        }
        heads
    }

    /// Number `i` of the thread's rows.
    #[inline(always)]
    fn row(&self, i: usize) -> u32 {
        self.row_begin + self.lanes.row() + i as u32 * ROW_STEP
    }

    /// Waits for the shared memory that the warpgroup stages its output in; returns its address.
    ///
    /// # Safety
    /// As [`Epilogue::store`].
    #[inline(always)]
    unsafe fn acquire_o_smem(&self, v: &mut PipelineState) -> u32 {
        if self.config.reuses_v() {
            self.skip_v_stages(v, self.warpgroup);
            v.consumer_wait();
        }
        black_box(self.launch.smem)
            + if self.config.reuses_v() {
                self.config.v_offset() + v.stage * self.config.v_bytes()
            } else {
                // Only the first thread has stores, the previous tile's.
                tma::wait_stores_read();
                self.scheduler_barrier.warpgroup_sync();
                self.config.o_offset() + self.warpgroup * self.config.o_bytes()
            }
    }

    /// Skips stages of V that other warpgroups stage their output in.
    ///
    /// # Safety
    /// As [`Epilogue::store`].
    #[inline(always)]
    unsafe fn skip_v_stages(&self, v: &mut PipelineState, stages: u32) {
        let mut left = stages;
        // black_box: otherwise the loop is unrolled, whose trip counts are kept through the kernel, for more stages than there are.
        while black_box(left) > 0 {
            v.consumer_wait();
            v.consumer_release(self.lanes.lane, self.config.cluster);
            v.advance();
            left -= 1;
        }
    }

    /// Normalises the output, rounds it and stages it, 16 columns at a time.
    ///
    /// # Safety
    /// As [`Epilogue::store`]; nobody else uses the memory at `o_smem`.
    #[inline(always)]
    unsafe fn stage_o<E: Half, const O_REGS: usize>(
        &self,
        o_smem: u32,
        acc_o: &[f32; O_REGS],
        finalized: &Finalized,
    ) {
        let mut step = 0;
        while step < O_REGS / STEP_REGS {
            let col = step as u32 * STEP_COLS;
            let atom_column = col / ATOM_COLS * self.config.q_atom_column_bytes();
            let pair = |register: usize, row: usize| {
                let low = acc_o[register] * finalized.norm[row];
                let high = acc_o[register + 1] * finalized.norm[row];
                E::cvt_pair(low, high) & finalized.keep[row]
            };
            let r = STEP_REGS * step;
            stmatrix::store4(
                o_smem + atom_column + self.lanes.matrix_row(col % ATOM_COLS / VEC16_ELEMS),
                [pair(r, 0), pair(r + 2, 1), pair(r + 4, 0), pair(r + 6, 1)],
            );
            step += 1;
        }
    }

    /// Computes the staged elements that are not finite again, where they may have to be.
    ///
    /// # Safety
    /// As [`Epilogue::store`], for all threads of the warp; its rows are staged.
    #[inline(always)]
    unsafe fn fix_non_finite<E: Half, M: Modifiers>(
        &self,
        o_smem: u32,
        modifiers: &M,
        lse: PerRow,
    ) {
        warp::sync_warp();
        let fixup = NonFiniteFixup {
            launch: self.launch,
            modifiers,
            config: self.config,
            sequence: self.sequence,
            work_tile: self.work_tile,
            lanes: self.lanes,
            o_smem,
            row_begin: black_box(self.row_begin + self.lanes.warp * WARP_ROWS),
            lse,
        };
        fixup.run::<E>();
        // Without it ptxas spills in some instances.
        warp::converge();
    }

    /// Hands the staged rows to TMA, or copies those that exist where others follow in global memory.
    ///
    /// # Safety
    /// As [`Epilogue::store`]; the rows are staged.
    #[inline(always)]
    unsafe fn store_o<M: TensorMapParams>(&self, o_smem: u32) {
        let Self {
            config,
            lanes,
            work_tile,
            sequence,
            row_begin,
            ..
        } = *self;
        tma::fence_shared();
        self.scheduler_barrier.warpgroup_sync();
        let pack_gqa = self.launch.pack_gqa();
        let own_rows = pack_gqa.rows(sequence.seq_q).saturating_sub(row_begin);
        if config.varlen && own_rows < WARPGROUP_ROWS {
            // The rows below belong to the next sequence, which TMA cannot know.
            self.copy_rows(o_smem, own_rows);
            self.scheduler_barrier.warpgroup_sync();
            return;
        }
        let mut atom_column = 0;
        while atom_column < config.atom_columns_v() {
            let query = sequence.q_begin + pack_gqa.query(row_begin);
            let col = atom_column * ATOM_COLS;
            let TileCoord { head, head_kv, .. } = work_tile;
            let to = [col, head, query, head_kv, sequence.batch];
            let from = o_smem + atom_column * config.q_atom_column_bytes();
            tma::store5d_if(lanes.is_first(), M::address::<{ parameter::O }>(), to, from);
            atom_column += 1;
        }
        tma::commit_stores();
    }

    /// Copies the first `rows` staged rows to global memory, a row at a time by as many lanes as an atom's row has vec16s.
    ///
    /// # Safety
    /// As [`Epilogue::store_o`]; the staged rows are visible to the whole warpgroup.
    #[inline(always)]
    unsafe fn copy_rows(&self, o_smem: u32, rows: u32) {
        let Self {
            launch,
            config,
            lanes,
            work_tile,
            sequence,
            row_begin,
            ..
        } = *self;
        let params = launch.params;
        let o = &params.o;
        let head_address = sequence.q_address(o, launch.query_head(work_tile, 0), HALF_BYTES);
        let pack_gqa = launch.pack_gqa();
        let thread = lanes.warp * WARP_SIZE + lanes.lane;
        let vec16 = thread % ATOM_VEC16S;
        let mut row = thread / ATOM_VEC16S;
        while row < rows {
            let (query, head) = (pack_gqa.query(row_begin + row), pack_gqa.head(row));
            let offset = query as i64 * o.seq_stride + head as i64 * o.head_stride;
            let row_address = head_address.wrapping_add_signed(offset * HALF_BYTES as i64);
            let exists = launch.has_row(work_tile, sequence, row_begin + row);
            let mut atom_column = 0;
            while atom_column < config.atom_columns_v() {
                let col = atom_column * ATOM_COLS + vec16 * VEC16_ELEMS;
                if exists && col < params.attention.head_dim_v {
                    let column_smem = o_smem + atom_column * config.q_atom_column_bytes();
                    // SAFETY: the vec16 is staged, and exists in global memory, as head_dim_v is a multiple of it.
                    unsafe {
                        let bits = shared::load4_bits(column_smem + swizzled(row, vec16));
                        global::store4_bits(row_address + (col * HALF_BYTES) as u64, bits);
                    }
                }
                atom_column += 1;
            }
            row += WARPGROUP / ATOM_VEC16S;
        }
    }

    /// Returns the stages of V that the warpgroups stage their output in, this one's once TMA has read it.
    ///
    /// # Safety
    /// As [`Epilogue::store`].
    #[inline(always)]
    unsafe fn return_v_stages(&self, v: &mut PipelineState) {
        let own = *v;
        v.advance();
        self.skip_v_stages(v, self.config.consumers - 1 - self.warpgroup);
        tma::wait_stores_read();
        // One lane has stored, as many as the cluster has blocks release.
        warp::sync_warp();
        own.consumer_release(self.lanes.lane, self.config.cluster);
    }

    /// Writes the log-sum-exp of the thread's rows.
    ///
    /// # Safety
    /// As [`Epilogue::store`].
    #[inline(always)]
    unsafe fn store_lse(&self, lse: PerRow) {
        let Self {
            launch,
            lanes,
            work_tile,
            sequence,
            ..
        } = *self;
        for i in 0..ROWS {
            let row = self.row(i);
            let exists = launch.has_row(work_tile, sequence, row);
            let head = launch.query_head(work_tile, row);
            let query = launch.pack_gqa().query(row);
            let address =
                sequence.lse_address(launch.params, head) + query as u64 * F32_BYTES as u64;
            global::store_if(lanes.col() == 0 && exists, address, lse[i]);
        }
    }
}

/// Whether the elements of the rows to keep are all finite.
#[inline(always)]
fn is_finite<const O_REGS: usize>(acc_o: &[f32; O_REGS], keep: [u32; ROWS]) -> bool {
    // A sum of zeros becomes NaN with the first number that is not finite. Two sums a row, for speed.
    let mut zeros = [[0.0; 2]; ROWS];
    let mut i = 0;
    while i < O_REGS {
        let zero = &mut zeros[i / 2 % 2][i % 2];
        *zero = fma(acc_o[i], 0.0, *zero);
        i += 1;
    }
    let kept = |row: usize| (zeros[row][0] + zeros[row][1]).to_bits() & keep[row];
    f32::from_bits(kept(0)) == 0.0 && f32::from_bits(kept(1)) == 0.0
}
