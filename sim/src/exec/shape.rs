//! The geometry of a launch: numbers of clusters, CTAs and threads, and their coordinates.

use super::config::LaunchConfig;
use super::regs::LANES;

/// Elements of a box.
pub(super) fn product(dims: [u32; 3]) -> u64 {
    dims.iter().map(|&d| u64::from(d)).product()
}

/// Where element `index` of a box is, x fastest.
pub(super) fn coordinates(index: u64, dims: [u32; 3]) -> [u32; 3] {
    let [x, y, _] = dims.map(u64::from);
    [
        (index % x) as u32,
        (index / x % y) as u32,
        (index / (x * y)) as u32,
    ]
}

/// A grid of clusters of CTAs of threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    grid: [u32; 3],
    pub(super) cluster: [u32; 3],
    block: [u32; 3],
}

impl Shape {
    pub(super) fn new(config: &LaunchConfig, cluster: [u32; 3]) -> Self {
        Self {
            grid: config.grid,
            cluster,
            block: config.block,
        }
    }

    pub(crate) fn ctas_per_cluster(&self) -> u32 {
        product(self.cluster) as u32
    }

    /// Clusters along x, y, z.
    pub(super) fn clusters(&self) -> [u32; 3] {
        std::array::from_fn(|i| self.grid[i] / self.cluster[i])
    }

    /// `%ctaid` of a CTA by cluster number and rank.
    pub(crate) fn ctaid(&self, cluster: u64, rank: u32) -> [u32; 3] {
        let at = coordinates(cluster, self.clusters());
        let within = coordinates(rank.into(), self.cluster);
        std::array::from_fn(|i| at[i] * self.cluster[i] + within[i])
    }

    /// `%tid` of a thread by its number in the CTA.
    pub(crate) fn tid(&self, thread: u32) -> [u32; 3] {
        coordinates(thread.into(), self.block)
    }

    /// The thread of a slot of a cluster, where every warp has all its lanes, in words.
    pub(crate) fn thread(&self, cluster: u64, slot: u32) -> String {
        let lanes = product(self.block).next_multiple_of(LANES as u64) as u32;
        let (rank, thread) = (slot / lanes, slot % lanes);
        let block = self.ctaid(cluster, rank);
        format!("block {block:?} thread {:?}", self.tid(thread))
    }
}
