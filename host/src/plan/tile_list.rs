use std::cmp::Reverse;

use kernels_gpu::abi::{AttentionParams, Band, PackedRows};
use kernels_gpu::config::wgmma::WgmmaTile;
use kernels_gpu::tile::block_range::BlockRange;
use kernels_gpu::wgmma::gqa::Packing;
use kernels_gpu::wgmma::schedule::{ListedPlace, ListedTile, Order};

use crate::CuSeqlens;

/// What the list of a varlen launch's tiles depends on beside the lengths of its sequences: launches that agree
/// in it share a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListShape {
    /// Rows of a tile.
    cluster_m: u32,
    packing: Packing,
    /// Keys of a block.
    block_n: u32,
    /// From the top-left corner.
    band: Band,
    order: Order,
}

/// One sequence, which has rows.
struct Listed {
    batch: u32,
    rows: PackedRows,
    super_blocks: u32,
    /// Key blocks that its longest tile visits.
    longest: u32,
}

impl ListShape {
    /// Of varlen `params`, for a kernel of shape `tile`.
    pub fn new(params: &AttentionParams, tile: &WgmmaTile, packing: Packing) -> Self {
        Self {
            cluster_m: tile.cluster_m(),
            packing,
            block_n: tile.block_n,
            band: params.mask.band,
            order: Order::of(params),
        }
    }

    /// Every tile of one pack of heads that has rows, in order.
    pub fn list(&self, packed: &CuSeqlens) -> Vec<ListedTile> {
        let sequence = |batch| self.sequence(packed, batch);
        let mut sequences: Vec<_> = (0..packed.batch()).filter_map(sequence).collect();
        // Stable, like the sort below: equals stay together.
        sequences.sort_by_key(|sequence| Reverse(sequence.longest));
        let mut list = Vec::new();
        for part in self.parts(&sequences, packed.total_kv() as u32) {
            let begin = list.len();
            list.extend(part.iter().flat_map(Listed::tiles));
            if matches!(self.order, Order::ByLength { .. }) {
                let blocks = |tile: &ListedTile| self.blocks(tile.place.super_block, &tile.rows);
                list[begin..].sort_by_cached_key(|tile| Reverse(blocks(tile)));
            }
        }
        list
    }

    /// One sequence; `None` if it has no rows.
    fn sequence(&self, packed: &CuSeqlens, batch: usize) -> Option<Listed> {
        let extent = |sums: &[i32]| {
            let (begin, end) = (sums[batch] as u32, sums[batch + 1] as u32);
            (begin, end - begin)
        };
        let ((q_begin, seq_q), (kv_begin, seq_kv)) = (extent(packed.q()), extent(packed.kv()));
        let rows = PackedRows {
            q_begin,
            seq_q,
            kv_begin,
            seq_kv,
        };
        let super_blocks = self.packing.rows(seq_q).div_ceil(self.cluster_m);
        let lengths = (0..super_blocks).map(|super_block| self.blocks(super_block, &rows));
        Some(Listed {
            batch: batch as u32,
            rows,
            super_blocks,
            longest: lengths.max()?,
        })
    }

    /// Key blocks that a tile visits: one, hidden, where its rows see no key.
    fn blocks(&self, super_block: u32, rows: &PackedRows) -> u32 {
        let PackedRows { seq_q, seq_kv, .. } = *rows;
        let band = self.band.bottom_right(seq_q, seq_kv);
        let begin = super_block * self.cluster_m;
        let queries = self.packing.queries(begin, self.cluster_m, seq_q);
        let range = BlockRange::of_queries(queries, band, seq_kv, self.block_n, 0);
        range.end - range.begin
    }

    /// Cuts sequences, of which a head has `total_kv` rows of K and V, into the order's parts.
    fn parts<'a>(&self, sequences: &'a [Listed], total_kv: u32) -> Vec<&'a [Listed]> {
        let parts = self.order.parts(total_kv);
        let total_kv = u64::from(total_kv).max(1);
        let mut before = 0;
        let part_of = move |sequence: &Listed| {
            let seq_kv = u64::from(sequence.rows.seq_kv);
            let middle = before + seq_kv / 2;
            before += seq_kv;
            middle * parts / total_kv
        };
        let numbers: Vec<u64> = sequences.iter().map(part_of).collect();
        let lengths = numbers.chunk_by(|a, b| a == b).map(<[u64]>::len);
        let mut rest = sequences;
        let part = |length| rest.split_off(..length).expect("as many as numbers");
        lengths.map(part).collect()
    }
}

impl Listed {
    /// From the last tile to the first.
    fn tiles(&self) -> impl Iterator<Item = ListedTile> + use<> {
        let Self {
            batch,
            rows,
            super_blocks,
            ..
        } = *self;
        (0..super_blocks).rev().map(move |super_block| ListedTile {
            place: ListedPlace {
                super_block,
                super_blocks,
                batch,
                reserved: 0,
            },
            rows,
        })
    }
}

#[cfg(test)]
mod tests {
    use kernels_gpu::abi::{Corner, LengthsParams, MaskParams};
    use std::collections::BTreeMap;

    use bytemuck::Zeroable;
    use kernels_gpu::config::wgmma::{HD64, HD128, HD256_SINGLE};
    use kernels_gpu::wgmma::schedule::{Schedule, Tile};
    use proptest::prelude::*;

    use super::*;
    use crate::Mask;

    /// A launch of packed sequences.
    #[derive(Clone, Debug)]
    struct Case {
        lengths: Vec<(usize, usize)>,
        heads_kv: u32,
        group: u32,
        mask: Mask,
        tile: WgmmaTile,
        packing: Packing,
    }

    impl Case {
        fn packed(&self) -> CuSeqlens {
            CuSeqlens::from_lengths(self.lengths.iter().copied()).unwrap()
        }

        fn params(&self) -> AttentionParams {
            let packed = self.packed();
            let (seq_q, seq_kv) = (packed.longest_q(), packed.longest_kv());
            AttentionParams {
                batch: packed.batch() as u32,
                heads_q: self.heads_kv * self.group,
                heads_kv: self.heads_kv,
                seq_q: seq_q as u32,
                seq_kv: seq_kv as u32,
                lengths: LengthsParams {
                    total_q: packed.total_q() as u32,
                    total_kv: packed.total_kv() as u32,
                    ..LengthsParams::zeroed()
                },
                head_dim: self.tile.head_dim,
                head_dim_v: self.tile.head_dim_v,
                mask: MaskParams::new(
                    self.mask.of_each_sequence(seq_q, seq_kv).band,
                    Corner::BottomRight,
                ),
                ..AttentionParams::zeroed()
            }
        }

        fn shape(&self) -> ListShape {
            ListShape::new(&self.params(), &self.tile, self.packing)
        }

        fn blocks(&self, tile: &ListedTile) -> u32 {
            self.shape().blocks(tile.place.super_block, &tile.rows)
        }

        /// Every tile in the order of its number, as the kernel finds it, with the entry that has its rows.
        fn walk(&self) -> Vec<(Tile, ListedTile)> {
            const ADDRESS: u64 = 1 << 40;
            let list = self.shape().list(&self.packed());
            let at = |address: u64| list[(address - ADDRESS) as usize / size_of::<ListedTile>()];
            let total_kv = self.packed().total_kv() as u32;
            let entries = list.len() as u32;
            let packing = self.packing;
            let Some(schedule) =
                Schedule::listed(&self.params(), packing, total_kv, ADDRESS, entries)
            else {
                return Vec::new();
            };
            let tile = |number| {
                let (tile, entry) = schedule.get_listed(number, |address| at(address).place);
                (tile, at(entry))
            };
            (0..=schedule.last).map(tile).collect()
        }

        /// Every tile with rows is taken once, with its sequence's rows, and no other.
        fn check_tiles(&self) {
            let mut expected = BTreeMap::new();
            for (batch, &(seq_q, seq_kv)) in self.lengths.iter().enumerate() {
                let rows = self.packing.rows(seq_q as u32);
                for super_block in 0..rows.div_ceil(self.tile.cluster_m()) {
                    for head_kv in 0..self.heads_kv {
                        for head in (0..self.group).step_by(self.packing.heads() as usize) {
                            let rows = (seq_q as u32, seq_kv as u32);
                            expected.insert((batch as u32, super_block, head_kv, head), rows);
                        }
                    }
                }
            }
            let packed = self.packed();
            for (tile, ListedTile { rows, .. }) in self.walk() {
                let key = (tile.batch, tile.super_block, tile.head_kv, tile.head);
                let lengths = expected.remove(&key);
                assert_eq!(lengths, Some((rows.seq_q, rows.seq_kv)), "{tile:?}");
                assert_eq!(rows.q_begin, packed.q()[tile.batch as usize] as u32);
                assert_eq!(rows.kv_begin, packed.kv()[tile.batch as usize] as u32);
            }
            assert!(expected.is_empty(), "never taken: {expected:?}");
        }

        /// No tile is followed by a longer one of the same heads, or, sequence by sequence, no sequence by one with a
        /// longer tile.
        fn check_order(&self) {
            let list = self.shape().list(&self.packed());
            let lengths: Vec<u32> = match self.shape().order {
                Order::ByLength { .. } => list.iter().map(|tile| self.blocks(tile)).collect(),
                Order::BySequence => list
                    .chunk_by(|a, b| a.place.batch == b.place.batch)
                    .map(|tiles| tiles.iter().map(|tile| self.blocks(tile)).max().unwrap())
                    .collect(),
            };
            assert!(lengths.is_sorted_by(|a, b| a >= b), "{lengths:?}");
        }
    }

    fn case() -> impl Strategy<Value = Case> {
        let length = || prop_oneof![Just(0), 1..9usize, 0..300usize, 0..3000usize];
        let pair = (length(), length(), any::<bool>());
        let pair = pair.prop_map(|(q, kv, alike)| (q, if alike { q } else { kv }));
        let lengths = proptest::collection::vec(pair, 0..12);
        let side = || proptest::option::of(prop_oneof![0..70u32, 0..3000u32]);
        let window = (side(), side()).prop_map(|(left, right)| Mask::Window { left, right });
        let mask = prop_oneof![Just(Mask::None), Just(Mask::Causal), window];
        let tile = prop_oneof![Just(HD64), Just(HD128), Just(HD256_SINGLE)];
        (lengths, 1..4u32, 1..4u32, mask, tile).prop_map(
            |(lengths, heads_kv, group, mask, tile)| {
                let queries = lengths.iter().map(|&(seq_q, _)| seq_q as u32);
                let packing = Packing::fewest_tiles(group, queries, tile.cluster_m());
                Case {
                    lengths,
                    heads_kv,
                    group,
                    mask,
                    tile: tile.for_varlen(),
                    packing,
                }
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn every_tile_with_rows_once_longest_first(case in case()) {
            case.check_tiles();
            case.check_order();
        }
    }

    /// K and V of 4 KiB a row: 32 MiB are 8192 rows.
    fn long(lengths: &[usize], mask: Mask) -> Case {
        Case {
            lengths: lengths.iter().map(|&length| (length, length)).collect(),
            heads_kv: 8,
            group: 2,
            mask,
            tile: WgmmaTile {
                head_dim: 1024,
                head_dim_v: 1024,
                ..HD128.for_varlen()
            },
            packing: Packing::none(2),
        }
    }

    /// Numbers of the longest tile of each head in the order they are taken, as (sequence, head).
    fn firsts(case: &Case) -> Vec<(u32, u32)> {
        let mut firsts = Vec::new();
        for (tile, _) in case.walk() {
            let first = (tile.batch, tile.head_kv * case.group + tile.head);
            if !firsts.contains(&first) {
                firsts.push(first);
            }
        }
        firsts
    }

    #[test]
    fn causal_heads_come_in_sections_that_fit_the_l2() {
        // Two heads of K and V, four of Q.
        let case = long(&[1000, 3000], Mask::Causal);
        case.check_tiles();
        case.check_order();
        let expected = (0..4).flat_map(|section| {
            let heads = section * 4..section * 4 + 4;
            [1, 0].map(|batch| heads.clone().map(move |head| (batch, head)))
        });
        let expected: Vec<_> = expected.flatten().collect();
        assert_eq!(firsts(&case), expected);
    }

    #[test]
    fn causal_sequences_come_in_parts_where_a_head_does_not_fit_the_l2() {
        let case = long(&[4000, 4100, 3900, 4200], Mask::Causal);
        case.check_tiles();
        let list = case.shape().list(&case.packed());
        let batches = |tiles: &[ListedTile]| {
            let mut batches: Vec<_> = tiles.iter().map(|tile| tile.place.batch).collect();
            batches.sort_unstable();
            batches.dedup();
            batches
        };
        let (first, second) = list.split_at(2 * 17);
        assert_eq!((batches(first), batches(second)), (vec![1, 3], vec![0, 2]));
        for part in [first, second] {
            assert!(part.is_sorted_by_key(|tile| Reverse(case.blocks(tile))));
        }
    }

    #[test]
    fn full_sequences_come_head_by_head_the_longest_first() {
        let case = long(&[300, 0, 3000, 1000], Mask::None);
        case.check_tiles();
        let expected = [2, 3, 0].map(|batch| (0..16).map(move |head| (batch, head)));
        assert_eq!(
            firsts(&case),
            expected.into_iter().flatten().collect::<Vec<_>>()
        );
        // All tiles of a head before the next.
        let heads: Vec<_> = case
            .walk()
            .iter()
            .map(|(tile, _)| tile.head_kv * 2 + tile.head)
            .collect();
        assert_eq!(heads[..24], [[0; 12], [1; 12]].concat());
    }
}
