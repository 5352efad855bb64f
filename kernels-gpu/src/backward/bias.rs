//! The gradient by a bias: who writes which of its elements.
//!
//! A block owns a tile of keys of every batch entry and head that it is summed over, and takes them one after the other: whatever an
//! element is the sum of, the same threads add it, in one order. It keeps the keys while all queries pass, so that a bias that
//! queries share is summed in the same way as any other.

use core::ops::Range;

use cuda_std::global;
use cuda_std::thread::{block_dim_x, sync_threads, thread_idx_x};
use cuda_std::warp::WARP_SIZE;

use crate::abi::{AttentionParams, BiasGradientParams};
use crate::modifiers::{Pair, Place, pair_address};
use crate::tile::black_box;
use crate::tile::grid::{BlockCoord, TileGrid};
use crate::units::F32_BYTES;

/// The tiles that blocks own, of `block_m` keys.
#[inline(always)]
pub fn owners(params: &BiasGradientParams, attention: &AttentionParams, block_m: u32) -> TileGrid {
    let heads = if params.heads == 1 {
        1
    } else {
        attention.heads_kv
    };
    TileGrid::new(params.batch, heads, attention.seq_kv, block_m)
}

/// What a block owns.
#[derive(Clone, Copy)]
pub struct Owned {
    coord: BlockCoord,
}

impl Owned {
    /// Tile `coord` of [`owners`].
    #[inline(always)]
    pub fn new(coord: BlockCoord) -> Self {
        Self { coord }
    }

    /// The batch entries that it takes.
    #[inline(always)]
    pub fn batches(&self, params: &BiasGradientParams, attention: &AttentionParams) -> Range<u32> {
        of_axis(params.batch, attention.batch, self.coord.batch)
    }

    /// The heads of k and v.
    #[inline(always)]
    pub fn heads(&self, params: &BiasGradientParams, attention: &AttentionParams) -> Range<u32> {
        of_axis(params.heads, attention.heads_kv, self.coord.head)
    }

    /// Its tile, with a batch entry and a head that it takes.
    #[inline(always)]
    pub fn tile(&self, batch: u32, head: u32) -> BlockCoord {
        BlockCoord {
            m_block: self.coord.m_block,
            head,
            batch,
        }
    }

    /// Sets its elements to 0, of keys from `begin` on, if that is needed before others are written.
    ///
    /// # Safety
    /// The gradient is live, and the whole block, of whole warps, reaches the same call.
    #[inline(always)]
    pub unsafe fn fill(
        &self,
        params: &BiasGradientParams,
        attention: &AttentionParams,
        [begin, block_m]: [u32; 2],
    ) {
        if params.fills == 0 {
            return;
        }
        let end = (begin + block_m).min(attention.seq_kv);
        let thread = black_box(thread_idx_x());
        let (lane, warp) = (thread % WARP_SIZE, thread / WARP_SIZE);
        let warps = block_dim_x() / WARP_SIZE;
        let of_query_heads = query_heads(params, attention, self.coord.head);
        let mut head = of_query_heads.start;
        while head < of_query_heads.end {
            let mut query = warp;
            while query < params.queries {
                let d_bias = &params.d_bias;
                let base = d_bias.address.map_or(0, |address| address.get());
                let row = self.coord.batch as i64 * d_bias.batch_stride
                    + head as i64 * d_bias.head_stride
                    + query as i64 * d_bias.query_stride;
                let row = base.wrapping_add_signed(row * F32_BYTES as i64);
                let mut key = begin + lane;
                while key < end {
                    // SAFETY: the element is the block's.
                    unsafe { global::store(row + key as u64 * F32_BYTES as u64, 0.0) };
                    key += WARP_SIZE;
                }
                query += warps;
            }
            head += 1;
        }
        // SAFETY: the caller vouches that all threads are here. Whoever adds to an element sees it.
        unsafe { sync_threads() };
    }
}

/// What a block takes of an axis of `extent`, of which the gradient has `size` elements, 1 or all.
#[inline(always)]
fn of_axis(size: u32, extent: u32, index: u32) -> Range<u32> {
    if size == 1 {
        0..extent
    } else {
        index..index + 1
    }
}

/// The heads of the gradient that belong to a block that takes head `head` of k and v, or all.
#[inline(always)]
fn query_heads(params: &BiasGradientParams, attention: &AttentionParams, head: u32) -> Range<u32> {
    if params.heads == 1 {
        return 0..1;
    }
    // SAFETY: heads_kv divides heads_q, so it is not zero where there is a tile.
    unsafe { core::hint::assert_unchecked(attention.heads_kv != 0) };
    let group = attention.heads_q / attention.heads_kv;
    head * group..(head + 1) * group
}

/// Where the elements of a thread's pairs are.
#[derive(Clone, Copy)]
pub struct Elements {
    first: u64,
    query_bytes: u64,
    adds: bool,
}

impl Elements {
    /// Those of the thread whose first pair is `pair`, of head `at`.
    #[inline(always)]
    pub fn new(params: &BiasGradientParams, at: &Place, pair: Pair) -> Self {
        Self {
            first: pair_address(&params.d_bias, at, pair, F32_BYTES),
            query_bytes: params.d_bias.query_stride as u64 * F32_BYTES as u64,
            adds: params.adds != 0,
        }
    }

    #[inline(always)]
    fn address(&self, queries: u32, keys: u32) -> u64 {
        self.first + queries as u64 * self.query_bytes + (keys * F32_BYTES) as u64
    }

    /// Writes or adds the gradients of the pairs `queries` and `keys` behind the first: all that are there are on their way before
    /// one is written.
    ///
    /// # Safety
    /// As of [`put`](Self::put).
    #[inline(always)]
    pub unsafe fn put_all<const N: usize>(&self, queries: [u32; N], keys: u32, values: &[f32; N]) {
        let mut sums = *values;
        // SAFETY: the caller vouches for the elements.
        unsafe {
            if self.adds {
                let mut before = [0.0; N];
                for n in 0..N {
                    before[n] = global::load(self.address(queries[n], keys));
                }
                for n in 0..N {
                    sums[n] += before[n];
                }
            }
            for n in 0..N {
                global::store(self.address(queries[n], keys), sums[n]);
            }
        }
    }

    /// Writes or adds the gradient of the pair `queries` and `keys` behind the first.
    ///
    /// # Safety
    /// The element is live, and nobody else accesses it.
    #[inline(always)]
    pub unsafe fn put(&self, [queries, keys]: [u32; 2], value: f32) {
        let address = self.address(queries, keys);
        // SAFETY: the caller vouches for the element.
        unsafe {
            if self.adds {
                global::store(address, global::load(address) + value);
            } else {
                global::store(address, value);
            }
        }
    }
}
