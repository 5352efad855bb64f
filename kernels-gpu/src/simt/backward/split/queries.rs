//! The kernel of dq: dQ = dS K, of the dS that the other kernel left in the workspace.
//!
//! A tile of dS lies as `[key][query]`, so that the product is a sum of outer products, a key at a time: a thread takes two
//! runs of four queries and runs of four dimensions, all by loads of 16 bytes.
//!
//! ```text
//! stage 0, stage 1    dS [key_chunk][block_m], K [key_chunk][head_dim]
//! ```

use core::marker::PhantomData;

use cuda_std::cp_async::{commit_group, copy16, wait_group};
use cuda_std::math::fma;
use cuda_std::shared;
use cuda_std::thread::{block_idx_x, grid_dim_x, sync_threads, thread_idx_x};

use super::super::super::copy::SmemRect;
use super::super::super::epilogue::{RowOfTensor, store_runs};
use super::super::super::gemm::Columns;
use super::super::super::{MASKED_OUT, Workers};
use super::super::tile::Tile;
use super::{DS_ROW_BYTES, SplitQueriesKernel, ds_tiles};
use crate::abi::BackwardParams;
use crate::backward::side::{KeepQueries, Side};
use crate::config::simt_split::SplitQueriesConfig;
use crate::tile::black_box;
use crate::tile::block_range::BlockRange;
use crate::tile::grid::longest_first;
use crate::tile::sequence::head_kv;
use crate::tile::source::Source;
use crate::units::F32_BYTES;

const BLOCK_M: u32 = SplitQueriesConfig::BLOCK_M as u32;
const ROWS: usize = SplitQueriesConfig::THREAD_ROWS;
/// Consecutive queries or dimensions that a load takes.
const RUN: usize = 4;
const RUN_BYTES: u32 = RUN as u32 * F32_BYTES;
/// Threads that hold the same dimensions.
const GROUPS: u32 = BLOCK_M / ROWS as u32;

/// One tile a block. `COLS` and `LANES` are the configuration's `thread_cols` and `lanes`.
///
/// # Safety
/// As [`keys`](super::keys), which has run with the same parameters.
#[inline(always)]
pub unsafe fn queries<K: SplitQueriesKernel, const COLS: usize, const LANES: usize>(
    params: &BackwardParams,
) {
    let attention = &params.attention;
    let tiles = KeepQueries::tiles(attention, BLOCK_M);
    let tiles_of_head = attention.seq_q.div_ceil(BLOCK_M);
    let (head, of_head) = longest_first(block_idx_x(), grid_dim_x(), tiles_of_head);
    let head = first_head::<K>(params) as u32 + head;
    let index = head * tiles_of_head + of_head;
    let tile = Tile::<KeepQueries>::new(params, tiles.get(index), BLOCK_M);
    if tile.begin >= tile.rows_written() {
        return;
    }
    let mut sum = [[0.0; COLS]; ROWS];
    let mut blocks = KeyBlocks::<K>::new(&tile);
    if blocks.range.begin < blocks.range.end {
        multiply::<K, COLS, LANES>(&mut blocks, &mut sum);
    }
    store::<COLS, LANES>(&tile, &sum);
}

/// The first query head of the chunk, of those of all batch entries.
#[inline(always)]
fn first_head<K: SplitQueriesKernel>(params: &BackwardParams) -> u64 {
    params.ds.first_unit * ds_tiles(&params.attention, &K::CONFIG.keys).group as u64
}

/// Adds the products of all blocks of keys.
///
/// # Safety
/// The whole block calls it; there is a block of keys.
#[inline(always)]
unsafe fn multiply<K: SplitQueriesKernel, const COLS: usize, const LANES: usize>(
    blocks: &mut KeyBlocks<K>,
    sum: &mut [[f32; COLS]; ROWS],
) {
    let (block_n, key_chunk) = (blocks.block_n(), K::CONFIG.key_chunk as u32);
    let end = blocks.range.end * block_n;
    let mut key = blocks.range.begin * block_n;
    let mut stage = shared::dynamic_base();
    let mut free = stage + K::CONFIG.stage_bytes();
    blocks.load(stage, key);
    while key < end {
        wait_group::<0>();
        sync_threads();
        if key + key_chunk < end {
            blocks.load(free, key + key_chunk);
        }
        let block = key / block_n * block_n;
        // Keys beyond the sequence have no dS.
        let keys = blocks.seq_kv.saturating_sub(key).min(key_chunk);
        let is_plain = || {
            let [_, address] = operands::<K, LANES>(stage);
            let lanes = LANES as u32;
            // Where K is finite, what is masked out contributes nothing by itself.
            keys == key_chunk && Columns::<COLS> { address, lanes }.are_finite(keys)
        };
        if blocks.range.needs_mask(block, block_n) && !is_plain() {
            outer_products_masked::<K, COLS, LANES>(sum, stage, keys);
        } else {
            outer_products::<K, COLS, LANES>(sum, stage);
        }
        key += key_chunk;
        (stage, free) = (free, stage);
    }
}

/// The blocks of keys that some query of a tile sees.
struct KeyBlocks<'a, K> {
    tile: &'a Tile<'a, KeepQueries>,
    range: BlockRange,
    seq_kv: u32,
    kernel: PhantomData<K>,
}

impl<'a, K: SplitQueriesKernel> KeyBlocks<'a, K> {
    /// # Safety
    /// As [`Tile::sequence`]; the sequence has rows of the tile.
    #[inline(always)]
    unsafe fn new(tile: &'a Tile<'a, KeepQueries>) -> Self {
        let sequence = tile.sequence();
        let end = (tile.begin + BLOCK_M).min(sequence.seq_q);
        let (band, seq_kv) = (sequence.band, sequence.seq_kv);
        let block_n = K::CONFIG.block_n() as u32;
        Self {
            tile,
            range: BlockRange::new(tile.begin, end, band, seq_kv, block_n),
            seq_kv,
            kernel: PhantomData,
        }
    }

    #[inline(always)]
    fn block_n(&self) -> u32 {
        K::CONFIG.block_n() as u32
    }

    /// Starts loading the chunk that begins with key `key` to a free stage.
    ///
    /// # Safety
    /// The whole block calls it, and is done with the stage.
    #[inline(always)]
    unsafe fn load(&self, stage: u32, key: u32) {
        let workers = Workers {
            thread: black_box(thread_idx_x()),
            count: K::CONFIG.threads,
        };
        let vec16s = K::CONFIG.ds_bytes() / RUN_BYTES;
        let address = self.ds_address(key) + (workers.thread * RUN_BYTES) as u64;
        for step in 0..vec16s / workers.count {
            let offset = step * workers.count * RUN_BYTES;
            let to = stage + workers.thread * RUN_BYTES + offset;
            // SAFETY: the chunk is part of a tile of dS, which lies in the workspace.
            unsafe { copy16(to, address + offset as u64) };
        }
        let (params, sequence) = (self.tile.params, self.tile.sequence());
        let k = &params.attention.k;
        let head = head_kv(&params.attention, self.tile.coord.head);
        let address = sequence.kv_address(k, head, F32_BYTES);
        let k_gmem = Source::new(
            k,
            address,
            [self.seq_kv, params.attention.head_dim],
            F32_BYTES,
        );
        let to = SmemRect {
            address: stage + K::CONFIG.ds_bytes(),
            cols: K::CONFIG.keys.group.head_dim,
            pad: 0,
        };
        k_gmem.copy(workers, to, key, K::CONFIG.key_chunk as u32, 0);
        commit_group();
    }

    /// Address of the dS of key `key` and the tile's first query.
    ///
    /// # Safety
    /// As [`Tile::sequence`].
    #[inline(always)]
    unsafe fn ds_address(&self, key: u32) -> u64 {
        let params = self.tile.params;
        let coord = self.tile.coord;
        let head = coord.batch * params.attention.heads_q + coord.head;
        let head = head as u64 - first_head::<K>(params);
        let tiles = ds_tiles(&params.attention, &K::CONFIG.keys);
        let (kv_block, row) = (key / self.block_n(), key % self.block_n());
        let q_block = self.tile.begin / BLOCK_M;
        let start = params.ds.tiles.map_or(0, |address| address.get());
        // Heads follow each other, those of a group and those of the next unit.
        start + tiles.offset(0, head as u32, q_block, kv_block) + (row * DS_ROW_BYTES) as u64
    }
}

/// Where a thread's operands begin in a stage: of dS, and of K.
#[inline(always)]
fn operands<K: SplitQueriesKernel, const LANES: usize>(stage: u32) -> [u32; 2] {
    let thread = black_box(thread_idx_x());
    let (group, lane) = (thread / LANES as u32, thread % LANES as u32);
    let k_smem = stage + K::CONFIG.ds_bytes();
    [stage + group * RUN_BYTES, k_smem + lane * RUN_BYTES]
}

/// Row `i` of a thread, from the first of the tile.
#[inline(always)]
fn row(group: u32, i: usize) -> u32 {
    let (run, place) = (i / RUN, i % RUN);
    run as u32 * GROUPS * RUN as u32 + group * RUN as u32 + place as u32
}

/// The dS of a thread's queries, and one key.
///
/// # Safety
/// They are in shared memory.
#[inline(always)]
unsafe fn load_ds(address: u32) -> [f32; ROWS] {
    let mut ds = [0.0; ROWS];
    for run in 0..ROWS / RUN {
        let values = shared::load4(address + run as u32 * GROUPS * RUN_BYTES);
        for place in 0..RUN {
            ds[run * RUN + place] = values[place];
        }
    }
    ds
}

/// `sum += dS K` of a whole chunk.
///
/// # Safety
/// The stage holds a chunk.
#[inline(always)]
unsafe fn outer_products<K: SplitQueriesKernel, const COLS: usize, const LANES: usize>(
    sum: &mut [[f32; COLS]; ROWS],
    stage: u32,
) {
    const UNROLLED: u32 = 2;
    let k_row_bytes = K::CONFIG.keys.group.head_dim as u32 * F32_BYTES;
    let [mut ds_address, mut k_address] = operands::<K, LANES>(stage);
    let mut steps = black_box(K::CONFIG.key_chunk as u32 / UNROLLED);
    while steps > 0 {
        for key in 0..UNROLLED {
            let ds = load_ds(ds_address + key * DS_ROW_BYTES);
            for j in 0..COLS / RUN {
                let offset = key * k_row_bytes + (j * LANES) as u32 * RUN_BYTES;
                let k_frag = shared::load4(k_address + offset);
                for i in 0..ROWS {
                    for col in 0..RUN {
                        let dq = &mut sum[i][j * RUN + col];
                        *dq = fma(ds[i], k_frag[col], *dq);
                    }
                }
            }
        }
        ds_address += UNROLLED * DS_ROW_BYTES;
        k_address += UNROLLED * k_row_bytes;
        steps -= 1;
    }
}

/// [`outer_products`] of `keys` keys, of which [`MASKED_OUT`] contributes nothing, even where K is not finite.
///
/// # Safety
/// As [`outer_products`].
#[inline(always)]
unsafe fn outer_products_masked<K: SplitQueriesKernel, const COLS: usize, const LANES: usize>(
    sum: &mut [[f32; COLS]; ROWS],
    stage: u32,
    keys: u32,
) {
    let k_row_bytes = K::CONFIG.keys.group.head_dim as u32 * F32_BYTES;
    let [mut ds_address, mut k_address] = operands::<K, LANES>(stage);
    let mut keys = black_box(keys);
    while keys > 0 {
        let ds = load_ds(ds_address);
        for j in 0..COLS / RUN {
            let k_frag = shared::load4(k_address + (j * LANES) as u32 * RUN_BYTES);
            for i in 0..ROWS {
                let visible = ds[i].to_bits() != MASKED_OUT.to_bits();
                for col in 0..RUN {
                    // A choice of sums, not of factors, would hold every sum twice.
                    let k = if visible { k_frag[col] } else { 0.0 };
                    let dq = &mut sum[i][j * RUN + col];
                    *dq = fma(ds[i], k, *dq);
                }
            }
        }
        ds_address += DS_ROW_BYTES;
        k_address += k_row_bytes;
        keys -= 1;
    }
}

/// Writes the rows of dq that this thread holds.
///
/// # Safety
/// As [`Tile::sequence`].
#[inline(always)]
unsafe fn store<const COLS: usize, const LANES: usize>(
    tile: &Tile<KeepQueries>,
    sum: &[[f32; COLS]; ROWS],
) {
    let params = tile.params;
    let dq = &params.dq;
    let sequence = tile.sequence();
    let head_address = sequence.q_address(dq, tile.coord.head, F32_BYTES);
    let scale = params.attention.score.softmax_scale;
    let thread = black_box(thread_idx_x());
    let (group, lane) = (thread / LANES as u32, thread % LANES as u32);
    for i in 0..ROWS {
        let row = tile.begin + row(group, i);
        if row >= sequence.seq_q {
            continue;
        }
        let mut values = [0.0; COLS];
        for (value, sum) in values.iter_mut().zip(&sum[i]) {
            *value = sum * scale;
        }
        let offset = row as i64 * dq.seq_stride * F32_BYTES as i64;
        let to = RowOfTensor {
            tensor: dq,
            address: head_address.wrapping_add_signed(offset),
            dims: params.attention.head_dim,
        };
        store_runs::<LANES, COLS>(&to, lane, &values);
    }
}
