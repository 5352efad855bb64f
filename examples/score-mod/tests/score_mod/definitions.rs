//! What the functions compute, beside their formulas in f64, and that blocks are told what their pairs are.

use ferroflash::ScoreModification;
use kernels_gpu::abi::{Band, BlockState};
use kernels_gpu::modifiers::{Buffer, Hides, Pair, Place, ScoreMod};
use score_mod_example::{BlockHoles, DistanceBias, DocumentCausal, SlidingWindow, distance_bias};

const HEADS: u32 = 3;
const SEQ: u32 = 96;

fn place(batch: u32, head: u32) -> Place {
    Place {
        batch,
        head,
        heads: HEADS,
        q_begin: 0,
        kv_begin: 0,
        seq_q: SEQ,
        seq_kv: SEQ,
        band: Band::FULL,
    }
}

fn pairs() -> impl Iterator<Item = Pair> {
    (0..SEQ).flat_map(|query| (0..SEQ).map(move |key| Pair { query, key }))
}

#[test]
fn a_distance_bias_follows_its_formula() {
    let distances = 20;
    let table: Vec<f32> = (0..HEADS * distances)
        .map(|at| (at as f32 * 0.7).sin() * 2.0)
        .collect();
    let (cap, gain) = (5.0, -1.5);
    let own: ScoreModification = distance_bias(&table, HEADS, cap, gain).unwrap();
    let own = own.on_host();
    let formula = |score: f64, head: u32, pair: Pair| {
        let distance = pair.query.abs_diff(pair.key).min(distances - 1);
        let bias = f64::from(table[(head * distances + distance) as usize]);
        f64::from(gain) * f64::from(cap) * ((score + bias) / f64::from(cap)).tanh()
    };
    for head in 0..HEADS {
        let at = place(0, head);
        for (index, pair) in pairs().enumerate() {
            let score = ((index % 41) as f32 - 20.0) * 0.4;
            let exact = f64::from(score);
            let found = f64::from(own.score(score, &at, pair));
            assert!(
                (found - formula(exact, head, pair)).abs() < 2e-6,
                "{pair:?}"
            );
            let step = 1e-4;
            let difference = formula(exact + step, head, pair) - formula(exact - step, head, pair);
            let slope = f64::from(own.derivative(score, &at, pair));
            assert!((slope - difference / (2.0 * step)).abs() < 1e-5, "{pair:?}");
        }
    }
}

/// Whether every answer of `block_state` is that of the block's pairs, and how many blocks it knows to be hidden.
fn known_hidden<S: ScoreMod>(own: &S, batches: u32) -> u32 {
    let mut hidden = 0;
    let places = (0..batches).flat_map(|batch| (0..HEADS).map(move |head| place(batch, head)));
    for at in places {
        for (rows, keys) in [(16, 8), (7, 32), (64, 64)] {
            for (query, key) in (0..SEQ)
                .step_by(rows)
                .flat_map(|query| (0..SEQ).step_by(keys).map(move |key| (query, key)))
            {
                let queries = query..(query + rows as u32).min(SEQ);
                let of_keys = key..(key + keys as u32).min(SEQ);
                let shown = queries
                    .clone()
                    .flat_map(|query| of_keys.clone().map(move |key| Pair { query, key }));
                let shown: Vec<bool> = shown.map(|pair| own.is_visible(&at, pair)).collect();
                match own.block_state(&at, queries, of_keys) {
                    Some(BlockState::Hidden) => {
                        assert!(!shown.contains(&true), "{query} {key}");
                        hidden += 1;
                    }
                    Some(BlockState::Full) => assert!(!shown.contains(&false), "{query} {key}"),
                    _ => {}
                }
            }
        }
    }
    hidden
}

/// Whether answers differ where [`ScoreMod::HIDES`] says that they may, alone.
fn differ<S: ScoreMod>(own: &S) -> [bool; 2] {
    let all = |batch, head| -> Vec<bool> {
        let at = place(batch, head);
        pairs().map(|pair| own.is_visible(&at, pair)).collect()
    };
    [all(0, 0) != all(1, 0), all(0, 0) != all(0, 1)]
}

#[test]
fn documents_are_causal_and_apart() {
    let ids: Vec<u32> = (0..2 * SEQ)
        .map(|row| row % SEQ / (11 + row / SEQ * 12))
        .collect();
    let mut own = DocumentCausal::new(2, SEQ);
    let buffer = Buffer {
        address: ids.as_ptr().expose_provenance() as u64,
        bytes: size_of_val(&ids[..]) as u64,
    };
    own.bind(&[buffer]).unwrap();
    for batch in 0..2 {
        let of = |row: u32| ids[(batch * SEQ + row) as usize];
        for pair in pairs() {
            let is_seen = pair.key <= pair.query && of(pair.key) == of(pair.query);
            assert_eq!(own.is_visible(&place(batch, 0), pair), is_seen, "{pair:?}");
        }
    }
    assert!(known_hidden(&own, 2) > 100);
    assert_eq!(differ(&own), DocumentCausal::HIDES.by());
}

#[test]
fn blocks_have_holes() {
    let own = BlockHoles {
        block_log2: 5,
        hole: 4,
    };
    for head in 0..HEADS {
        let hole = head * 7..head * 7 + 4;
        for pair in pairs() {
            let is_seen = pair.query / 32 == pair.key / 32 && !hole.contains(&(pair.key % 32));
            assert_eq!(own.is_visible(&place(0, head), pair), is_seen, "{pair:?}");
        }
    }
    assert!(known_hidden(&own, 1) > 100);
    assert_eq!(differ(&own), BlockHoles::HIDES.by());
    assert_eq!(DistanceBias::HIDES, Hides::Nothing);
}

#[test]
fn a_window_slides() {
    let own = SlidingWindow { left: 9 };
    for pair in pairs() {
        let is_seen = pair.key <= pair.query && pair.query - pair.key <= 9;
        assert_eq!(own.is_visible(&place(0, 0), pair), is_seen, "{pair:?}");
    }
    // Rows stand at the last keys.
    let later = Place {
        seq_kv: SEQ + 5,
        ..place(0, 0)
    };
    let last = Pair {
        query: SEQ - 1,
        key: SEQ + 4,
    };
    assert!(own.is_visible(&later, last));
    assert!(known_hidden(&own, 1) > 100);
    assert!(known_hidden(&SlidingWindow { left: 40 }, 1) > 50);
    assert_eq!(differ(&own), SlidingWindow::HIDES.by());
}
