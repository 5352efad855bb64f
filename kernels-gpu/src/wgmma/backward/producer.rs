//! The producer warpgroup: one warp says which tiles the block takes and loads their operands, one loads the terms of passing
//! queries, and their biases.

use cuda_std::cp_async::{commit_group, wait_group};
use cuda_std::global;
use cuda_std::warp::{WARP_SIZE, lane_id, uniform, warp_id};
use cuda_std::{mbarrier, shared, tma};

use super::barriers::Barriers;
use super::biases::{self, Copied};
use super::tile::Tile;
use super::tiles::Tiles;
use super::walk::Told;
use crate::backward::exponent;
use crate::backward::side::Side;
use crate::config::wgmma::{ATOM_COLS, WARPGROUP_ROWS};
use crate::config::wgmma_backward::{OPERANDS, WgmmaBackwardConfig};
use crate::layout::terms;
use crate::modifiers::keep_mask::{KEYS, WARP_BYTES};
use crate::modifiers::{Modifiers, Pair};
use crate::tile::element::Element;
use crate::tile::sequence::Sequence;
use crate::units::{F32_BYTES, pow2};
use crate::wgmma::forward::traits::TensorMapParams;
use crate::wgmma::pipeline::PipelineState;
use crate::wgmma::tensor_map::parameter;

/// Warps of the producer warpgroup, that load operands and terms.
const OPERANDS_WARP: u32 = 0;
const TERMS_WARP: u32 = 1;

/// Says which tiles the block takes, and loads them.
///
/// # Safety
/// The first warpgroup of the block calls it.
#[inline(always)]
pub unsafe fn produce<M: TensorMapParams, E: Element, S: Side, W: Modifiers>(
    tiles: &Tiles<S, W>,
    smem: u32,
) {
    let (barriers, config) = (&tiles.barriers, tiles.config);
    // Asked of whole warps, which find out together which blocks are shown, and an exponent.
    let warp = uniform(warp_id());
    let mut number = 0;
    if warp == OPERANDS_WARP {
        let mut stages = Stages::new(barriers);
        let mut of_launch = Tiles::<S, W>::first();
        while tiles.tell(number, of_launch) {
            let kept = barriers.kept().as_producer().at(number);
            stages.load::<M, S, W>(&tiles.at(number), &kept, config, smem);
            number += 1;
            of_launch = tiles.draw();
        }
    } else if S::HAS_SECOND && warp == TERMS_WARP {
        let mut terms = barriers.producer(0);
        while tiles.wait(number) {
            load_terms::<E, S, W>(&tiles.at(number), &mut terms, config, smem);
            tiles.release(number, lane_id());
            number += 1;
        }
        if config.copies_biases() {
            // A thread does not end before its copies.
            commit_group();
            wait_group::<0>();
        }
    }
}

/// Loads the only tile of a block.
///
/// # Safety
/// As [`produce`]; `tile` is one of the launch.
#[inline(always)]
pub unsafe fn produce_one<M: TensorMapParams, E: Element, S: Side, W: Modifiers>(
    tile: &Tile<S, W>,
    barriers: &Barriers,
    config: &WgmmaBackwardConfig,
    smem: u32,
) {
    let warp = uniform(warp_id());
    if warp == OPERANDS_WARP {
        let kept = barriers.kept().as_producer();
        Stages::new(barriers).load::<M, S, W>(tile, &kept, config, smem);
    } else if S::HAS_SECOND && warp == TERMS_WARP {
        load_terms::<E, S, W>(tile, &mut barriers.producer(0), config, smem);
    }
}

/// The tensor maps of the operands of queries, q and d_o, or of keys, k and v.
#[inline(always)]
fn map<M: TensorMapParams>(is_of_queries: bool, is_first: bool) -> u64 {
    match (is_of_queries, is_first) {
        (true, true) => M::address::<{ parameter::Q }>(),
        (true, false) => M::address::<{ parameter::D_O }>(),
        (false, true) => M::address::<{ parameter::K }>(),
        (false, false) => M::address::<{ parameter::V }>(),
    }
}

/// Where the producer is in the pipelines of both passing operands.
struct Stages {
    first: PipelineState,
    second: PipelineState,
}

impl Stages {
    #[inline(always)]
    fn new(barriers: &Barriers) -> Self {
        Self {
            first: barriers.producer(0),
            second: barriers.producer(1),
        }
    }

    /// Loads a tile, and tells the consumers of a kernel with modifiers which blocks these are.
    ///
    /// What is kept comes behind the first block: its place is free later, when the gradients of the tile before are summed.
    ///
    /// # Safety
    /// As [`produce`]; one warp calls it.
    #[inline(always)]
    unsafe fn load<M: TensorMapParams, S: Side, W: Modifiers>(
        &mut self,
        tile: &Tile<S, W>,
        kept: &PipelineState,
        config: &WgmmaBackwardConfig,
        smem: u32,
    ) {
        let is_loader = lane_id() == 0;
        if W::IS_NONE && !is_loader {
            return;
        }
        let sequence = tile.sequence();
        let passing_row = passing_row::<S>(&sequence);
        let mut is_first = true;
        tile.each_block(config, |block| {
            if is_loader {
                let from = [
                    passing_row + block.begin(config),
                    block.head,
                    sequence.batch,
                ];
                self.first.producer_acquire();
                if !W::IS_NONE {
                    // The consumers have read the words before.
                    block.store(config.told(smem, self.first.stage));
                }
                load_passing::<M, S>(0, &self.first, config, smem, from);
                self.second.producer_acquire();
                load_passing::<M, S>(1, &self.second, config, smem, from);
                if is_first {
                    load_kept::<M, S, W>(tile, &sequence, kept, config, smem);
                }
            }
            is_first = false;
            self.first.advance();
            self.second.advance();
        });
        if is_first {
            kept.producer_acquire();
            mbarrier::arrive_if(is_loader, kept.full_barrier());
        }
    }
}

/// First row of the passing side's sequence, in its operands.
#[inline(always)]
fn passing_row<S: Side>(sequence: &Sequence) -> u32 {
    let (q, kv) = (sequence.q_begin, sequence.kv_begin);
    if S::HAS_SECOND { q } else { kv }
}

/// Loads what the tile keeps, when the tile before does not need its place any more.
///
/// # Safety
/// As [`Stages::load`]; one thread calls it.
#[inline(always)]
unsafe fn load_kept<M: TensorMapParams, S: Side, W: Modifiers>(
    tile: &Tile<S, W>,
    sequence: &Sequence,
    kept: &PipelineState,
    config: &WgmmaBackwardConfig,
    smem: u32,
) {
    let kept_row = if S::HAS_SECOND {
        sequence.kv_begin
    } else {
        sequence.q_begin
    };
    kept.producer_acquire();
    let full = kept.full_barrier();
    mbarrier::arrive_expect(full, OPERANDS * config.consumers * config.kept_bytes());
    let load_kept = |operand: u32| {
        let map = map::<M>(!S::HAS_SECOND, operand == 0);
        let mut warpgroup = 0;
        while warpgroup < config.consumers {
            let to = smem + config.kept_offset(operand, warpgroup);
            let row = kept_row + tile.begin() + warpgroup * WARPGROUP_ROWS;
            let from = [row, tile.head(), sequence.batch];
            let bytes = config.kept_atom_column_bytes();
            load(to, bytes, map, from, config, full);
            warpgroup += 1;
        }
    };
    load_kept(0);
    load_kept(1);
}

/// Loads a block of passing operand `operand` to the stage that `pipeline` is at, which is empty, `from` its row, head and batch entry.
///
/// # Safety
/// As [`load_kept`].
#[inline(always)]
unsafe fn load_passing<M: TensorMapParams, S: Side>(
    operand: u32,
    pipeline: &PipelineState,
    config: &WgmmaBackwardConfig,
    smem: u32,
    from: [u32; 3],
) {
    let map = map::<M>(S::HAS_SECOND, operand == 0);
    mbarrier::arrive_expect(pipeline.full_barrier(), config.stage_bytes());
    let to = smem + config.stages_offset(operand) + pipeline.stage * config.stage_bytes();
    let (bytes, full) = (config.atom_column_bytes(), pipeline.full_barrier());
    load(to, bytes, map, from, config, full);
}

/// Loads 64 rows of an operand, by atom columns.
///
/// # Safety
/// The memory at `to` is free, and `barrier` expects the bytes.
#[inline(always)]
unsafe fn load(
    to: u32,
    atom_column_bytes: u32,
    map: u64,
    [row, head, batch]: [u32; 3],
    config: &WgmmaBackwardConfig,
    barrier: u32,
) {
    let mut atom_column = 0;
    while atom_column < config.atom_columns() {
        let from = [atom_column * ATOM_COLS, row, head, batch];
        tma::load4d(to + atom_column * atom_column_bytes, map, from, barrier);
        atom_column += 1;
    }
}

/// The exponent by which dS of a query head is rounded.
struct Exponent {
    head: u32,
    of_head: i32,
}

impl Exponent {
    /// Of no head.
    const NONE: Self = Self {
        head: u32::MAX,
        of_head: 0,
    };
}

/// Loads lse in bits and −delta of a tile's passing queries to the stages from `pipeline` on; those beyond the sequence see no
/// key.
///
/// # Safety
/// As [`produce`]; one warp calls it.
#[inline(always)]
unsafe fn load_terms<E: Element, S: Side, W: Modifiers>(
    tile: &Tile<S, W>,
    pipeline: &mut PipelineState,
    config: &WgmmaBackwardConfig,
    smem: u32,
) {
    let params = tile.params;
    let (sequence, passing) = (tile.sequence(), tile.extent().passing);
    // Beside modifiers ptxas spills more of kernels of bf16 that do not ask.
    let has_exponents = if W::IS_NONE {
        E::SCALES_DS
    } else {
        params.terms.largest_d_o.is_some()
    };
    let mut exponent = Exponent::NONE;
    tile.each_block(config, |block| {
        let (head, begin) = (block.head, block.begin(config));
        if has_exponents && exponent.head != head {
            let of_head = exponent::of_head(params, &sequence, passing, head);
            exponent = Exponent { head, of_head };
        }
        let address = |array| sequence.row_address(&params.attention, array, head);
        let lse = address(params.terms.lse_log2);
        let delta = address(params.terms.delta);
        let stage = smem + config.terms_offset() + pipeline.stage * config.terms_bytes();
        if tile.modifiers.drops() && lane_id() < config.block_m() / KEYS {
            // Consumers have no time to wait for their words.
            let heads = params.attention.heads_q;
            let mask = tile.modifiers.keep_mask(tile.batch(), head, heads);
            let first = Pair {
                query: begin,
                key: tile.begin(),
            };
            let words = mask.word(first, 0) + (lane_id() * WARP_BYTES) as u64;
            global::prefetch_l2(words);
        }
        pipeline.producer_acquire();
        if config.copies_biases() {
            copy_biases(tile, pipeline, config, smem, block);
        }
        if (E::SCALES_DS || !W::IS_NONE) && lane_id() == 0 {
            shared::store_bits(stage + config.exponent_offset(), exponent.of_head as u32);
        }
        let mut index = lane_id();
        while index < config.block_n {
            let row = begin + index;
            let offset = row as u64 * F32_BYTES as u64;
            let (lse, delta) = if row < passing {
                (global::load(lse + offset), global::load(delta + offset))
            } else {
                (f32::INFINITY, 0.0)
            };
            let at = stage + terms::index(index) * F32_BYTES;
            shared::store(at, lse);
            // Times what dP will be.
            let minus_delta = delta * -pow2(-exponent.of_head);
            shared::store(at + config.block_n * F32_BYTES, minus_delta);
            index += WARP_SIZE;
        }
        mbarrier::arrive(pipeline.full_barrier());
        pipeline.advance();
    });
}

/// Starts copying the biases of block `block` to the stage that `pipeline` is at, if they can be, which arrive at its full barrier when
/// they are there.
///
/// # Safety
/// As [`load_terms`]; the stage is empty.
#[inline(always)]
unsafe fn copy_biases<S: Side, W: Modifiers>(
    tile: &Tile<S, W>,
    pipeline: &PipelineState,
    config: &WgmmaBackwardConfig,
    smem: u32,
    block: Told,
) {
    let first = Pair {
        query: block.begin(config),
        key: tile.begin(),
    };
    let place = tile.place(block.head);
    let biases = tile
        .modifiers
        .biases(&place, first, config.block_n, config.block_m());
    if let Some(biases) = &biases {
        let stage = smem + config.bias_offset(pipeline.stage);
        biases::copy(biases, stage, config);
    }
    if lane_id() == 0 {
        Copied::of(biases).store(config.copied(smem, pipeline.stage));
    }
    mbarrier::arrive_after_copies(pipeline.full_barrier());
}
