//! Whether the decode kernels take a forward pass, or attention to a cache, over from the kernel that runs it otherwise.
//!
//! A prefill kernel gives all keys of a tile of queries to one block: of one query and one head of k and v there is one tile, and
//! the rest of the GPU is idle. Decode kernels share keys out among blocks, which takes some µs for partial results and their
//! merging, and their blocks read keys at less than half the rate of Hopper's.

use kernels_gpu::abi::AttentionParams;
use kernels_gpu::instances::{Family, Instance};
use kernels_gpu::tile::kv_tree::seen_keys;

use super::GpuCapabilities;
use super::kernel::{How, Kernel};
use crate::Problem;

/// Rows, queries × heads of a group, from which on a prefill kernel's tile is full enough: it then reads keys once, and decode
/// kernels once for each 16 rows.
const MOST_ROWS: usize = 64;

/// What the decode kernels take of time, in that which a block of a prefill kernel takes for a chunk of keys
/// ([`DecodeConfig::chunk_keys`](kernels_gpu::config::decode::DecodeConfig::chunk_keys)): 128 KiB of K and V, so that it hardly
/// depends on the head_dim.
struct Costs {
    /// Beyond the keys: lengths, partial results, their merging.
    launch: f64,
    /// For a chunk by one of a multiprocessor's blocks, where all are at work.
    chunk: f64,
}

impl Costs {
    /// Beside the kernels of `family`, at a head_dim of 128 on an H200: a launch takes 11 µs beyond its keys, and a multiprocessor
    /// 59 keys in a µs (`bench/results/decode-log.md`). A block of `wgmma` takes 130 keys in a µs, one of `mma` about 47.
    const fn beside(family: Family) -> Self {
        match family {
            Family::Wgmma => Self {
                launch: 6.0,
                chunk: 2.2,
            },
            _ => Self {
                launch: 2.0,
                chunk: 1.0,
            },
        }
    }
}

/// Whether decode kernels may be the better ones for `problem`: a forward pass of few rows, or any attention to a cache.
pub(super) fn may_decode(problem: &Problem) -> bool {
    let reads_cache = problem.cache_layout().is_some();
    problem.gradients().is_none() && !problem.is_empty() && (reads_cache || are_few(problem))
}

/// Whether `problem` is attention of few rows to a cache: of drafts perhaps, each of which is to have the bits of a single query.
pub(super) fn are_drafts(problem: &Problem) -> bool {
    problem.cache_layout().is_some() && are_few(problem)
}

fn are_few(problem: &Problem) -> bool {
    problem.seq_q().saturating_mul(problem.group()) <= MOST_ROWS
}

/// Of packed queries beside a cache, how many of a sequence decode kernels take, which then have the bits that they have without
/// the others; prefill kernels take the sequences with more.
pub(super) fn most_of_a_sequence(problem: &Problem) -> u32 {
    (MOST_ROWS / problem.group()) as u32
}

/// Whether kernel `decode` is faster than `prefill` on a launch that [may decode](may_decode). Lengths that only the device knows
/// count as the longest.
pub(super) fn is_faster(
    decode: &Instance,
    prefill: &Kernel,
    attention: &AttentionParams,
    gpu: &GpuCapabilities,
) -> bool {
    let Some(config) = decode.decode() else {
        return false;
    };
    let costs = Costs::beside(prefill.instance.family);
    let group = attention.heads_q / attention.heads_kv;
    let (packs, heads) = match &prefill.how {
        How::Hopper(hopper, _) => (hopper.pack_gqa.packs(), hopper.pack_gqa.heads()),
        _ => (group, 1),
    };
    let prefill_tiles = packs * (attention.seq_q * heads).div_ceil(prefill.instance.block_m);
    let row_tiles = (attention.seq_q * group).div_ceil(decode.block_m);
    let heads_kv = f64::from(attention.batch) * f64::from(attention.heads_kv);
    // Tiles of a multiprocessor.
    let tiles = |of_head: u32| heads_kv * f64::from(of_head) / f64::from(gpu.multiprocessors);
    let chunks = f64::from(keys(attention)) / f64::from(config.chunk_keys());
    let of_decode = costs.launch + costs.chunk * chunks * tiles(row_tiles);
    of_decode < chunks * tiles(prefill_tiles).max(1.0)
}

/// Keys that the queries of a sequence see.
pub(super) fn keys(attention: &AttentionParams) -> u32 {
    let AttentionParams { seq_q, seq_kv, .. } = *attention;
    let band = attention.mask.of_sequence(seq_q, seq_kv);
    let (begin, end) = seen_keys(seq_q, seq_kv, band);
    end - begin
}
