//! The rows that a block keeps, and the blocks of the other side that pass.

use core::marker::PhantomData;

use cuda_std::shared;
use cuda_std::thread::{sync_threads, thread_idx_x};
use cuda_std::warp::uniform;

use super::MmaBackwardKernel;
use crate::abi::{
    AttentionParams, BackwardParams, Band, BlockState, DeviceAddress, LengthsParams, ScoreParams,
    TensorArg,
};
use crate::backward::side::{Extent, Side};
use crate::layout::fragment::TILE_M;
use crate::layout::swizzle::VEC16_BYTES;
use crate::modifiers::{Modifiers, Place};
use crate::score::ScoreTransform;
use crate::tile::black_box;
use crate::tile::block_range::BlockRange;
use crate::tile::grid::BlockCoord;
use crate::tile::sequence::Sequence;

const WORD_BYTES: u32 = size_of::<u32>() as u32;

/// One block of the passing side.
#[derive(Clone, Copy)]
pub struct Step {
    /// A head of the passing side.
    pub head: u32,
    /// First row.
    pub begin: u32,
    /// The [`BlockState`] of its pairs, as a number, where modifiers hide some.
    state: u32,
}

impl Step {
    /// [`renewed`] in every step.
    #[inline(always)]
    pub fn renew(&self, value: u32) -> u32 {
        renewed(value, self.begin)
    }
}

/// `value`, in a form that neither rustc nor ptxas knows to be the same for another block, whose first row is `row`: what is
/// computed from it is computed again for each, rather than kept in registers.
#[inline(always)]
pub fn renewed(value: u32, row: u32) -> u32 {
    // Blocks begin at multiples of a tile of `mma`, so that this adds 0.
    value + row % TILE_M as u32
}

/// `tensor`, with strides that are [`renewed`] where dq is added up, which takes registers that they would be kept in.
#[inline(always)]
pub fn renewed_strides<K: MmaBackwardKernel>(tensor: &TensorArg, row: u32) -> TensorArg {
    let zero = if K::ADDS_DQ {
        renewed(0, row) as i64
    } else {
        0
    };
    TensorArg {
        address: tensor.address,
        batch_stride: tensor.batch_stride + zero,
        head_stride: tensor.head_stride + zero,
        seq_stride: tensor.seq_stride + zero,
        dim_stride: tensor.dim_stride + zero,
    }
}

/// `attention`, with what the lengths and the mask of a sequence depend on [`renewed`].
#[inline(always)]
fn renewed_lengths(attention: &AttentionParams, row: u32) -> AttentionParams {
    let zero = renewed(0, row);
    let mask: [u32; 3] = bytemuck::cast(attention.mask);
    let seqused_kv = attention
        .lengths
        .seqused_kv
        .map_or(0, |address| address.get());
    AttentionParams {
        mask: bytemuck::cast(mask.map(|word| word + zero)),
        lengths: LengthsParams {
            seqused_kv: DeviceAddress::new(seqused_kv + zero as u64),
            ..attention.lengths
        },
        ..*attention
    }
}

/// The rows that a block keeps. What is cheap to compute is computed where it is needed (hence `black_box`), as registers
/// are what the main loop is short of.
pub struct Tile<'a, K: MmaBackwardKernel> {
    pub params: &'a BackwardParams,
    /// What else the launch does to single pairs.
    pub modifiers: &'a K::Modifiers,
    /// A head of the side that is kept.
    pub head: u32,
    /// First row.
    pub begin: u32,
    /// First passing row that some kept row sees, from the first of its block on, and one past the last block's.
    passing_begin: u32,
    passing_end: u32,
    /// First row of the blocks of which every kept row sees every row, and one past the last of them.
    shown_begin: u32,
    shown_end: u32,
    kernel: PhantomData<K>,
}

impl<'a, K: MmaBackwardKernel> Tile<'a, K> {
    /// # Safety
    /// `params` describes live allocations, which `coord` lies inside. The whole block calls it with the same tile, and nobody
    /// accesses shared memory.
    #[inline(always)]
    pub unsafe fn new(
        params: &'a BackwardParams,
        modifiers: &'a K::Modifiers,
        coord: BlockCoord,
    ) -> Self {
        let block_m = K::CONFIG.block_m as u32;
        let coord = K::Side::coord(coord, &params.attention, block_m);
        let begin = coord.m_block * block_m;
        let attention = renewed_lengths(&params.attention, uniform(begin));
        let sequence = Sequence::new(&attention, coord.batch);
        store_sequence::<K>(&sequence, coord.batch);
        sync_threads();
        let mut tile = Self {
            params,
            modifiers,
            head: coord.head,
            begin,
            passing_begin: 0,
            passing_end: 0,
            shown_begin: 0,
            shown_end: 0,
            kernel: PhantomData,
        };
        let extent = K::Side::extent(&sequence);
        if tile.begin < extent.kept {
            let range = tile.range(&extent, 0, block_m);
            let block_n = K::CONFIG.block_n as u32;
            tile.passing_begin = range.begin * block_n;
            tile.passing_end = range.end * block_n;
            if !modifiers.hides() && tile.begin + block_m <= extent.kept {
                let (begin, end) = range.unmasked(block_n);
                tile.shown_begin = begin * block_n;
                tile.shown_end = end * block_n;
            }
        }
        // Branches on numbers that are known to be the same in all lanes do not diverge.
        tile.passing_begin = uniform(tile.passing_begin);
        tile.passing_end = uniform(tile.passing_end);
        tile.shown_begin = uniform(tile.shown_begin);
        tile.shown_end = uniform(tile.shown_end);
        tile
    }

    /// The same tile, of which no block but number `block` of the passing side is taken.
    #[inline(always)]
    pub fn only(self, block: u32) -> Self {
        let block_n = K::CONFIG.block_n as u32;
        let begin = block * block_n;
        Self {
            passing_begin: self.passing_begin.max(begin),
            passing_end: self.passing_end.min(begin + block_n),
            ..self
        }
    }

    /// The batch entry that the tile belongs to; what is not used is not loaded.
    ///
    /// # Safety
    /// As [`Tile::new`].
    #[inline(always)]
    pub unsafe fn sequence(&self) -> Sequence {
        // Loaded again at each call, rather than kept in registers.
        let address = black_box(Smem::sequence::<K>());
        let [batch, q_begin, kv_begin, seq_q] = shared::load4_bits(address);
        let [seq_kv, lower, upper, _] = shared::load4_bits(address + VEC16_BYTES);
        Sequence {
            batch,
            q_begin,
            kv_begin,
            seq_q,
            seq_kv,
            band: Band {
                lower: lower as i32,
                upper: upper as i32,
            },
        }
    }

    /// The number of that batch entry.
    ///
    /// # Safety
    /// As [`Tile::new`].
    #[inline(always)]
    pub unsafe fn batch(&self) -> u32 {
        shared::load_bits(black_box(Smem::sequence::<K>()) + VEC16_BYTES + 3 * WORD_BYTES)
    }

    /// Rows of both sides.
    ///
    /// # Safety
    /// As [`Tile::new`].
    #[inline(always)]
    pub unsafe fn extent(&self) -> Extent {
        K::Side::extent(&self.sequence())
    }

    /// Which passing rows `rows` kept ones see, from row `first` of the tile on; of rows that do not exist, as the last.
    #[inline(always)]
    pub fn range(&self, extent: &Extent, first: u32, rows: u32) -> BlockRange {
        if self.modifiers.hides() {
            // Any block may be shown: the states tell.
            return BlockRange::all(extent.passing, K::CONFIG.block_n as u32);
        }
        let begin = self.begin + first;
        let end = (begin + rows).min(extent.kept);
        BlockRange::new(
            begin.min(extent.kept - 1),
            end,
            extent.band,
            extent.passing,
            K::CONFIG.block_n as u32,
        )
    }

    /// Kept rows whose gradients are written: those of the sequence, and those that it leaves unused (`seqused_kv`), whose
    /// gradients are 0.
    ///
    /// # Safety
    /// As [`Tile::new`].
    #[inline(always)]
    pub unsafe fn rows_written(&self) -> u32 {
        K::Side::rows_written(&self.params.attention, self.batch())
    }

    /// The query head of a step in which `passing_head` passes.
    #[inline(always)]
    pub fn query_head(&self, passing_head: u32) -> u32 {
        if K::Side::HAS_SECOND {
            passing_head
        } else {
            self.head
        }
    }

    /// Whether modifiers change scores, of a kernel that takes biases, or modifications.
    #[inline(always)]
    pub fn changes_scores(&self) -> bool {
        K::CONFIG.biases.may_be() && self.modifiers.changes_scores()
    }

    /// How the scores of a step are transformed, of which `score` says what is known when the kernel is compiled: to nats where it is known
    /// that something `is_added_to` them.
    ///
    /// # Safety
    /// As [`Tile::new`]; `score` is the launch's.
    #[inline(always)]
    pub unsafe fn transform(
        &self,
        step: Step,
        score: &ScoreParams,
        is_added_to: bool,
    ) -> ScoreTransform {
        let softmax_scale = f32::from_bits(step.renew(score.softmax_scale.to_bits()));
        let score = &ScoreParams {
            softmax_scale,
            ..*score
        };
        let (batch, head) = (self.batch(), self.query_head(step.head));
        if is_added_to || self.changes_scores() {
            ScoreTransform::in_nats(score, batch, head, 0.0)
        } else {
            ScoreTransform::new(score, batch, head, 0.0)
        }
    }

    /// The query head of the sequence that takes part in a step.
    ///
    /// # Safety
    /// As [`Tile::new`].
    #[inline(always)]
    pub unsafe fn place(&self, step: Step) -> Place {
        let heads = self.params.attention.heads_q;
        let head = self.query_head(step.head);
        Place::new(&self.sequence(), self.batch(), head, heads)
    }

    /// The [`BlockState`] of a step, as a number.
    ///
    /// # Safety
    /// As [`Tile::new`]; there are states, and all 32 lanes reach the same call.
    #[inline(always)]
    unsafe fn state(&self, step: Step) -> u32 {
        let kept = self.begin / K::CONFIG.block_m as u32;
        let passing = step.begin / K::CONFIG.block_n as u32;
        let (tile, block) = K::Side::query_and_key(kept, passing);
        uniform(self.modifiers.state(&self.place(step), tile, block))
    }

    /// The first block of the passing side that is not hidden.
    ///
    /// # Safety
    /// As [`Tile::new`]; all 32 lanes reach the same call.
    #[inline(always)]
    pub unsafe fn first(&self) -> Option<Step> {
        let (head, _) = K::Side::passing_heads(&self.params.attention, self.head);
        let first = (self.passing_begin < self.passing_end).then_some(Step {
            head,
            begin: self.passing_begin,
            state: 0,
        });
        self.shown(first)
    }

    /// `step`, or the first one after it that is not hidden.
    ///
    /// # Safety
    /// As [`Tile::first`].
    #[inline(always)]
    unsafe fn shown(&self, mut step: Option<Step>) -> Option<Step> {
        if self.modifiers.hides() {
            while let Some(at) = &mut step {
                at.state = self.state(*at);
                if at.state != BlockState::Hidden as u32 {
                    break;
                }
                step = self.following(*at);
            }
        }
        step
    }

    /// Whether every kept row exists and sees every row of the block that passes.
    #[inline(always)]
    pub fn shows_all(&self, step: Step) -> bool {
        if self.modifiers.hides() {
            return step.state == BlockState::Full as u32;
        }
        self.shown_begin <= step.begin && step.begin < self.shown_end
    }

    /// Whether `step` may be the first of a head: it is where nothing is hidden, and any may be otherwise.
    #[inline(always)]
    pub fn begins_head(&self, step: Step) -> bool {
        self.modifiers.hides() || step.begin == self.passing_begin
    }

    /// The block after `now` that is not hidden.
    ///
    /// # Safety
    /// As [`Tile::first`].
    #[inline(always)]
    pub unsafe fn next(&self, now: Step) -> Option<Step> {
        self.shown(self.following(now))
    }

    /// The block after `now`, hidden or not: the next one of its head, or the first one of the next head.
    #[inline(always)]
    fn following(&self, now: Step) -> Option<Step> {
        let next = now.begin + K::CONFIG.block_n as u32;
        if next < self.passing_end {
            return Some(Step { begin: next, ..now });
        }
        let (_, heads_end) = K::Side::passing_heads(&self.params.attention, self.head);
        (now.head + 1 < heads_end).then_some(Step {
            head: now.head + 1,
            begin: self.passing_begin,
            state: 0,
        })
    }
}

/// Writes the numbers of the tile's sequence, batch entry number `number`, to shared memory; one thread does.
///
/// # Safety
/// Nobody else accesses them until a barrier is passed.
#[inline(always)]
unsafe fn store_sequence<K: MmaBackwardKernel>(sequence: &Sequence, number: u32) {
    if thread_idx_x() != 0 {
        return;
    }
    let Sequence {
        batch,
        q_begin,
        kv_begin,
        seq_q,
        seq_kv,
        band: Band { lower, upper },
    } = *sequence;
    let address = Smem::sequence::<K>();
    shared::store4_bits(address, [batch, q_begin, kv_begin, seq_q]);
    let rest = [seq_kv, lower as u32, upper as u32, number];
    shared::store4_bits(address + VEC16_BYTES, rest);
}

/// Where a tile's operands are in shared memory.
#[derive(Clone, Copy)]
pub struct Smem;

impl Smem {
    /// Of the two operands that are kept.
    #[inline(always)]
    pub fn kept<K: MmaBackwardKernel>() -> [u32; 2] {
        let base = shared::dynamic_base();
        [base, base + K::CONFIG.kept_bytes()]
    }

    /// Of the two operands that pass.
    #[inline(always)]
    pub fn passing<K: MmaBackwardKernel>(stage: u32) -> [u32; 2] {
        let bytes = K::CONFIG.passing_bytes();
        let first = shared::dynamic_base() + K::CONFIG.stages_offset() + stage * 2 * bytes;
        [first, first + bytes]
    }

    /// Of dS and P of a block that arrives in stage `stage`.
    #[inline(always)]
    pub fn ds_and_p<K: MmaBackwardKernel>(stage: u32) -> [u32; 2] {
        let p = shared::dynamic_base() + K::CONFIG.p_offset();
        let ds = if K::CONFIG.ds_places > 1 { stage } else { 0 };
        [p + (1 + ds) * K::CONFIG.p_bytes(), p]
    }

    /// Of the numbers of the tile's sequence.
    #[inline(always)]
    pub fn sequence<K: MmaBackwardKernel>() -> u32 {
        shared::dynamic_base() + K::CONFIG.sequence_offset()
    }

    /// Of lse and delta.
    #[inline(always)]
    pub fn terms<K: MmaBackwardKernel>(stage: u32) -> [u32; 2] {
        let rows = terms_rows::<K>();
        let stage = if K::Side::HAS_SECOND { stage } else { 0 };
        let bytes = rows * crate::units::F32_BYTES;
        let first = shared::dynamic_base() + K::CONFIG.terms_offset() + stage * 2 * bytes;
        [first, first + bytes]
    }
}

/// Queries of which lse and delta are in one place: those of a block that passes, or all that are kept.
#[inline(always)]
pub fn terms_rows<K: MmaBackwardKernel>() -> u32 {
    if K::Side::HAS_SECOND {
        K::CONFIG.block_n as u32
    } else {
        K::CONFIG.block_m as u32
    }
}
