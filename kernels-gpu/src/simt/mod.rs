//! Forward attention in fp32 on CUDA cores: the FlashAttention-2 loop (Dao 2023, algorithm 1).
//!
//! | who | does |
//! |---|---|
//! | block | owns `block_m` query rows of one head; walks the key blocks its rows can see |
//! | half-warp | owns `thread_rows` rows; lane `x` holds score columns `x + 16j` and a few output columns |
//! | every thread | copies its share of the next chunk with `cp.async` while computing on the current one |
//!
//! K and V arrive in chunks of equal size through one two-stage pipeline: `k_chunk` head dimensions of the
//! whole key block while S = Q Kᵀ builds up, then `v_chunk` rows of V while O += P V does.
//!
//! ```text
//! shared memory   q_smem  [block_m][head_dim + pad]
//!                 p_smem  [block_m][block_n + pad]      rows are private to a half-warp
//!                 stage 0, stage 1                      K [block_n][k_chunk + pad]  or  V [v_chunk][head_dim]
//! ```

mod copy;
mod epilogue;
mod gemm;

use cuda_std::cp_async::{commit_group, wait_group};
use cuda_std::shared;
use cuda_std::thread::{block_idx_x, grid_dim_x, sync_threads, thread_idx_x};
use cuda_std::warp::sync_warp;

use crate::abi::ForwardParams;
use crate::config::simt::SimtTile;
use crate::score::ScoreTransform;
use crate::tile::block_range::BlockRange;
use crate::tile::mask;
use crate::tile::opaque;
use crate::tile::row_state::RowState;
use crate::tile::schedule::{Tile, TileList};
use crate::tile::sequence::{Sequence, head_kv};
use crate::units::F32_BYTES;
use copy::Source;
use gemm::{pv, pv_guarded, qk, store_p};

const LANES: usize = SimtTile::LANES_PER_ROW;
const BLOCK_N: usize = SimtTile::BLOCK_N;
const SCORE_COLS: usize = SimtTile::SCORE_COLS;

/// Stands in P for a key that the row does not see, told by its sign from a probability that underflowed: the one
/// contributes nothing, the other NaN where V is not finite.
const HIDDEN: f32 = -0.0;

/// A thread's part of the score tile: `[row][j]` is column `lane + 16j`.
type Scores<const ROWS: usize> = [[f32; SCORE_COLS]; ROWS];

/// Softmax state of a row.
type Row = RowState<{ LANES as u32 }>;
/// No shift of exponents: f32 results need their last bits.
const SHIFT: f32 = 0.0;

/// Where a thread stands in the block's grid of `THREADS / LANES` by `LANES`.
#[derive(Clone, Copy)]
struct Place<const THREADS: u32> {
    /// Index over the rows; this thread's rows are `group + i · groups()`.
    group: u32,
    lane: u32,
}

impl<const THREADS: u32> Place<THREADS> {
    #[inline(always)]
    fn new(thread: u32) -> Self {
        Self {
            group: thread / LANES as u32,
            lane: thread % LANES as u32,
        }
    }

    #[inline(always)]
    const fn groups() -> u32 {
        THREADS / LANES as u32
    }

    /// Row `i` of this thread, from the first row of the tile.
    #[inline(always)]
    fn row(&self, i: usize) -> u32 {
        self.group + i as u32 * Self::groups()
    }
}

/// One pass over all tiles of the launch.
///
/// # Safety
/// `params` describes live allocations that hold every element it can address, and the launch has the
/// instance's block size and shared memory.
#[inline(always)]
pub unsafe fn forward<
    const HEAD_DIM: usize,
    const THREADS: u32,
    const ROWS: usize,
    const O_COLS: usize,
    const K_CHUNK: usize,
>(
    params: &ForwardParams,
) {
    let attention = &params.attention;
    let block_m = Place::<THREADS>::groups() * ROWS as u32;
    let tiles = TileList::new(attention.batch, attention.heads_q, attention.seq_q, block_m);
    let mut round = 0u64;
    loop {
        let index = opaque(block_idx_x()) as u64 + round * grid_dim_x() as u64;
        if index >= tiles.count {
            break;
        }
        // SAFETY: forwarded to the caller; the loop bound is the same for the whole block.
        unsafe {
            forward_tile::<HEAD_DIM, THREADS, ROWS, O_COLS, K_CHUNK>(params, tiles.get(index));
            // The next tile overwrites shared memory that others may still read.
            sync_threads();
        }
        round += 1;
    }
}

/// Computes one tile of `o` and `lse`.
///
/// # Safety
/// As [`forward`]; the whole block must call it with the same tile.
#[inline(always)]
unsafe fn forward_tile<
    const HEAD_DIM: usize,
    const THREADS: u32,
    const ROWS: usize,
    const O_COLS: usize,
    const K_CHUNK: usize,
>(
    params: &ForwardParams,
    tile: Tile,
) {
    let config = SimtTile {
        head_dim: HEAD_DIM,
        threads: THREADS,
        thread_rows: ROWS,
        k_chunk: K_CHUNK,
        min_blocks: 1,
    };
    let attention = &params.attention;
    let place = Place::<THREADS>::new(thread_idx_x());
    let block_m = config.block_m() as u32;
    let m_begin = tile.m_block * block_m;
    // What is cheap to work out is worked out where it is needed (hence `opaque`), as registers are what the main
    // loop is short of.
    // SAFETY: forwarded to the caller.
    let sequence = || unsafe { Sequence::new(attention, opaque(tile.batch)) };
    let Sequence {
        seq_q,
        seq_kv,
        band,
        ..
    } = sequence();
    if m_begin >= seq_q {
        return;
    }
    let m_end = (m_begin + block_m).min(seq_q);
    let blocks = BlockRange::new(m_begin, m_end, band, seq_kv, BLOCK_N as u32);

    let q_smem = shared::dynamic_base();
    let p_smem = q_smem + config.q_elems() as u32 * F32_BYTES;
    let stages = p_smem + config.p_elems() as u32 * F32_BYTES;
    let stage_bytes = config.stage_elems() as u32 * F32_BYTES;

    let head_kv = head_kv(attention, tile.head);
    let k_chunks = attention.head_dim.div_ceil(K_CHUNK as u32);
    let v_chunk = config.v_chunk() as u32;
    let load_k = |stage: u32, key_begin: u32, chunk: u32| {
        let sequence = sequence();
        let address = sequence.kv_address(&attention.k, head_kv, F32_BYTES);
        let k_gmem = Source::new(&attention.k, address, sequence.seq_kv, attention.head_dim);
        let dim_begin = chunk * K_CHUNK as u32;
        // SAFETY: the stage holds a chunk of K; nobody reads it until the next barrier.
        unsafe {
            k_gmem.copy::<THREADS, K_CHUNK, { SimtTile::ROW_PAD }>(
                stages + stage * stage_bytes,
                key_begin,
                BLOCK_N as u32,
                dim_begin,
            );
        }
        commit_group();
    };
    let load_v = |stage: u32, key_begin: u32, chunk: u32| {
        let sequence = sequence();
        let address = sequence.kv_address(&attention.v, head_kv, F32_BYTES);
        let v_gmem = Source::new(&attention.v, address, sequence.seq_kv, attention.head_dim_v);
        // SAFETY: as above, for a chunk of V.
        unsafe {
            v_gmem.copy::<THREADS, HEAD_DIM, 0>(
                stages + stage * stage_bytes,
                key_begin + chunk * v_chunk,
                v_chunk,
                0,
            );
        }
        commit_group();
    };

    // SAFETY: forwarded to the caller.
    let transform =
        || unsafe { ScoreTransform::new(&attention.score, opaque(tile.batch), tile.head, SHIFT) };
    let mut rows = [Row::new(); ROWS];
    let mut acc_o = [[0.0f32; O_COLS]; ROWS];
    let mut stage = 0;

    if blocks.begin < blocks.end {
        let address = sequence().q_address(&attention.q, tile.head, F32_BYTES);
        let q_gmem = Source::new(&attention.q, address, seq_q, attention.head_dim);
        // SAFETY: q_smem holds the tile.
        unsafe {
            q_gmem.copy::<THREADS, HEAD_DIM, { SimtTile::ROW_PAD }>(q_smem, m_begin, block_m, 0);
        }
        load_k(stage, blocks.begin * BLOCK_N as u32, 0);
    }

    let mut n_block = blocks.begin;
    while n_block < blocks.end {
        let key_begin = n_block * BLOCK_N as u32;
        let keys = (seq_kv - key_begin).min(BLOCK_N as u32);
        let v_chunks = keys.div_ceil(v_chunk);

        // S = Q Kᵀ
        let mut acc_s: Scores<ROWS> = [[0.0; SCORE_COLS]; ROWS];
        let mut chunk = 0;
        while chunk < k_chunks {
            wait_group::<0>();
            // SAFETY: the trip count is the same for the whole block. The barrier publishes this chunk
            // and frees the other stage.
            unsafe { sync_threads() };
            if chunk + 1 < k_chunks {
                load_k(stage ^ 1, key_begin, chunk + 1);
            } else {
                load_v(stage ^ 1, key_begin, 0);
            }
            let dim_begin = chunk * K_CHUNK as u32;
            // SAFETY: Q and this chunk are in shared memory.
            unsafe {
                qk::<THREADS, ROWS, HEAD_DIM, K_CHUNK>(
                    &mut acc_s,
                    q_smem + dim_begin * F32_BYTES,
                    stages + stage * stage_bytes,
                    place,
                    attention.head_dim - dim_begin,
                );
            }
            stage ^= 1;
            chunk += 1;
        }

        // softmax
        let transform = transform();
        let first_key = key_begin + place.lane;
        let query = |i: usize| m_begin + place.row(i);
        let column = |j: usize| (j * LANES) as i32;
        let Sequence {
            seq_q,
            seq_kv,
            band,
            ..
        } = sequence();
        let corner = seq_kv as i32 - seq_q as i32 - first_key as i32;
        transform.apply(&mut acc_s, |i| query(i) as i32 + corner, column);
        let masked = blocks.needs_mask(key_begin, BLOCK_N as u32);
        if masked {
            mask::hide(&mut acc_s, query, first_key, column, band, seq_kv);
        }
        for i in 0..ROWS {
            // SAFETY: all lanes run the same loop.
            let rescale = unsafe { rows[i].update(&mut acc_s[i], &transform) };
            for o in &mut acc_o[i] {
                *o *= rescale;
            }
        }
        if masked {
            mask::mark_hidden(&mut acc_s, query, first_key, column, band, seq_kv, HIDDEN);
        }
        // SAFETY: rows of P are private to this half-warp, which is done with the previous block's.
        unsafe {
            store_p(&acc_s, p_smem, place);
            sync_warp();
        }

        // O += P V
        let mut chunk = 0;
        while chunk < v_chunks {
            wait_group::<0>();
            // SAFETY: as in the loop over K.
            unsafe { sync_threads() };
            if chunk + 1 < v_chunks {
                load_v(stage ^ 1, key_begin, chunk + 1);
            } else if n_block + 1 < blocks.end {
                load_k(stage ^ 1, key_begin + BLOCK_N as u32, 0);
            }
            let chunk_begin = chunk * v_chunk;
            let p_chunk = p_smem + chunk_begin * F32_BYTES;
            let v_smem = stages + stage * stage_bytes;
            let keys = (keys - chunk_begin).min(v_chunk);
            // SAFETY: P and this chunk are in shared memory.
            unsafe {
                if masked {
                    pv_guarded::<THREADS, ROWS, O_COLS>(&mut acc_o, p_chunk, v_smem, place, keys);
                } else {
                    pv::<THREADS, ROWS, O_COLS>(&mut acc_o, p_chunk, v_smem, place, keys);
                }
            }
            stage ^= 1;
            chunk += 1;
        }
        n_block += 1;
    }

    // SAFETY: forwarded to the caller.
    unsafe {
        epilogue::store(
            &acc_o,
            &rows,
            Place::<THREADS>::new(opaque(thread_idx_x())),
            params,
            sequence(),
            tile.head,
            m_begin,
        )
    };
}
