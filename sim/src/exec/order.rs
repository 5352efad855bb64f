//! The order in which the clusters of a grid start.
//!
//! PTX promises none (PTX ISA §2.2: CTAs "can execute in any order"), though hardware mostly starts them by
//! number. A seed other than 0 draws a permutation, so a kernel that relies on the numbers is found out.

use super::rng::Rng;

/// Rounds of the Feistel network: four of them make any permutation of halves likely (Luby and Rackoff, "How to
/// Construct Pseudorandom Permutations from Pseudorandom Functions", 1988).
const ROUNDS: usize = 4;

/// A permutation of `0..total`, computed one element at a time: grids are too large for a table.
pub(super) struct StartOrder {
    total: u64,
    /// Bits of each half of a number.
    half: u32,
    /// None: by number.
    keys: Option<[u64; ROUNDS]>,
}

impl StartOrder {
    /// The order that `seed` draws for a grid of `total` clusters; 0 keeps their numbers.
    pub(super) fn new(seed: u64, total: u64) -> Self {
        let bits = u64::BITS - total.saturating_sub(1).leading_zeros();
        // A stream that no cluster's own schedule has.
        let mut rng = Rng::new(seed, u64::MAX);
        Self {
            total,
            half: bits.div_ceil(2),
            keys: (seed != 0 && total > 1).then(|| std::array::from_fn(|_| rng.next())),
        }
    }

    /// The number of the cluster that starts at `position`.
    pub(super) fn cluster(&self, position: u64) -> u64 {
        let Some(keys) = &self.keys else {
            return position;
        };
        // The network permutes the numbers of 2·half bits, at most four times as many as there are clusters:
        // walking its cycle until it is back among them permutes the clusters.
        let mut at = position;
        loop {
            at = self.permute(at, keys);
            if at < self.total {
                return at;
            }
        }
    }

    fn permute(&self, at: u64, keys: &[u64; ROUNDS]) -> u64 {
        let mask = (1 << self.half) - 1;
        let (mut left, mut right) = (at >> self.half, at & mask);
        for &key in keys {
            let mixed = Rng::new(key, right).next();
            (left, right) = (right, left ^ (mixed & mask));
        }
        left << self.half | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cluster_starts_once() {
        for total in (1..70).chain([255, 256, 257, 1000]) {
            for seed in 0..5 {
                let order = StartOrder::new(seed, total);
                let mut started: Vec<_> = (0..total).map(|p| order.cluster(p)).collect();
                started.sort_unstable();
                assert!(started.iter().copied().eq(0..total), "{total} seed {seed}");
            }
        }
    }

    #[test]
    fn seeds_differ_and_repeat() {
        let order = |seed| {
            let order = StartOrder::new(seed, 100);
            (0..100).map(|p| order.cluster(p)).collect::<Vec<_>>()
        };
        assert!(order(0).into_iter().eq(0..100));
        for seed in 1..10 {
            assert_eq!(order(seed), order(seed));
            assert_ne!(order(seed), order(seed + 1));
            // No trace of the numbers: about one cluster keeps its place, and one follows its predecessor.
            let drawn = order(seed);
            assert!((0..100).filter(|&p| drawn[p as usize] == p).count() < 10);
            assert!(drawn.windows(2).filter(|w| w[1] == w[0] + 1).count() < 10);
        }
    }

    #[test]
    fn the_largest_grids_need_no_table() {
        let total = (1 << 31) * 65535 * 65535;
        let order = StartOrder::new(7, total);
        assert!([0, 1, total - 1].iter().all(|&p| order.cluster(p) < total));
    }
}
