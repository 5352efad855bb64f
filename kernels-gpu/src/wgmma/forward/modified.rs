//! A consumer of a kernel with modifiers: its blocks are those that the producer tells it, one after the other.

use cuda_std::mbarrier;
use cuda_std::thread::thread_idx_x;
use cuda_std::warp::uniform;
use cuda_std::wgmma::InFlight;

use super::biases::{self, Copied};
use super::block_walk::Block;
use super::blocks::row_begin;
use super::consumer::Consumer;
use super::keep_mask::{self, Signs};
use super::mask::{below, col};
use super::softmax::{Rows, scale_rows};
use super::traits::{ForwardKernel, QkOperand};
use crate::config::biases::Biases;
use crate::config::wgmma::{WARP_ROWS, WARPGROUP};
use crate::modifiers::dropout::SIGNS_COLS;
use crate::modifiers::{Modifiers, Pair, Place};
use crate::tile::black_box;
use crate::wgmma::pipeline::PipelineState;
use crate::wgmma::scheduler::tile_pipe::WorkTilePipe;

/// Scores of a thread that are changed together, and the columns they cover.
const PART: usize = 8;
const PART_COLS: u32 = 16;

impl<K, const S_REGS: usize, const P_REGS: usize, const O_REGS: usize>
    Consumer<'_, K, S_REGS, P_REGS, O_REGS>
where
    K: ForwardKernel<S_REGS, P_REGS, O_REGS>,
    [f32; S_REGS]: InFlight,
    [f32; O_REGS]: InFlight,
{
    /// As [`attend`](Self::attend), over the blocks that the producer tells.
    ///
    /// # Safety
    /// As [`consume`](super::consumer::consume); Q has arrived.
    #[inline(always)]
    pub(super) unsafe fn attend_told(
        &mut self,
        q_operand: &K::QkOperand,
        q: &PipelineState,
        tile_pipe: &WorkTilePipe,
    ) {
        self.rows = Rows::new();
        self.acc_o = [0.0; O_REGS];
        // S = Q Kᵀ of the first block told
        self.k.consumer_wait();
        let mut block = Block::read(self.launch.smem, &Self::CONFIG, self.k.stage);
        self.issue_qk(q_operand);
        let mut biases = self.start_biases(block, tile_pipe);
        let mut dropped = self.dropped();
        self.acc_s.wait::<0>();
        let mut is_first = true;
        // One round from a block's scores to the next one's, so that there is one copy of what modifiers do.
        loop {
            self.take_in(q_operand, block, is_first, (dropped, biases), tile_pipe);
            if block.is_last() {
                break;
            }
            self.issue_qk_pv(q_operand);
            block = Block::read(self.launch.smem, &Self::CONFIG, self.k.stage);
            biases = self.start_biases(block, tile_pipe);
            dropped = self.dropped();
            self.wait_qk();
            is_first = false;
        }
        mbarrier::arrive_if(self.lanes.lane == 0, q.empty_barrier());
        // O += P V of the last block told
        self.v.consumer_wait();
        self.issue_pv();
        self.acc_o.wait::<0>();
        self.release_v();
    }

    /// Turns the scores of a block into rounded probabilities and releases its K: under the stale maximum if every row sees
    /// all of it, else by the online softmax, as the first one. Waits for O += P V of the block before, if there is one.
    ///
    /// # Safety
    /// As [`Self::attend_told`].
    #[inline(always)]
    unsafe fn take_in(
        &mut self,
        q_operand: &K::QkOperand,
        block: Block,
        is_first: bool,
        (dropped, biases): (Signs, Copied),
        tile_pipe: &WorkTilePipe,
    ) {
        if is_first || block.needs_mask() || !self.is_plain() {
            self.release_k();
            let key_begin = block.n_block() * Self::CONFIG.block_n;
            let masks = [block.needs_mask(); 2];
            let rescale = self.softmax_masked(key_begin, masks, biases, tile_pipe);
            self.wait_pv_unless(is_first);
            scale_rows(&mut self.acc_o, rescale);
        } else {
            self.finish_stale_max(q_operand);
        }
        self.cvt_p();
        if self.modifiers.drops() {
            keep_mask::drop(&mut self.p_frag, dropped);
        }
    }

    /// Which of a block's probabilities are dropped. It is read while their scores are multiplied.
    ///
    /// # Safety
    /// As [`Self::attend_told`].
    #[inline(always)]
    unsafe fn dropped(&mut self) -> Signs {
        const { assert!(!Self::CONFIG.modified || Self::CONFIG.block_n.is_multiple_of(SIGNS_COLS)) };
        if !self.modifiers.drops() {
            return [0; 2];
        }
        self.keep.read(self.launch.smem, &Self::CONFIG)
    }

    /// Starts copying the biases of this warp's rows and a block, which is done while their scores are multiplied, if they can be copied.
    ///
    /// # Safety
    /// As [`Self::attend_told`]; those of the block before have been added.
    #[inline(always)]
    unsafe fn start_biases(&self, block: Block, tile_pipe: &WorkTilePipe) -> Copied {
        if !matches!(Self::CONFIG.biases, Biases::Copied) {
            return Copied::No;
        }
        let (at, row) = self.place(tile_pipe);
        let first = Pair {
            query: uniform(row - self.lanes.lane / 4),
            key: block.n_block() * Self::CONFIG.block_n,
        };
        let keys = Self::CONFIG.block_n;
        match self.modifiers.biases(&at, first, WARP_ROWS, keys) {
            None => Copied::No,
            Some(biases) => biases::start(&biases, self.launch.smem, &Self::CONFIG),
        }
    }

    /// The head of the sequence that the tile belongs to, and the first of the thread's two rows.
    ///
    /// # Safety
    /// As [`Self::attend_told`].
    #[inline(always)]
    pub(super) unsafe fn place(&self, tile_pipe: &WorkTilePipe) -> (Place, u32) {
        let attention = &self.launch.params.attention;
        let work_tile = tile_pipe.work_tile();
        let sequence = tile_pipe.sequence(attention, work_tile);
        let warpgroup = black_box(thread_idx_x()) / WARPGROUP - 1;
        let row = row_begin(self.launch, &Self::CONFIG, work_tile, warpgroup) + self.lanes.row();
        (self.launch.place(work_tile, &sequence), row)
    }

    /// Changes the block's scores, in nats, by what the modifiers add to them, of a sequence with pairs.
    ///
    /// # Safety
    /// As [`Self::attend_told`].
    #[inline(always)]
    pub(super) unsafe fn change_scores(&mut self, key_begin: u32, tile_pipe: &WorkTilePipe) {
        let (at, row) = self.place(tile_pipe);
        let column = key_begin + self.lanes.col();
        let mut done = 0;
        // A part at a time, in a loop that stays one: whatever is loaded for all scores at once has no registers.
        while done < black_box(S_REGS as u32 / PART as u32) {
            let mut part = [[0.0; PART]];
            for i in 0..PART {
                part[0][i] = self.acc_s[i];
            }
            let column = column + done * PART_COLS;
            self.modifiers
                .change(|| at, &mut part, |_, register| pair(row, column, register));
            // The fragment turns, so that the part in hand has the same registers in every round.
            for i in 0..S_REGS - PART {
                self.acc_s[i] = self.acc_s[i + PART];
            }
            for i in 0..PART {
                self.acc_s[S_REGS - PART + i] = part[0][i];
            }
            done += 1;
        }
    }

    /// Sets the block's scores of hidden pairs to −∞, by modifiers that hide some, of a sequence with pairs.
    ///
    /// # Safety
    /// As [`Self::attend_told`].
    #[inline(always)]
    pub(super) unsafe fn hide_pairs(&mut self, key_begin: u32, tile_pipe: &WorkTilePipe) {
        let (at, row) = self.place(tile_pipe);
        let column = key_begin + self.lanes.col();
        let scores = core::array::from_mut(&mut self.acc_s);
        let pair = |_, register| pair(row, column, register);
        self.modifiers.hide(|| at, scores, pair, f32::NEG_INFINITY);
    }
}

/// The pair of a fragment's register; `row` and `column` are those of the first.
#[inline(always)]
fn pair(row: u32, column: u32, register: usize) -> Pair {
    Pair {
        query: row + below(register) as u32,
        key: column + col(register) as u32,
    }
}
