//! Whether a kernel without a list of tiles takes short sequences over from Hopper's, where those need one ([`tile_order`](super::tile_order)).
//!
//! Another kernel writes the list before: some 4 µs of the GPU's time, and a second launch of the caller's, whatever the lengths. `mma` has a
//! block for each tile that there may be, at half the rate.

use kernels_gpu::abi::AttentionParams;
use kernels_gpu::tile::grid::TileGrid;

use super::GpuCapabilities;
use super::few_queries::keys;
use super::kernel::{How, Kernel};
use crate::Problem;

/// Head_dims up to which, and the keys of a tile until which `mma` is the faster one there: on an H100 by 1 to 5 µs of 14, and slower
/// by as much at twice as many keys (`bench/results/wgmma-log.md`).
const MOST_KEYS: [(u32, u32); 3] = [(64, 512), (128, 192), (256, 256)];

/// Tiles of a multiprocessor from which on they wait for each other: of single keys too, `mma` is then slower by 1 µs.
const MOST_ROUNDS: f64 = 2.0;

/// Whether `kernel` is one of Hopper's that needs a list for `problem`, which others do without.
pub(super) fn is_listed(problem: &Problem, kernel: &Kernel) -> bool {
    let How::Hopper(hopper, _) = &kernel.how else {
        return false;
    };
    hopper.schedule.is_listed() && problem.cache_layout().is_none()
}

/// Whether kernel `mma` is faster than Hopper's, list and all. Lengths that only the device knows count as the
/// longest.
pub(super) fn is_faster(mma: &Kernel, attention: &AttentionParams, gpu: &GpuCapabilities) -> bool {
    let wide_enough = |(head_dim, _): &&(u32, u32)| *head_dim >= mma.instance.head_dim;
    let Some((_, most)) = MOST_KEYS.iter().find(wide_enough) else {
        return false;
    };
    let AttentionParams { batch, heads_q, .. } = *attention;
    let tiles = TileGrid::new(batch, heads_q, attention.seq_q, mma.instance.block_m);
    // A multiprocessor works on several tiles at once, which is no faster than one after the other.
    let rounds = tiles.count as f64 / f64::from(gpu.multiprocessors);
    rounds <= MOST_ROUNDS && f64::from(keys(attention)) * rounds.max(1.0) <= f64::from(*most)
}
