//! Forward attention on 16-bit elements by `mma.sync`: the FlashAttention-2 loop (Dao 2023, algorithm 1).
//!
//! | who | does |
//! |---|---|
//! | block | owns `block_m` query rows of one head; walks the key blocks its rows can see |
//! | warp | owns `16 · warp_tiles` of the rows, all keys of a block and all head dimensions: nothing is exchanged between warps |
//! | every thread | copies its share of the next block of K and V with `cp.async` while computing on the current one |
//!
//! ```text
//! shared memory   stage 0, stage 1   K [block_n][head_dim], V [block_n][head_dim]
//!                 q_smem             [block_m][head_dim]; in stage 1 where Q moves to registers. The output tile
//!                                    takes its place in the end.
//!                 frame              what the tile is
//! ```
//!
//! Accumulators, row states and fragments take nearly all of a thread's 255 registers. So nothing else that is the same
//! for a whole tile stays in one: it is read from the frame or the parameters where it is needed ([`work`]), and branches
//! are on votes and the like, which ptxas knows not to diverge.
//!
//! All tiles are swizzled ([`crate::layout::swizzle`]). One barrier a block of keys: it shows the block that has
//! arrived, and that nobody reads the one before it any more.
//!
//! The tile is computed in haste first: rows that have a maximum keep it, stale ([`crate::tile::row_state`]), while the
//! sums stay in range, and hidden keys rely on 0·v = 0. Both go wrong only by making an output or a sum ∞ or NaN. When one is, the tile is computed again
//! with care, which gives the same where inputs are to blame. In between f16, whose probabilities overflow at 2¹⁶ times
//! the maximum's, tries once more in haste but looks at each block's scores first.

mod copy;
mod element;
mod epilogue;
mod frame;
mod gemm;
mod guard;
mod work;

use cuda_std::cp_async::{commit_group, wait_group};
use cuda_std::math::{exp2, fma};
use cuda_std::thread::{block_idx_x, grid_dim_x, sync_threads, sync_threads_or};
use cuda_std::warp::{any, lane_id};

use crate::abi::{AttentionParams, ForwardParams};
use crate::config::mma::MmaTile;
use crate::layout::swizzle::row_bytes;
use crate::score::ScoreTransform;
use crate::tile::opaque;
use crate::tile::row_state::RowState;
use crate::tile::schedule::{Tile, TileList};
use crate::tile::sequence::Sequence;
use crate::tile::softmax::largest;
use element::Element;
use epilogue::Destination;
use frame::TileInfo;
use gemm::{LaneAddress, QFragments, pv, qk};
use guard::Notes;
use work::{Work, anew};

/// Softmax state of a row, which four lanes share.
type Row = RowState<4>;

/// One pass over all tiles of the launch.
///
/// # Safety
/// `params` describes live allocations that hold every element it can address, and the launch has the
/// instance's block size and shared memory.
#[inline(always)]
pub unsafe fn forward<
    E: Element,
    const WARPS: u32,
    const ROWS: usize,
    const S_COLS: usize,
    const O_COLS: usize,
    const K_STEPS: usize,
    const Q_IN_REGISTERS: bool,
>(
    params: &ForwardParams,
) {
    let config = MmaTile {
        head_dim: O_COLS * 4,
        warps: WARPS,
        warp_tiles: ROWS / 2,
        block_n: S_COLS * 4,
        q_in_registers: Q_IN_REGISTERS,
        min_blocks: 1,
    };
    let mut round = 0;
    loop {
        let AttentionParams {
            batch,
            heads_q,
            seq_q,
            ..
        } = anew(params).attention;
        let tiles = TileList::new(batch, heads_q, seq_q, config.block_m() as u32);
        let index = opaque(block_idx_x()) as u64 + round as u64 * grid_dim_x() as u64;
        if index >= tiles.count {
            break;
        }
        // SAFETY: forwarded to the caller; the loop bound is the same for the whole block.
        unsafe {
            forward_tile::<E, ROWS, S_COLS, O_COLS, K_STEPS, Q_IN_REGISTERS>(
                params,
                config,
                tiles.get(index),
            );
            // The next tile overwrites shared memory that others may still read.
            sync_threads();
        }
        round += 1u32;
    }
}

/// Computes one tile of `o` and `lse`.
///
/// # Safety
/// As [`forward`]; the whole block must call it with the same tile.
#[inline(always)]
unsafe fn forward_tile<
    E: Element,
    const ROWS: usize,
    const S_COLS: usize,
    const O_COLS: usize,
    const K_STEPS: usize,
    const Q_IN_REGISTERS: bool,
>(
    params: &ForwardParams,
    config: MmaTile,
    tile: Tile,
) {
    // SAFETY: forwarded to the caller.
    let work = unsafe { Work::new(params, config, tile) };
    if work.is_empty() {
        return;
    }
    // SAFETY: the warp is converged.
    let transform = || unsafe { work.transform::<E>() };
    let scale = transform();

    // Transformed scores always take the long way.
    let in_haste = scale.is_plain;
    let notes = Notes::new(work.stages, config);
    let mut checked = false;
    let mut careful = false;
    loop {
        let mut rows = [Row::new(); ROWS];
        let mut acc_o = [[0.0f32; O_COLS]; ROWS];
        let mut q = QFragments::<ROWS, K_STEPS, Q_IN_REGISTERS>::new();
        if work.begin < work.end {
            // SAFETY: the whole block is here, and shared memory is free. The notes of a careful tile take the place of
            // stage 0. The first barrier shows Q, though not yet the block of K and V.
            unsafe {
                work.load_q();
                if careful {
                    notes.clear();
                    commit_group();
                } else {
                    work.load_kv(0, work.begin);
                }
                if Q_IN_REGISTERS {
                    wait_group::<1>();
                    sync_threads();
                    q.fill(work.q_address(lane_id()));
                }
            }
        }

        let mut may_skip_max = false;
        let mut stage = 0;
        let mut n_block = work.begin;
        while n_block < work.end {
            let (next_block, next_stage) = if careful {
                stage = 1;
                (n_block, 1)
            } else {
                (n_block + 1, stage ^ 1)
            };
            wait_group::<0>();
            // SAFETY: the trip count is the same for the whole block. The barrier publishes this stage and frees the
            // other.
            unsafe {
                sync_threads();
                if next_block < work.end {
                    work.load_kv(next_stage, next_block);
                }
            }
            if careful {
                wait_group::<0>();
                // SAFETY: as above. The stage has arrived after the first barrier and is clean after the second.
                unsafe {
                    sync_threads();
                    let Sequence { seq_kv, band, .. } = work.info().sequence;
                    notes.clean::<E>(
                        config,
                        work.k_smem(1) + config.operand_bytes(),
                        work.key_begin(n_block),
                        work.m_begin(),
                        band,
                        seq_kv,
                    );
                    sync_threads();
                }
            }
            let lane = opaque(lane_id());
            // SAFETY: the warp is converged.
            let view = unsafe { work.warp_view(n_block) };
            if !view.hidden {
                let k_smem = work.k_smem(stage);
                let k = LaneAddress::k(k_smem, config.head_dim, lane);
                let v = LaneAddress::v(k_smem + config.operand_bytes(), config.head_dim, lane);

                // S = Q Kᵀ
                // SAFETY: Q and this block of K are in shared memory; the warp is converged.
                let mut acc_s = unsafe {
                    qk::<E, ROWS, S_COLS, K_STEPS, Q_IN_REGISTERS>(&q, work.q_address(lane), k)
                };

                // softmax
                let mut in_range = may_skip_max && !view.masked;
                // What overflows bf16 overflows the sum too, which the end of the tile notices.
                if let Some(limit) = E::LARGEST_EXPONENT
                    && checked
                {
                    let mut beyond = false;
                    for i in 0..ROWS {
                        beyond |= rows[i].p_exceeds(largest(&acc_s[i]), scale.scale_log2, limit);
                    }
                    // SAFETY: the warp is converged.
                    in_range &= !unsafe { any(beyond) };
                }
                if !in_range {
                    let transform = transform();
                    work.finish_scores(&mut acc_s, &transform, n_block, lane, view.masked);
                    // SAFETY: the warp is converged.
                    unsafe { update_max(&mut rows, &mut acc_o, &acc_s, &transform) };
                    may_skip_max = in_haste && !careful;
                    if E::LARGEST_EXPONENT.is_some() {
                        // A maximum over part of a block may be far below the next, for which f16 has no room.
                        may_skip_max &= !view.masked;
                    }
                    for row in &rows {
                        may_skip_max &= row.has_max();
                    }
                }
                // O += P V
                // SAFETY: this block of V is in shared memory; the warp is converged.
                unsafe {
                    pv::<E, ROWS, S_COLS, O_COLS>(&mut acc_o, &mut acc_s, v, |score, i| {
                        rows[i].accumulate(score, scale.scale_log2);
                    });
                    may_skip_max =
                        !any(!may_skip_max || Row::any_sum_reaches(&rows, E::STALE_SUM_LIMIT));
                }
            }
            stage ^= 1;
            n_block += 1;
        }

        let mut broken = false;
        for i in 0..ROWS {
            let mut sum = 0.0;
            for o in &acc_o[i] {
                sum = fma(*o, 0.0, sum);
            }
            broken |= sum != 0.0 || rows[i].has_overflowed();
        }
        // SAFETY: the whole block is here. The barrier also frees the stages. The vote's result is known to be the same in
        // all lanes, without which everything in this loop would count as divergent.
        let broken = unsafe { any(sync_threads_or(broken && !careful)) };
        if !broken {
            let tile_row = work.warp_row();
            let TileInfo { tile, sequence, .. } = work.info();
            let destination = Destination {
                params: &work.params(),
                sequence,
                head: tile.head,
                row_begin: work.m_begin() + tile_row,
                staging: work.q_smem + tile_row * row_bytes(config.head_dim),
                notes: if careful { Some(notes) } else { None },
                tile_row,
            };
            // SAFETY: forwarded to the caller.
            unsafe {
                destination.store::<E, ROWS, O_COLS>(&acc_o, &rows, config);
            }
            return;
        }
        careful = checked || E::LARGEST_EXPONENT.is_none();
        checked = true;
    }
}

/// Raises the rows' maxima to the largest scores so far, and rescales what was accumulated to them.
///
/// # Safety
/// All 32 lanes must reach the same call.
#[inline(always)]
unsafe fn update_max<const ROWS: usize, const S_COLS: usize, const O_COLS: usize>(
    rows: &mut [Row; ROWS],
    acc_o: &mut [[f32; O_COLS]; ROWS],
    acc_s: &[[f32; S_COLS]; ROWS],
    transform: &ScoreTransform,
) {
    let mut bits = [0.0; ROWS];
    let mut underflows = false;
    for i in 0..ROWS {
        // SAFETY: forwarded to the caller.
        bits[i] = rows[i].update_max(unsafe { Row::block_max(&acc_s[i], transform) });
        underflows |= rows[i].rescale_underflows(bits[i]);
    }
    let mut rescale = |bits: &[f32; ROWS]| {
        for i in 0..ROWS {
            let factor = exp2(bits[i]);
            rows[i].rescale(factor);
            for o in &mut acc_o[i] {
                *o *= factor;
            }
        }
    };
    // SAFETY: as above.
    if unsafe { any(underflows) } {
        // By the square root of the factor twice, as the factor is too small.
        for bits in &mut bits {
            *bits *= 0.5;
        }
        rescale(&bits);
    }
    rescale(&bits);
}
