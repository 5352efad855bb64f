//! Which rows of a problem are checked.

use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use ferroflash::{Problem, Sequence};

/// Which rows to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Every row.
    All,
    /// The first and last row of some heads and random rows of others, for problems that are too
    /// large to check whole.
    Sampled {
        /// Rows in all.
        count: usize,
        /// Which rows.
        seed: u64,
    },
}

/// Rows of one head of one batch entry.
pub(super) struct RowTask {
    pub batch: usize,
    pub head: usize,
    pub rows: Vec<usize>,
}

/// The rows to check of `heads` heads, of which each sequence has `rows_of`.
pub(super) fn row_tasks(
    problem: &Problem,
    heads: usize,
    rows_of: impl Fn(&Sequence) -> usize,
    rows: Rows,
) -> Vec<RowTask> {
    let heads = 0..heads;
    // (batch entry, head, rows), without those that have no row.
    let places = problem
        .sequences()
        .enumerate()
        .flat_map(|(batch, sequence)| {
            let count = rows_of(&sequence);
            let heads = heads.clone().filter(move |_| count > 0);
            heads.map(move |head| (batch, head, count))
        });
    let places: Vec<_> = places.collect();
    let task = |(batch, head, _), rows| RowTask { batch, head, rows };
    let all_rows: usize = places.iter().map(|&(_, _, count)| count).sum();
    let (count, seed) = match rows {
        Rows::Sampled { count, seed } if count < all_rows => (count, seed),
        _ => {
            let of_place = |place: (usize, usize, usize)| {
                let starts = (0..place.2).step_by(ROWS_PER_TASK);
                starts.map(move |start| {
                    task(place, (start..place.2.min(start + ROWS_PER_TASK)).collect())
                })
            };
            return places.into_iter().flat_map(of_place).collect();
        }
    };
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut tasks = Vec::new();
    let mut left = count;
    while left > 0 {
        let &place = places.choose(&mut rng).expect("a row has a head");
        let of_head = place.2;
        let mut rows = vec![0, of_head - 1];
        rows.extend((0..ROWS_PER_HEAD - 2).map(|_| rng.random_range(0..of_head)));
        rows.truncate(left);
        left -= rows.len();
        tasks.push(task(place, rows));
    }
    tasks
}

/// Rows of one head that are compared together where all are: few enough that one long head keeps every core busy,
/// enough that widening its K and V does not dominate.
const ROWS_PER_TASK: usize = 64;

/// Sampled rows of one head: enough that widening its K and V does not dominate.
const ROWS_PER_HEAD: usize = 8;
