//! Forward attention in fp32 on CUDA cores: the FlashAttention-2 loop (Dao 2023, algorithm 1).
//!
//! | who | does |
//! |---|---|
//! | block | owns `block_m` query rows of one head; walks the key blocks its rows can see |
//! | 16 lanes, every other one of a warp | own `thread_rows` rows; lane `x` holds score columns `x + 16j` and a few output columns |
//! | every thread | copies its share of the next chunk with `cp.async` while computing on the current one |
//!
//! K and V arrive in chunks of equal size through one two-stage pipeline: `k_chunk` head dimensions of the
//! whole key block while S = Q Kᵀ builds up, then `v_chunk` rows of V while O += P V does.
//!
//! ```text
//! shared memory   q_smem  [block_m][head_dim + pad]
//!                 p_smem  [block_m][block_n + pad]      rows are private to the lanes of a row
//!                 stage 0, stage 1                      K [block_n][k_chunk + pad]  or  V [v_chunk][head_dim]
//! ```

use cuda_std::shared;
use cuda_std::thread::{block_idx_x, thread_idx_x};
use cuda_std::warp::sync_warp;

use super::context::TileContext;
use super::gemm::{pv_maybe_masked, qk, store_p};
use super::kv_loader::KvLoader;
use super::{
    BLOCK_N, LANES, MASKED_OUT, Row, SCORE_COLS, Scores, SimtKernel, ThreadLayout, epilogue,
};
use crate::abi::{BlockState, ForwardParams};
use crate::modifiers::{Modifiers, Pair};
use crate::tile::black_box;
use crate::tile::block_range::BlockRange;
use crate::tile::grid::{BlockCoord, TileGrid};
use crate::tile::l2::sections_of_queries;
use crate::tile::mask;
use crate::tile::sequence::Sequence;
use crate::units::F32_BYTES;

/// One pass over all tiles of the launch. `ROWS` and `O_COLS` are the configuration's `thread_rows` and `output_cols`.
///
/// # Safety
/// `params` describes live allocations that hold every element it can address, and the launch has the
/// instance's block size and shared memory.
#[inline(always)]
pub unsafe fn forward<K: SimtKernel, const ROWS: usize, const O_COLS: usize>(
    params: &ForwardParams,
    modifiers: &K::Modifiers,
) {
    let attention = &params.attention;
    let block_m = K::CONFIG.block_m() as u32;
    let tiles = TileGrid::new(attention.batch, attention.heads_q, attention.seq_q, block_m);
    // Where tiles differ in length, all heads' last ones would wait for the last head's longest.
    let sections = sections_of_queries(attention, F32_BYTES, tiles.m_blocks());
    let coord = tiles.get_by_sections(block_idx_x(), sections);
    // SAFETY: forwarded to the caller; the launch has a block for each tile.
    unsafe { forward_tile::<K, ROWS, O_COLS>(params, modifiers, coord) };
}

/// Computes one tile of `o` and `lse`.
///
/// # Safety
/// As [`forward`]; the whole block must call it with the same tile.
#[inline(always)]
unsafe fn forward_tile<K: SimtKernel, const ROWS: usize, const O_COLS: usize>(
    params: &ForwardParams,
    modifiers: &K::Modifiers,
    coord: BlockCoord,
) {
    let attention = &params.attention;
    let layout = ThreadLayout::new::<K>(thread_idx_x());
    let block_m = K::CONFIG.block_m() as u32;
    let m_begin = coord.m_block * block_m;
    let tile = TileContext {
        params,
        modifiers,
        coord,
        m_begin,
    };
    let sequence = tile.sequence();
    let Sequence {
        seq_q,
        seq_kv,
        band,
        ..
    } = sequence;
    if m_begin >= seq_q {
        return;
    }
    let m_end = (m_begin + block_m).min(seq_q);
    let mut blocks = BlockRange::new(m_begin, m_end, band, seq_kv, BLOCK_N as u32);
    if modifiers.hides() {
        // Any block may be shown: the states tell.
        blocks = BlockRange::all(seq_kv, BLOCK_N as u32);
        blocks.begin = tile.first_shown(0, blocks.end);
    }

    let q_smem = shared::dynamic_base();
    let p_smem = q_smem + K::CONFIG.p_offset();
    let mut kv = KvLoader::<K>::new(&tile, &sequence, q_smem + K::CONFIG.stages_offset());

    let mut rows = [Row::new(); ROWS];
    let mut acc_o = [[0.0f32; O_COLS]; ROWS];
    if blocks.begin < blocks.end {
        kv.load_q(q_smem, seq_q);
        kv.load_k(kv.stages.first(), blocks.begin * BLOCK_N as u32, 0);
    }
    let mut n_block = blocks.begin;
    while n_block < blocks.end {
        let key_begin = n_block * BLOCK_N as u32;
        let keys = (seq_kv - key_begin).min(BLOCK_N as u32);
        let next_block = tile.first_shown(n_block + 1, blocks.end);

        // S = Q Kᵀ
        let mut acc_s: Scores<ROWS> = [[0.0; SCORE_COLS]; ROWS];
        qk_block(&mut kv, &mut acc_s, q_smem, key_begin, layout);

        // softmax
        let needs_mask = softmax_block(
            &tile, layout, &blocks, key_begin, &mut rows, &mut acc_s, &mut acc_o,
        );
        // SAFETY: rows of P are private to the lanes of a row, whose warp is done with the previous block's.
        unsafe {
            store_p(&acc_s, p_smem, layout);
            sync_warp();
        }

        // O += P V
        let block = KeyBlock {
            begin: key_begin,
            keys,
            needs_mask,
            next_begin: (next_block < blocks.end).then_some(next_block * BLOCK_N as u32),
        };
        pv_block(&mut kv, &mut acc_o, p_smem, block, layout);
        n_block = next_block;
    }

    let layout = ThreadLayout::new::<K>(black_box(thread_idx_x()));
    epilogue::store(&acc_o, &rows, layout, &tile);
}

/// S = Q Kᵀ, chunk by chunk of head dimensions. Starts loading the first chunk of V.
///
/// # Safety
/// As [`forward_tile`]; the first chunk of K is asked for.
#[inline(always)]
unsafe fn qk_block<K: SimtKernel, const ROWS: usize>(
    kv: &mut KvLoader<K>,
    acc_s: &mut Scores<ROWS>,
    q_smem: u32,
    key_begin: u32,
    layout: ThreadLayout,
) {
    let k_chunks = kv.k_chunks();
    let mut chunk = 0;
    while chunk < k_chunks {
        let free = kv.stages.wait();
        if chunk + 1 < k_chunks {
            kv.load_k(free, key_begin, chunk + 1);
        } else {
            kv.load_v(free, key_begin, 0);
        }
        let dim_begin = chunk * K::CONFIG.k_chunk as u32;
        let q_chunk = q_smem + dim_begin * F32_BYTES;
        let dims = kv.head_dim() - dim_begin;
        qk::<K, ROWS>(acc_s, q_chunk, kv.stages.chunk_smem(), layout, dims);
        kv.stages.advance();
        chunk += 1;
    }
}

/// A block of keys, for O += P V.
#[derive(Clone, Copy)]
struct KeyBlock {
    /// First key.
    begin: u32,
    /// Number of its keys, at most [`BLOCK_N`].
    keys: u32,
    /// Whether P holds [`MASKED_OUT`].
    needs_mask: bool,
    /// First key of the block after it, if the tile's rows see one.
    next_begin: Option<u32>,
}

/// O += P V, chunk by chunk of rows of V. Starts loading the first chunk of the next block of K.
///
/// # Safety
/// As [`forward_tile`]; P is stored, and the first chunk of V is asked for.
#[inline(always)]
unsafe fn pv_block<K: SimtKernel, const ROWS: usize, const O_COLS: usize>(
    kv: &mut KvLoader<K>,
    acc_o: &mut [[f32; O_COLS]; ROWS],
    p_smem: u32,
    block: KeyBlock,
    layout: ThreadLayout,
) {
    let v_chunk = K::CONFIG.v_chunk() as u32;
    let v_chunks = block.keys.div_ceil(v_chunk);
    let mut chunk = 0;
    while chunk < v_chunks {
        let free = kv.stages.wait();
        if chunk + 1 < v_chunks {
            kv.load_v(free, block.begin, chunk + 1);
        } else if let Some(next_begin) = block.next_begin {
            kv.load_k(free, next_begin, 0);
        }
        let chunk_begin = chunk * v_chunk;
        let p_chunk = p_smem + chunk_begin * F32_BYTES;
        let v_smem = kv.stages.chunk_smem();
        let keys = (block.keys - chunk_begin).min(v_chunk);
        pv_maybe_masked::<K, _, _>(acc_o, p_chunk, v_smem, layout, keys, block.needs_mask);
        kv.stages.advance();
        chunk += 1;
    }
}

/// Online softmax of a block of `q · k`: scales and masks it, turns it into probabilities under the new maxima, and
/// rescales what was accumulated under the old ones. Returns whether the block has keys that are masked out.
///
/// # Safety
/// As [`forward_tile`].
#[inline(always)]
unsafe fn softmax_block<M: Modifiers, const ROWS: usize, const O_COLS: usize>(
    tile: &TileContext<M>,
    layout: ThreadLayout,
    blocks: &BlockRange,
    key_begin: u32,
    rows: &mut [Row; ROWS],
    acc_s: &mut Scores<ROWS>,
    acc_o: &mut [[f32; O_COLS]; ROWS],
) -> bool {
    let transform = tile.transform();
    let first_key = key_begin + layout.lane;
    let query = |i: usize| tile.m_begin + layout.row(i);
    let column = |j: usize| (j * LANES) as i32;
    let Sequence {
        seq_q,
        seq_kv,
        band,
        ..
    } = tile.sequence();
    let causal_offset = seq_kv as i32 - seq_q as i32;
    let first_distance = causal_offset - first_key as i32;
    transform.apply(acc_s, |i| query(i) as i32 + first_distance, column);
    let modifiers = tile.modifiers;
    let at = tile.place();
    let pair = |i: usize, j: usize| Pair {
        query: query(i),
        key: first_key + column(j) as u32,
    };
    if modifiers.changes_scores() {
        modifiers.change(|| at, acc_s, pair);
    }
    let needs_mask = if modifiers.hides() {
        tile.state(key_begin / BLOCK_N as u32) != BlockState::Full as u32
    } else {
        blocks.needs_mask(key_begin, BLOCK_N as u32)
    };
    let hides = modifiers.hides();
    if needs_mask && hides {
        modifiers.hide(|| at, acc_s, pair, f32::NEG_INFINITY);
    } else if needs_mask {
        mask::apply_mask(acc_s, query, first_key, column, band, seq_kv);
    }
    for i in 0..ROWS {
        let rescale = rows[i].update(&mut acc_s[i], &transform);
        for o in &mut acc_o[i] {
            *o *= rescale;
        }
    }
    if !M::IS_NONE
        && let Some(dropout) = modifiers.dropout(&at)
    {
        drop_pairs(acc_s, |i, j| dropout.keeps(pair(i, j)));
    }
    if needs_mask && hides {
        modifiers.hide(|| at, acc_s, pair, MASKED_OUT);
    } else if needs_mask {
        mask::mark_masked_out(acc_s, query, first_key, column, band, seq_kv, MASKED_OUT);
    }
    needs_mask
}

/// Sets what is not kept to 0, unless it is [`MASKED_OUT`].
#[inline(always)]
pub(super) fn drop_pairs<const ROWS: usize>(
    p: &mut Scores<ROWS>,
    keeps: impl Fn(usize, usize) -> bool,
) {
    for i in 0..ROWS {
        // A loop that stays one: unrolled, the calls in it would be most of a kernel's instructions.
        let (mut kept, mut j) = (0, 0);
        while j < black_box(SCORE_COLS as u32) {
            kept |= u32::from(keeps(i, j as usize)) << j;
            j += 1;
        }
        for j in 0..SCORE_COLS {
            if kept >> j & 1 == 0 && p[i][j].to_bits() != MASKED_OUT.to_bits() {
                p[i][j] = 0.0;
            }
        }
    }
}
