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
//! ```
//!
//! All tiles are swizzled ([`crate::layout::swizzle`]). One barrier a block of keys: it shows the block that has
//! arrived, and that nobody reads the one before it any more.
//!
//! The tile is computed in haste first: rows that have a reference keep it while the sums stay in range (f16 also
//! checks each block's scores), and hidden keys rely on 0·v = 0. Both go wrong only by making an output ∞ or NaN.
//! When one is, the tile is computed again with care, which gives the same where inputs are to blame.

mod copy;
pub mod element;
mod epilogue;
mod frame;
mod gemm;
mod guard;

use cuda_std::cp_async::{commit_group, wait_group};
use cuda_std::math::fma;
use cuda_std::shared;
use cuda_std::thread::{block_idx_x, grid_dim_x, sync_threads, sync_threads_or, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, any, lane_id, uniform};

use crate::abi::{ForwardParams, TensorArg};
use crate::config::mma::MmaTile;
use crate::layout::fragment::{TILE_M, row_column};
use crate::layout::swizzle::row_bytes;
use crate::tile::block_range::BlockRange;
use crate::tile::mask;
use crate::tile::schedule::{Tile, TileList};
use crate::tile::score::ScoreTransform;
use crate::tile::sequence::{Sequence, head_kv};
use crate::tile::softmax::RowState;
use crate::tile::{opaque, opaque64};
use copy::Source;
use element::Element;
use epilogue::Destination;
use frame::{Frame, HeadKv, TileInfo};
use gemm::{LaneAddress, QFragments, pv, qk};
use guard::Notes;

/// Bytes of an element of q, k, v and o.
const ELEM_BYTES: u32 = 2;

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
        let params = anew(params);
        let tiles = TileList::new(
            params.batch,
            params.heads_q,
            params.seq_q,
            config.block_m() as u32,
        );
        let index = opaque(block_idx_x()) as u64 + round as u64 * grid_dim_x() as u64;
        if index >= tiles.count {
            break;
        }
        // SAFETY: forwarded to the caller; the loop bound is the same for the whole block.
        unsafe {
            forward_tile::<E, ROWS, S_COLS, O_COLS, K_STEPS, Q_IN_REGISTERS>(
                &params,
                config,
                tiles.get(index),
            );
            // The next tile overwrites shared memory that others may still read.
            sync_threads();
        }
        round += 1u32;
    }
}

/// The parameters, such that what is worked out from them is worked out again the next time.
#[inline(always)]
fn anew(params: &ForwardParams) -> ForwardParams {
    const WORDS: usize = size_of::<ForwardParams>() / size_of::<u64>();
    let mut words: [u64; WORDS] = bytemuck::cast(*params);
    for word in &mut words {
        *word = opaque64(*word);
    }
    bytemuck::cast(words)
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
    let (block_m, block_n) = (config.block_m() as u32, config.block_n as u32);
    let head_dim = config.head_dim;
    // SAFETY: forwarded to the caller.
    let sequence = unsafe { Sequence::new(params, tile.batch) };
    let m_begin = tile.m_block * block_m;
    if m_begin >= sequence.seq_q {
        return;
    }
    let m_end = (m_begin + block_m).min(sequence.seq_q);
    let blocks = BlockRange::new(m_begin, m_end, sequence.band, sequence.seq_kv, block_n);
    // SAFETY: the whole block is here.
    let blocks = blocks.map(|number| unsafe { uniform(number) });

    let stages = shared::dynamic_base();
    let q_smem = stages + config.q_offset();
    let frame = Frame {
        address: stages + config.frame_offset(),
    };
    // SAFETY: the whole block is here, and shared memory is free.
    unsafe {
        let head_kv = head_kv(params, tile.head);
        let head = |operand: &TensorArg, dims: u32| {
            let address = sequence.kv_address(operand, head_kv, ELEM_BYTES);
            let source = Source::new(operand, address, sequence.seq_kv, dims);
            HeadKv {
                address,
                plain: source.has_plain_rows(config),
            }
        };
        frame.store(TileInfo {
            tile,
            sequence,
            k: head(&params.k, params.head_dim),
            v: head(&params.v, params.head_dim_v),
        });
        sync_threads();
    }
    // SAFETY: it is written.
    let info = || unsafe { frame.load() };

    let warp_rows = (config.warp_tiles * TILE_M) as u32;
    // First row of the warp in the tile.
    // SAFETY: the whole block is here.
    let warp = unsafe { uniform(thread_idx_x() / WARP_SIZE) };
    let warp_row = || opaque(warp) * warp_rows;

    let load_q = || {
        let TileInfo { tile, sequence, .. } = info();
        let params = anew(params);
        let address = sequence.q_address(&params.q, tile.head, ELEM_BYTES);
        let q_gmem = Source::new(&params.q, address, sequence.seq_q, params.head_dim);
        // SAFETY: q_smem holds the tile; nobody accesses it until the next barrier.
        unsafe {
            let plain = q_gmem.has_plain_rows(config);
            q_gmem.copy(config, q_smem, tile.m_block * block_m, block_m, plain);
        }
        commit_group();
    };
    let load_kv = |stage_smem: u32, n_block: u32| {
        let key_begin = n_block * block_n;
        let TileInfo { sequence, k, v, .. } = info();
        let params = anew(params);
        let seq_kv = sequence.seq_kv;
        let k_gmem = Source::new(&params.k, k.address, seq_kv, params.head_dim);
        let v_gmem = Source::new(&params.v, v.address, seq_kv, params.head_dim_v);
        let v_smem = stage_smem + config.operand_bytes();
        // SAFETY: the stage holds a block of K and of V; nobody reads it until the next barrier.
        unsafe {
            k_gmem.copy(config, stage_smem, key_begin, block_n, k.plain);
            v_gmem.copy(config, v_smem, key_begin, block_n, v.plain);
        }
        commit_group();
    };

    let transform = || {
        let params = anew(params);
        let tile = info().tile;
        // SAFETY: forwarded to the caller; the warp is converged.
        unsafe { ScoreTransform::new(&params, uniform(tile.batch), uniform(tile.head), E::SHIFT) }
    };
    let scale = transform();

    // Transformed scores always take the long way.
    let in_haste = scale.is_identity();
    let notes = Notes::new(stages, config);
    let mut careful = false;
    loop {
        let mut rows = [Row::new(); ROWS];
        let mut acc_o = [[0.0f32; O_COLS]; ROWS];
        let q_address = |lane: u32| {
            let warp_smem = q_smem + warp_row() * row_bytes(head_dim);
            LaneAddress::q(warp_smem, head_dim, lane)
        };
        let mut q = QFragments::<ROWS, K_STEPS, Q_IN_REGISTERS>::new();
        if blocks.begin < blocks.end {
            load_q();
            if careful {
                // SAFETY: stage 0 is free.
                unsafe { notes.clear() };
                commit_group();
            } else {
                load_kv(stages, blocks.begin);
            }
            if Q_IN_REGISTERS {
                // Not for the block of K and V.
                wait_group::<1>();
                // SAFETY: the whole block is here; the barrier shows it Q.
                unsafe {
                    sync_threads();
                    q.fill(q_address(lane_id()));
                }
            }
        }

        let mut settled = false;
        let mut stage = 0;
        let mut n_block = blocks.begin;
        while n_block < blocks.end {
            let key_begin = n_block * block_n;
            let (next_block, next_stage) = if careful {
                stage = 1;
                (n_block, 1)
            } else {
                (n_block + 1, stage ^ 1)
            };
            wait_group::<0>();
            // SAFETY: the trip count is the same for the whole block. The barrier publishes this stage and frees the
            // other.
            unsafe { sync_threads() };
            if next_block < blocks.end {
                load_kv(stages + next_stage * config.stage_bytes(), next_block);
            }
            if careful {
                wait_group::<0>();
                let TileInfo { tile, sequence, .. } = info();
                // SAFETY: the whole block is here. The stage has arrived after the first barrier and is clean after the
                // second.
                unsafe {
                    sync_threads();
                    let v_smem = stages + config.stage_bytes() + config.operand_bytes();
                    notes.clean::<E>(
                        config,
                        v_smem,
                        key_begin,
                        tile.m_block * block_m,
                        sequence.band,
                        sequence.seq_kv,
                    );
                    sync_threads();
                }
            }
            let lane = opaque(lane_id());
            let masked = blocks.needs_mask(key_begin, block_n);
            let mut warp_masked = false;
            let mut warp_hidden = false;
            if masked {
                let TileInfo { tile, sequence, .. } = info();
                let Sequence {
                    seq_q,
                    seq_kv,
                    band,
                    ..
                } = sequence;
                let warp_begin = tile.m_block * block_m + warp_row();
                let warp_end = (warp_begin + warp_rows).min(seq_q);
                let warp_blocks =
                    BlockRange::new(warp_begin.min(seq_q - 1), warp_end, band, seq_kv, block_n);
                // SAFETY: the warp is converged.
                unsafe {
                    warp_masked = any(warp_blocks.needs_mask(key_begin, block_n));
                    warp_hidden = any(n_block < warp_blocks.begin || n_block >= warp_blocks.end);
                }
            }
            if !warp_hidden {
                let k_smem = stages + stage * config.stage_bytes();
                let k = LaneAddress::k(k_smem, head_dim, lane);

                // S = Q Kᵀ
                // SAFETY: Q and this block of K are in shared memory; the warp is converged.
                let mut acc_s = unsafe {
                    qk::<E, ROWS, S_COLS, K_STEPS, Q_IN_REGISTERS>(&q, q_address(lane), k)
                };

                // softmax
                let v_smem = k_smem + config.operand_bytes();
                let v = LaneAddress::v(v_smem, head_dim, lane);
                let mut in_range = settled && !warp_masked;
                if let Some(limit) = E::LARGEST_EXPONENT {
                    let mut beyond = false;
                    for i in 0..ROWS {
                        beyond |= rows[i].exceeds(&acc_s[i], &scale, limit);
                    }
                    // SAFETY: the warp is converged.
                    in_range &= !unsafe { any(beyond) };
                }
                if !in_range {
                    let transform = transform();
                    let TileInfo { tile, sequence, .. } = info();
                    let Sequence {
                        seq_q,
                        seq_kv,
                        band,
                        ..
                    } = sequence;
                    let lane_row = tile.m_block * block_m + warp_row() + lane / 4;
                    let query = |i: usize| lane_row + i as u32 * 8;
                    let column = |j: usize| row_column(0, j as u32) as i32;
                    let first_key = key_begin + lane % 4 * 2;
                    let corner = seq_kv as i32 - seq_q as i32 - first_key as i32;
                    transform.apply(&mut acc_s, |i| query(i) as i32 + corner, column);
                    if warp_masked {
                        mask::hide(&mut acc_s, query, first_key, column, band, seq_kv);
                    }
                    for i in 0..ROWS {
                        // SAFETY: all lanes run the same loop.
                        let rescale = unsafe { rows[i].follow(&acc_s[i], &transform) };
                        for o in &mut acc_o[i] {
                            *o *= rescale;
                        }
                    }
                    settled = in_haste && !careful;
                    for row in &rows {
                        settled &= row.has_reference();
                    }
                }
                // O += P V
                // SAFETY: this block of V is in shared memory; the warp is converged.
                unsafe {
                    pv::<E, ROWS, S_COLS, O_COLS>(&mut acc_o, &mut acc_s, v, |score, i| {
                        rows[i].accumulate(score, &scale);
                    });
                }
                // SAFETY: the warp is converged.
                settled = unsafe { !any(!settled || Row::exceed(&rows, E::SETTLED_LIMIT)) };
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
            broken |= sum != 0.0;
        }
        // SAFETY: the whole block is here. The barrier also frees the stages.
        let broken = unsafe { any(sync_threads_or(broken && !careful)) };
        if !broken {
            let tile_row = warp_row();
            let TileInfo { tile, sequence, .. } = info();
            let destination = Destination {
                params: &anew(params),
                sequence,
                head: tile.head,
                row_begin: tile.m_block * block_m + tile_row,
                staging: q_smem + tile_row * row_bytes(head_dim),
                notes: if careful { Some(notes) } else { None },
                tile_row,
            };
            // SAFETY: forwarded to the caller.
            unsafe {
                destination.store::<E, ROWS, O_COLS>(&acc_o, &rows, config);
            }
            return;
        }
        careful = true;
    }
}
