//! The producer warpgroup: one thread loads tiles of operands, one warp the terms of passing queries.

use cuda_std::global;
use cuda_std::thread::thread_idx_x;
use cuda_std::warp::{WARP_SIZE, lane_id, uniform, warp_id};
use cuda_std::{mbarrier, shared, tma};

use super::barriers::Barriers;
use super::tile::Tile;
use super::walk::Told;
use crate::backward::exponent;
use crate::backward::side::Side;
use crate::config::wgmma::{ATOM_COLS, WARPGROUP_ROWS};
use crate::config::wgmma_backward::WgmmaBackwardConfig;
use crate::layout::terms;
use crate::modifiers::Modifiers;
use crate::tile::sequence::Sequence;
use crate::units::{F32_BYTES, pow2};
use crate::wgmma::forward::traits::TensorMapParams;
use crate::wgmma::pipeline::PipelineState;
use crate::wgmma::tensor_map::parameter;

/// Warps of the producer warpgroup, one thread of which loads operands, and that load terms.
const OPERANDS_WARP: u32 = 0;
const TERMS_WARP: u32 = 1;

/// Loads the tile.
///
/// # Safety
/// `tile` is one of the launch; the first warpgroup of the block calls it.
#[inline(always)]
pub unsafe fn produce<M: TensorMapParams, S: Side, W: Modifiers>(
    tile: &Tile<S, W>,
    barriers: &Barriers,
    config: &WgmmaBackwardConfig,
    smem: u32,
) {
    // Asked of whole warps, one of which finds an exponent together.
    let warp = uniform(warp_id());
    if warp == OPERANDS_WARP {
        if !W::IS_NONE {
            load_told::<M, S, W>(tile, barriers, config, smem);
        } else if thread_idx_x() == 0 {
            load_operands::<M, S, W>(tile, barriers, config, smem);
        }
    } else if S::HAS_SECOND && warp == TERMS_WARP {
        load_terms(tile, barriers, config, smem);
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

/// # Safety
/// As [`produce`]; one thread calls it.
#[inline(always)]
unsafe fn load_operands<M: TensorMapParams, S: Side, W: Modifiers>(
    tile: &Tile<S, W>,
    barriers: &Barriers,
    config: &WgmmaBackwardConfig,
    smem: u32,
) {
    if !tile.has_steps() {
        return;
    }
    let sequence = tile.sequence();
    load_kept::<M, S, W>(tile, &sequence, barriers, config, smem);
    let (mut first, mut second) = (barriers.producer(0), barriers.producer(1));
    let passing_row = passing_row::<S>(&sequence);
    tile.each_step(config, |head, begin| {
        let from = [passing_row + begin, head, sequence.batch];
        load_passing::<M, S>(0, &first, config, smem, from);
        load_passing::<M, S>(1, &second, config, smem, from);
        first.advance();
        second.advance();
    });
}

/// As [`load_operands`] of a kernel with modifiers, and tells the consumers which blocks these are.
///
/// # Safety
/// As [`produce`]; one warp calls it.
#[inline(always)]
unsafe fn load_told<M: TensorMapParams, S: Side, W: Modifiers>(
    tile: &Tile<S, W>,
    barriers: &Barriers,
    config: &WgmmaBackwardConfig,
    smem: u32,
) {
    if !tile.has_steps() {
        return;
    }
    let sequence = tile.sequence();
    let is_first_lane = lane_id() == 0;
    if is_first_lane {
        load_kept::<M, S, W>(tile, &sequence, barriers, config, smem);
    }
    let (mut first, mut second) = (barriers.producer(0), barriers.producer(1));
    let told_at = |pipeline: &PipelineState| {
        smem + config.terms_offset() + pipeline.stage * config.terms_bytes() + config.told_offset()
    };
    let from = |told: Told| {
        let row = passing_row::<S>(&sequence) + told.begin(config);
        [row, told.head, sequence.batch]
    };
    let mut last = Told::END;
    tile.each_shown(config, |told| {
        if is_first_lane {
            let from = from(told);
            // The consumers read the words until they release the stage.
            first.producer_acquire();
            told.store(told_at(&first));
            load_passing::<M, S>(0, &first, config, smem, from);
            load_passing::<M, S>(1, &second, config, smem, from);
        }
        first.advance();
        second.advance();
        last = told;
    });
    if is_first_lane {
        first.producer_acquire();
        Told::END.store(told_at(&first));
        if config.adds_dq() {
            // Its consumers start a block's products before they know whether it is one.
            load_passing::<M, S>(0, &first, config, smem, from(last));
        } else {
            mbarrier::arrive_if(true, first.full_barrier());
        }
    }
}

/// First row of the passing side's sequence, in its operands.
#[inline(always)]
fn passing_row<S: Side>(sequence: &Sequence) -> u32 {
    let (q, kv) = (sequence.q_begin, sequence.kv_begin);
    if S::HAS_SECOND { q } else { kv }
}

/// Loads what the tile keeps.
///
/// # Safety
/// As [`load_operands`].
#[inline(always)]
unsafe fn load_kept<M: TensorMapParams, S: Side, W: Modifiers>(
    tile: &Tile<S, W>,
    sequence: &Sequence,
    barriers: &Barriers,
    config: &WgmmaBackwardConfig,
    smem: u32,
) {
    let kept_row = if S::HAS_SECOND {
        sequence.kv_begin
    } else {
        sequence.q_begin
    };
    mbarrier::arrive_expect(
        barriers.kept_full,
        2 * config.consumers * config.kept_bytes(),
    );
    let load_kept = |operand: u32| {
        let map = map::<M>(!S::HAS_SECOND, operand == 0);
        let mut warpgroup = 0;
        while warpgroup < config.consumers {
            let to = smem + config.kept_offset(operand, warpgroup);
            let row = kept_row + tile.begin() + warpgroup * WARPGROUP_ROWS;
            let from = [row, tile.head(), sequence.batch];
            let bytes = config.kept_atom_column_bytes();
            load(to, bytes, map, from, config, barriers.kept_full);
            warpgroup += 1;
        }
    };
    load_kept(0);
    load_kept(1);
}

/// Loads a block of passing operand `operand` to the stage that `pipeline` is at, `from` its row, head and batch entry.
///
/// # Safety
/// As [`load_operands`].
#[inline(always)]
unsafe fn load_passing<M: TensorMapParams, S: Side>(
    operand: u32,
    pipeline: &PipelineState,
    config: &WgmmaBackwardConfig,
    smem: u32,
    from: [u32; 3],
) {
    let map = map::<M>(S::HAS_SECOND, operand == 0);
    pipeline.producer_acquire();
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

/// Loads lse in bits and delta of the passing queries; those beyond the sequence see no key.
///
/// # Safety
/// As [`produce`]; one warp calls it.
#[inline(always)]
unsafe fn load_terms<S: Side, W: Modifiers>(
    tile: &Tile<S, W>,
    barriers: &Barriers,
    config: &WgmmaBackwardConfig,
    smem: u32,
) {
    let params = tile.params;
    let mut pipeline = barriers.producer(0);
    let (sequence, passing) = (tile.sequence(), tile.extent().passing);
    let mut exponent = Exponent::NONE;
    let mut load = |head: u32, begin: u32| {
        let address = |array| sequence.row_address(&params.attention, array, head);
        let lse = address(params.terms.lse_log2);
        let delta = address(params.terms.delta);
        let stage = smem + config.terms_offset() + pipeline.stage * config.terms_bytes();
        if params.terms.largest_d_o.is_some() && exponent.head != head {
            let of_head = exponent::of_head(params, &sequence, passing, head);
            exponent = Exponent { head, of_head };
        }
        pipeline.producer_acquire();
        if lane_id() == 0 {
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
            // As dP will be.
            let delta = delta * pow2(-exponent.of_head);
            shared::store(at + config.block_n * F32_BYTES, delta);
            index += WARP_SIZE;
        }
        mbarrier::arrive_if(true, pipeline.full_barrier());
        pipeline.advance();
    };
    if W::IS_NONE {
        tile.each_step(config, load);
    } else if tile.has_steps() {
        tile.each_shown(config, |told| load(told.head, told.begin(config)));
        // The stage without a block has no terms.
        pipeline.producer_acquire();
        mbarrier::arrive_if(true, pipeline.full_barrier());
    }
}
