//! Invalid lengths.

use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::case::{Case, case};
use super::crew;
use crate::abi::{Band, Corner, MaskParams, SequenceRows};
use crate::config::wgmma::HD64;
use crate::wgmma::pack_gqa::PackGqa;

/// Any number, often near the valid range.
fn length() -> impl Strategy<Value = i32> {
    prop_oneof![any::<i32>(), -10..4000i32, Just(i32::MIN), Just(i32::MAX)]
}

/// All listed rows lie inside the operands, whatever the lengths.
fn check(case: &Case, memory: &[i32]) {
    let params = case.params();
    let made = crew::list(&params, memory, case.crew);
    assert!(made.entries.len() <= params.capacity as usize);
    let attention = &params.attention;
    let (q, kv) = match case.has_cu_seqlens {
        true => (attention.lengths.total_q, attention.lengths.total_kv),
        false => (attention.seq_q, attention.seq_kv),
    };
    for (tile, entry) in case.walk(&made) {
        let SequenceRows {
            q_begin,
            seq_q,
            kv_begin,
            seq_kv,
        } = entry.rows;
        assert!(tile.batch < attention.batch && tile.head_kv < case.heads_kv);
        assert!(seq_q <= attention.seq_q && u64::from(q_begin) + u64::from(seq_q) <= q.into());
        assert!(seq_kv <= attention.seq_kv && u64::from(kv_begin) + u64::from(seq_kv) <= kv.into());
        let begin = tile.cluster_m_block * case.config.cluster_m();
        assert!(begin < case.pack_gqa.rows(seq_q), "{tile:?} has no row");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_lengths_stay_inside(
        case in case(),
        wrong in proptest::collection::vec(length(), 300),
        which in proptest::collection::vec(any::<bool>(), 300),
    ) {
        let mut memory = case.memory();
        for ((length, wrong), is_wrong) in memory.iter_mut().zip(wrong).zip(which) {
            if is_wrong {
                *length = wrong;
            }
        }
        check(&case, &memory);
    }
}

/// More tiles than 32 bits count, of sequences that all claim the same rows.
#[test]
fn sequences_that_overlap_leave_the_list_empty() {
    const BATCH: usize = 1000;
    let mut case = Case {
        lengths: vec![(1 << 19, 1 << 19); BATCH],
        has_cu_seqlens: true,
        used: None,
        heads_kv: 1,
        group: 1,
        mask: MaskParams::new(Band::FULL, Corner::TopLeft),
        config: HD64.for_varlen(),
        pack_gqa: PackGqa::none(1),
        crew: 4,
    };
    let mut params = case.params();
    (params.attention.seq_q, params.attention.seq_kv) = (1 << 29, 1 << 29);
    // From the first row to the last, and back to the first, in turn.
    let ends = (0..=BATCH).map(|index| [0, i32::MAX][index % 2]);
    let memory: Vec<i32> = ends.clone().chain(ends).collect();
    let made = crew::list(&params, &memory, 4);
    assert_eq!((made.entries.len(), made.header.tiles), (0, 0));
    // Twice the rows are too many too.
    case.lengths.truncate(3);
    let mut params = case.params();
    params.attention.seq_q = params.attention.lengths.total_q;
    let made = crew::list(&params, &[0, i32::MAX, 0, i32::MAX, 0, 0, 0, 0], 4);
    assert_eq!(made.header.tiles, 0);
}
