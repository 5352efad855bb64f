//! The order in which the keys of a cached sequence are reduced: a tree over absolute key positions.
//!
//! ```text
//! keys    0 .. C   C .. 2C   …          a chunk: C keys, reduced by the online softmax from nothing
//! chunks  0 … 7    8 … 15    …          a group: a left fold of 8 chunks, or of 4
//! groups  0 … 7    8 … 15    …          a super: a left fold of 8 groups
//! supers  0 …                           the row: a left fold of all supers
//! ```
//!
//! Whoever computes a node, alone or from its children, folds the same states in the same order. So a row's bits depend on
//! its own keys alone, whatever a launch takes as an item of work: chunks, groups or supers. A window visits only the
//! chunks that it touches, with the same boundaries.

use crate::abi::{Band, FewestItems};
use crate::layout::key_tree::{SUPER, Tree};

/// Keys that some query of a sequence sees: the first, and one past the last. `band` is counted from the sequence's
/// top-left corner.
#[inline(always)]
pub const fn seen_keys(seq_q: u32, kv_len: u32, band: Band) -> (u32, u32) {
    let most = kv_len as i32;
    let begin = clamp(band.lower, most);
    // No sum overflows: both are at most `Band::OPEN`.
    let end = clamp(seq_q as i32 + band.upper, most);
    // No query sees the keys of a band that is empty; of another, no end lies before the begin.
    if band.lower > band.upper {
        (0, 0)
    } else {
        (begin as u32, end as u32)
    }
}

#[inline(always)]
const fn clamp(value: i32, most: i32) -> i32 {
    if value < 0 {
        0
    } else if value > most {
        most
    } else {
        value
    }
}

/// The chunks that a sequence's queries see: the first, and one past the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks {
    pub begin: u32,
    pub end: u32,
    tree: Tree,
}

impl Chunks {
    /// Those of keys `begin..end`.
    #[inline(always)]
    pub const fn of_keys((begin, end): (u32, u32), tree: Tree) -> Self {
        let (begin, end) = if begin < end {
            (begin / tree.chunk_keys, (end - 1) / tree.chunk_keys + 1)
        } else {
            (0, 0)
        };
        Self { begin, end, tree }
    }

    /// The first node of `level`.
    #[inline(always)]
    pub const fn first(&self, level: u32) -> u32 {
        self.begin >> self.tree.shift(level)
    }

    /// Nodes of `level`; one for a sequence that sees no key.
    #[inline(always)]
    pub const fn nodes(&self, level: u32) -> u32 {
        if self.begin < self.end {
            ((self.end - 1) >> self.tree.shift(level)) - self.first(level) + 1
        } else {
            1
        }
    }

    /// The chunks of a node of `level` among these.
    #[inline(always)]
    pub const fn of_node(&self, level: u32, node: u32) -> Self {
        let shift = self.tree.shift(level);
        let (begin, end) = (node << shift, (node + 1) << shift);
        Self {
            begin: if begin > self.begin {
                begin
            } else {
                self.begin
            },
            end: if end < self.end { end } else { self.end },
            tree: self.tree,
        }
    }

    /// The children of the node of which `node` of `level` is one: the first, and their number. Above the supers is the row.
    #[inline(always)]
    pub const fn siblings(&self, level: u32, node: u32) -> (u32, u32) {
        let (first, count) = (self.first(level), self.nodes(level));
        if level == SUPER {
            return (first, count);
        }
        let shift = self.tree.fan_out_shift(level);
        let (begin, end) = (node >> shift << shift, ((node >> shift) + 1) << shift);
        let begin = if begin > first { begin } else { first };
        let last = first + count;
        (begin, (if end < last { end } else { last }) - begin)
    }
}

impl FewestItems {
    /// The level of a launch's items, from the number of nodes of each level: as high as leaves enough of them, for an item takes some µs
    /// beyond its keys.
    #[inline(always)]
    pub const fn level(&self, nodes: [u32; 3]) -> u32 {
        if nodes[2] >= self.supers {
            2
        } else if nodes[1] >= self.groups {
            1
        } else {
            0
        }
    }

    /// The most partial results that items of a launch leave, of `rows` sequences and heads of at most `capacity` keys.
    pub fn most_items(&self, rows: u64, capacity: u64, tree: Tree) -> u64 {
        let of_level = |level| {
            let nodes = capacity.div_ceil(u64::from(tree.chunk_keys) << tree.shift(level));
            rows.saturating_mul(nodes.max(1))
        };
        // A level is chosen where there are fewer nodes of the next one than this.
        let below = |level, fewest: u32| u64::from(fewest) << tree.fan_out_shift(level);
        let groups = of_level(1).min(below(1, self.supers));
        let chunks = of_level(0).min(below(0, self.groups));
        of_level(2).max(groups).max(chunks)
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::layout::key_tree::FAN_OUT_SHIFT;

    const TREES: [Tree; 2] = [
        Tree {
            chunk_keys: 256,
            group_shift: FAN_OUT_SHIFT,
        },
        Tree {
            chunk_keys: 512,
            group_shift: FAN_OUT_SHIFT - 1,
        },
    ];

    fn ranges() -> impl Iterator<Item = Chunks> {
        let edges = [
            0, 1, 255, 256, 257, 2047, 2048, 16384, 16385, 40000, 131_072,
        ];
        edges.into_iter().flat_map(move |begin| {
            let ends = edges.into_iter().filter(move |&end| end >= begin);
            ends.flat_map(move |end| TREES.map(|tree| Chunks::of_keys((begin, end), tree)))
        })
    }

    /// The nodes of each level partition the chunks, in order.
    #[test]
    fn nodes_partition_the_chunks() {
        for chunks in ranges().filter(|chunks| chunks.begin < chunks.end) {
            for level in 0..=SUPER {
                let first = chunks.first(level);
                let of_nodes = (first..first + chunks.nodes(level)).flat_map(|node| {
                    let Chunks { begin, end, .. } = chunks.of_node(level, node);
                    assert!(begin < end);
                    begin..end
                });
                assert!(of_nodes.eq(chunks.begin..chunks.end));
            }
        }
    }

    /// Climbing from any level meets every node once as the first of its siblings, and ends at one row.
    #[test]
    fn siblings_have_one_parent() {
        for chunks in ranges() {
            for level in 0..=SUPER {
                let first = chunks.first(level);
                let nodes = first..first + chunks.nodes(level);
                let mut parents: Vec<u32> = nodes
                    .clone()
                    .map(|node| chunks.tree.parent(level, node))
                    .collect();
                for node in nodes.clone() {
                    let (begin, count) = chunks.siblings(level, node);
                    let parent = chunks.tree.parent(level, node);
                    let of_parent = nodes
                        .clone()
                        .filter(|&node| chunks.tree.parent(level, node) == parent);
                    assert!(of_parent.eq(begin..begin + count));
                }
                parents.dedup();
                let above = if level == SUPER {
                    1
                } else {
                    chunks.nodes(level + 1)
                };
                assert_eq!(parents.len() as u32, above);
            }
        }
    }

    /// What a launch takes as items always fits the workspace.
    #[test]
    fn items_fit_the_workspace() {
        const CAPACITIES: [u64; 4] = [1, 255, 4096, 131_072];
        for (groups, supers) in [(1, 1), (2, 16), (46, 528), (300, 20)] {
            let fewest = FewestItems { groups, supers };
            for (tree, capacity) in TREES
                .into_iter()
                .flat_map(|tree| CAPACITIES.map(|c| (tree, c)))
            {
                for rows in [1, 8, 500, 4096] {
                    let most = fewest.most_items(rows, capacity, tree);
                    for length in [1, capacity / 9 + 1, capacity / 2 + 1, capacity] {
                        let chunks = Chunks::of_keys((0, length as u32), tree);
                        let nodes = [0, 1, 2].map(|level| rows as u32 * chunks.nodes(level));
                        assert!(u64::from(nodes[fewest.level(nodes) as usize]) <= most);
                    }
                }
            }
        }
    }

    #[test]
    fn seen_keys_are_those_of_all_queries() {
        let bounds = [-Band::OPEN, -9, -1, 0, 2, 7, Band::OPEN];
        for (lower, upper) in bounds.into_iter().flat_map(|l| bounds.map(|u| (l, u))) {
            let band = Band { lower, upper };
            for (seq_q, kv_len) in (1..4u32).flat_map(|q| (0..6u32).map(move |kv| (q, kv))) {
                let sees = |j: u32| {
                    (0..seq_q).any(|i| {
                        let distance = j as i32 - i as i32;
                        lower <= distance && distance <= upper
                    })
                };
                let (begin, end) = seen_keys(seq_q, kv_len, band);
                let seen: Vec<u32> = (0..kv_len).filter(|&j| sees(j)).collect();
                assert!(seen.into_iter().eq(begin..end), "{band:?} {seq_q} {kv_len}");
            }
        }
    }
}
