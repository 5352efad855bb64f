//! The orders keep K and V in L2.

use std::vec;
use std::vec::Vec;

use super::case::Case;
use crate::abi::{Band, Corner, MaskParams};
use crate::config::wgmma::{HD128, WgmmaConfig};
use crate::tile::l2::Sections;
use crate::wgmma::pack_gqa::PackGqa;
use crate::wgmma::scheduler::tile_list::ListedTile;

const CAUSAL: Band = Band {
    lower: -Band::OPEN,
    upper: 0,
};

/// K and V of 4 KiB a row: 8 MiB, a section's, are 2048 rows, and 32 MiB, a part's, are 8192.
fn long(lengths: &[u32], band: Band) -> Case {
    Case {
        lengths: lengths.iter().map(|&length| (length, length)).collect(),
        has_cu_seqlens: true,
        used: None,
        heads_kv: 8,
        group: 2,
        mask: MaskParams::new(band, Corner::BottomRight),
        config: WgmmaConfig {
            head_dim: 1024,
            head_dim_v: 1024,
            ..HD128.for_varlen()
        },
        pack_gqa: PackGqa::none(2),
        crew: 4,
    }
}

/// Sequence and query head of the first tile of each, in the order in which they are taken.
fn firsts(case: &Case) -> Vec<(u32, u32)> {
    let mut firsts = Vec::new();
    for (tile, _) in case.walk(&case.list()) {
        let first = (tile.batch, tile.head_kv * case.group + tile.head);
        if !firsts.contains(&first) {
            firsts.push(first);
        }
    }
    firsts
}

/// Sequences of some tiles, in order.
fn batches(tiles: &[ListedTile]) -> Vec<u32> {
    let mut batches: Vec<_> = tiles.iter().map(|tile| tile.coord.batch).collect();
    batches.sort_unstable();
    batches.dedup();
    batches
}

#[test]
fn causal_heads_come_in_sections_that_fit_the_l2() {
    let mut case = long(&[200, 800], CAUSAL);
    case.heads_kv = 48;
    let made = case.list();
    case.check_tiles(&made);
    // Two heads of K and V, four of Q, but for the last section.
    let Sections { size: 4, last, .. } = made.header.sections else {
        panic!("{:?}", made.header);
    };
    assert!(last > 3, "or the test tests little");
    let expected = (0..=last).flat_map(|section| {
        let end = if section == last { 96 } else { section * 4 + 4 };
        [1, 0].map(|batch| (section * 4..end).map(move |head| (batch, head)))
    });
    assert!(firsts(&case).into_iter().eq(expected.flatten()));
}

#[test]
fn rows_that_are_not_used_take_no_room_in_the_l2() {
    let mut case = long(&[4000, 4000, 4000, 4000], CAUSAL);
    case.has_cu_seqlens = false;
    case.used = Some(vec![100, 400, 300, 200]);
    let made = case.list();
    // 16000 rows of a head would not fit; 1000 of two do.
    assert_eq!(made.header.sections.size, 2 * 2);
    case.check_tiles(&made);
}

#[test]
fn causal_sequences_come_in_parts_where_a_head_does_not_fit_the_l2() {
    let case = long(&[4000, 4100, 3900, 4200], CAUSAL);
    let made = case.list();
    case.check_tiles(&made);
    let (first, second) = made.entries.split_at(2 * 17);
    assert_eq!((batches(first), batches(second)), (vec![1, 3], vec![0, 2]));
    for part in [first, second] {
        assert!(part.is_sorted_by_key(|tile| core::cmp::Reverse(case.keys(tile) / 2)));
    }
}

#[test]
fn equal_sequences_are_shared_out_among_parts() {
    let case = long(&[5000; 8], CAUSAL);
    let made = case.list();
    case.check_tiles(&made);
    // Five parts of 8000 rows.
    let parts = made.entries.chunk_by(|a, b| case.keys(a) >= case.keys(b));
    assert_eq!(parts.clone().count(), 5);
    assert!(parts.map(batches).all(|batches| batches.len() <= 2));
}

#[test]
fn full_sequences_come_head_by_head_the_longest_first() {
    let case = long(&[300, 0, 3000, 1000], Band::FULL);
    let made = case.list();
    case.check_tiles(&made);
    let expected = [2, 3, 0].map(|batch| (0..16).map(move |head| (batch, head)));
    assert!(firsts(&case).into_iter().eq(expected.into_iter().flatten()));
    // All tiles of a head before the next.
    let heads = case.walk(&made).into_iter();
    let heads: Vec<_> = heads
        .map(|(tile, _)| tile.head_kv * 2 + tile.head)
        .collect();
    assert_eq!(heads[..24], [[0; 12], [1; 12]].concat());
}

/// With more lengths than buckets, tiles of nearly equal length share one.
#[test]
fn lengths_beyond_the_buckets_are_sorted_about() {
    let mut case = long(&[100_000, 40_000, 70_000], CAUSAL);
    (case.lengths[1].1, case.lengths[2].1) = (40_005, 70_010);
    (case.config.head_dim, case.config.head_dim_v) = (16, 16);
    case.crew = 1;
    let made = case.list();
    case.check_tiles(&made);
    let keys: Vec<_> = made.entries.iter().map(|tile| case.keys(tile)).collect();
    // 100,000 keys are below 2¹⁷: 64 to a bucket.
    assert!(keys.is_sorted_by(|a, b| a + 64 > *b), "{keys:?}");
    assert!(
        !keys.is_sorted_by(|a, b| a >= b),
        "or the test tests nothing"
    );
}
