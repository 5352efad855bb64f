//! Random launches: every tile is listed once, in the promised order.

use std::collections::BTreeMap;
use std::vec::Vec;

use bytemuck::Zeroable;
use proptest::prelude::*;

use super::crew::{self, BASE, Made};
use crate::abi::{
    AttentionParams, Band, Corner, DeviceAddress, LengthsParams, MaskParams, SequenceRows,
};
use crate::config::tile_list::BUCKETS;
use crate::config::wgmma::{HD64, HD128, HD256_NOCLUSTER, WgmmaConfig};
use crate::wgmma::pack_gqa::PackGqa;
use crate::wgmma::scheduler::tile_list::{ListedSequence, ListedTile, Order, TileListParams};
use crate::wgmma::scheduler::{Schedule, TileCoord};

/// A varlen launch.
#[derive(Clone, Debug)]
pub struct Case {
    /// (seq_q, seq_kv) of each sequence; `used` may cut seq_kv shorter.
    pub lengths: Vec<(u32, u32)>,
    /// Whether the sequences are packed. If not, all have the first one's lengths.
    pub has_cu_seqlens: bool,
    /// Rows of K and V that are used.
    pub used: Option<Vec<i32>>,
    pub heads_kv: u32,
    pub group: u32,
    pub mask: MaskParams,
    pub config: WgmmaConfig,
    pub pack_gqa: PackGqa,
    /// Threads that make the list.
    pub crew: u32,
}

impl Case {
    /// cu_seqlens_q, cu_seqlens_kv, seqused_kv, as they lie in device memory.
    pub fn memory(&self) -> Vec<i32> {
        let mut memory = Vec::new();
        for of in [|pair: &(u32, u32)| pair.0, |pair: &(u32, u32)| pair.1] {
            let mut sum = 0;
            memory.push(0);
            for pair in &self.lengths {
                sum += of(pair) as i32;
                memory.push(sum);
            }
        }
        memory.extend(self.used.iter().flatten());
        memory
    }

    pub fn params(&self) -> TileListParams {
        let batch = self.lengths.len();
        let address = |index: usize| DeviceAddress::new(BASE + 4 * index as u64);
        let longest = |of: fn(&(u32, u32)) -> u32| self.lengths.iter().map(of).max().unwrap_or(0);
        let total = |of: fn(&(u32, u32)) -> u32| self.lengths.iter().map(of).sum();
        let packed = LengthsParams {
            total_q: total(|pair| pair.0),
            total_kv: total(|pair| pair.1),
            cu_seqlens_q: address(0),
            cu_seqlens_kv: address(batch + 1),
            seqused_kv: None,
        };
        let attention = AttentionParams {
            batch: batch as u32,
            heads_q: self.heads_kv * self.group,
            heads_kv: self.heads_kv,
            seq_q: longest(|pair| pair.0),
            seq_kv: longest(|pair| pair.1),
            lengths: LengthsParams {
                seqused_kv: self.used.as_ref().and_then(|_| address(2 * batch + 2)),
                ..if self.has_cu_seqlens {
                    packed
                } else {
                    LengthsParams::zeroed()
                }
            },
            head_dim: self.config.head_dim,
            head_dim_v: self.config.head_dim_v,
            mask: self.mask,
            ..AttentionParams::zeroed()
        };
        TileListParams::new(&attention, &self.config, self.pack_gqa, 0).unwrap()
    }

    /// The rows that each sequence should have.
    fn rows(&self) -> Vec<SequenceRows> {
        let (mut q_begin, mut kv_begin) = (0, 0);
        let rows = |(batch, &(seq_q, seq_kv)): (usize, &(u32, u32))| {
            let used = self.used.as_ref().map_or(i32::MAX, |used| used[batch]);
            let rows = SequenceRows {
                q_begin,
                seq_q,
                kv_begin,
                seq_kv: seq_kv.min(used.max(0) as u32),
            };
            if self.has_cu_seqlens {
                q_begin += seq_q;
                kv_begin += seq_kv;
            }
            rows
        };
        self.lengths.iter().enumerate().map(rows).collect()
    }

    pub fn list(&self) -> Made {
        crew::list(&self.params(), &self.memory(), self.crew)
    }

    /// A sequence as the list sees it.
    pub fn sequence(&self, batch: u32) -> ListedSequence {
        let memory = self.memory();
        ListedSequence::new(&self.params(), batch, |address| {
            memory[((address - BASE) / 4) as usize]
        })
    }

    pub fn keys(&self, tile: &ListedTile) -> u32 {
        self.sequence(tile.coord.batch)
            .keys(tile.coord.cluster_m_block)
    }

    /// Every tile in the order of its number, as the attention kernel finds it, with the entry that has its rows.
    pub fn walk(&self, made: &Made) -> Vec<(TileCoord, ListedTile)> {
        let params = self.params();
        let Some(schedule) = Schedule::listed(&params.attention, self.pack_gqa, &self.config)
        else {
            assert_eq!(made.header.tiles, 0);
            return Vec::new();
        };
        assert!(made.header.tiles <= schedule.last + 1, "{:?}", made.header);
        let at = |offset: u64| made.entries[offset as usize / size_of::<ListedTile>()];
        let tile = |number| {
            let coord = |offset| at(offset).coord;
            let (tile, entry) = schedule.get_listed(&made.header, number, coord);
            (tile, at(entry))
        };
        (0..made.header.tiles).map(tile).collect()
    }

    /// Every tile with rows is taken once, with its sequence's rows, and no other.
    pub fn check_tiles(&self, made: &Made) {
        let mut expected = BTreeMap::new();
        for (batch, rows) in self.rows().into_iter().enumerate() {
            let of_pack = self.pack_gqa.rows(rows.seq_q);
            for cluster_m_block in 0..of_pack.div_ceil(self.config.cluster_m()) {
                for head_kv in 0..self.heads_kv {
                    for head in (0..self.group).step_by(self.pack_gqa.heads() as usize) {
                        expected.insert((batch as u32, cluster_m_block, head_kv, head), rows);
                    }
                }
            }
        }
        for (tile, entry) in self.walk(made) {
            let key = (tile.batch, tile.cluster_m_block, tile.head_kv, tile.head);
            assert_eq!(expected.remove(&key), Some(entry.rows), "{tile:?}");
        }
        assert!(expected.is_empty(), "never taken: {expected:?}");
    }

    /// No tile is followed by a longer one of the same heads, or, sequence by sequence, no sequence by one with a longer
    /// tile. Lengths here are few enough for a bucket each.
    fn check_order(&self, made: &Made) {
        let keys = |tiles: &[ListedTile]| tiles.iter().map(|tile| self.keys(tile)).max().unwrap();
        let lengths: Vec<u32> = match Order::of(&self.params().attention) {
            Order::LongestFirst { .. } => made.entries.iter().map(|tile| self.keys(tile)).collect(),
            Order::BySequence => made
                .entries
                .chunk_by(|a, b| a.coord.batch == b.coord.batch)
                .map(|tiles| {
                    let numbers = tiles.iter().map(|tile| tile.coord.cluster_m_block);
                    assert!(
                        numbers.eq((0..tiles[0].coord.cluster_m_blocks).rev()),
                        "{tiles:?}"
                    );
                    keys(tiles)
                })
                .collect(),
        };
        assert!(lengths.is_sorted_by(|a, b| a >= b), "{lengths:?}");
    }
}

pub fn mask() -> impl Strategy<Value = MaskParams> {
    let side = || prop_oneof![Just(Band::OPEN), 0..70i32, 0..3000i32, -3000..0i32];
    let band = (side(), side()).prop_map(|(left, right)| Band {
        lower: -left,
        upper: right,
    });
    let causal = Band {
        lower: -Band::OPEN,
        upper: 0,
    };
    let band = prop_oneof![Just(Band::FULL), Just(causal), band];
    let corner = prop_oneof![Just(Corner::TopLeft), Just(Corner::BottomRight)];
    (band, corner).prop_map(|(band, corner)| MaskParams::new(band, corner))
}

fn lengths() -> impl Strategy<Value = Vec<(u32, u32)>> {
    let length = || prop_oneof![Just(0), 1..9u32, 0..300u32, 0..BUCKETS];
    let pair = (length(), length(), any::<bool>());
    let pair = pair.prop_map(|(q, kv, alike)| (q, if alike { q } else { kv }));
    let some = proptest::collection::vec(pair.clone(), 1..12);
    // More than there are threads.
    let many = proptest::collection::vec((0..20u32, 0..50u32), 1..80);
    let alike = (pair, 1..5usize).prop_map(|(pair, batch)| std::vec![pair; batch]);
    prop_oneof![some, many, alike]
}

pub fn case() -> impl Strategy<Value = Case> {
    let config = prop_oneof![Just(HD64), Just(HD128), Just(HD256_NOCLUSTER)];
    let used = proptest::option::of(proptest::collection::vec(-5..3000i32, 80));
    let crew = prop_oneof![Just(1), Just(2), Just(8)];
    let heads = (1..4u32, 1..4u32);
    let packed = prop_oneof![2 => Just(true), 1 => Just(false)];
    (lengths(), used, heads, mask(), config, crew, packed).prop_map(
        |(mut lengths, used, (heads_kv, group), mask, config, crew, has_cu_seqlens)| {
            if !has_cu_seqlens {
                let first = lengths[0];
                lengths.fill(first);
            }
            let queries = lengths.iter().map(|&(seq_q, _)| seq_q);
            let pack_gqa = PackGqa::fewest_tiles(group, queries, config.cluster_m());
            Case {
                used: used.map(|used| used[..lengths.len()].to_vec()),
                lengths,
                has_cu_seqlens,
                heads_kv,
                group,
                mask,
                config: config.for_varlen(),
                pack_gqa,
                crew,
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
        let made = case.list();
        case.check_tiles(&made);
        case.check_order(&made);
    }

    #[test]
    fn the_longest_tile_is_beside_a_bend(case in case()) {
        for batch in 0..case.lengths.len() as u32 {
            let sequence = case.sequence(batch);
            let longest = (0..sequence.cluster_m_blocks).map(|tile| sequence.keys(tile)).max();
            if let Some(longest) = longest {
                assert_eq!(sequence.longest(), longest, "sequence {batch}");
            }
        }
    }
}
