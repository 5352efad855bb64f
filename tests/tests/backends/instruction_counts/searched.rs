//! Problems in which elements of o that are not finite are looked into, each by what else may have made it so.

use ferroflash::backend::sim::Sim;
use ferroflash::{Error, HostTensor, Mask};
use ferroflash_testing::cases::{CorpusCase, Lengths};
use ferroflash_testing::oracle::Rows;
use ferroflash_tests::corpus;
use kernels_gpu::config::wgmma::ATOM_COLS;
use kernels_gpu::instances::Instance;
use kernels_gpu::layout::fragment::TILE_M;

use crate::borders::{self, Scores, Sort};

const KEYS: usize = 64;
/// Keys that all rows of the first warp see, the first ones. None of them sees the last key.
const SEEN: usize = KEYS - TILE_M;
/// Keys that are looked at together.
const TOGETHER: usize = 4;
const VALUES: [f32; 3] = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
/// Heads before those that have a value each.
const SHARED_HEADS: usize = 6;

/// Where a lane's elements are: a pair of columns in each atom column.
fn places(dim: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..dim.div_ceil(ATOM_COLS as usize))
        .flat_map(|atom_column| [0, 1].map(|of_pair| (atom_column, of_pair)))
}

/// The component that lane `lane` has at a place.
fn component((atom_column, of_pair): (usize, usize), lane: usize) -> usize {
    atom_column * ATOM_COLS as usize + 2 * lane + of_pair
}

/// A problem of few rows and few keys, for a kernel that computes elements of o again which keys do not explain that all rows see. One for
/// modifiers asks of each pair whether it is hidden.
pub fn case(sim: &mut Sim, instance: &Instance) -> Option<CorpusCase> {
    let config = instance.wgmma().filter(|config| !config.cached)?;
    let (case, _) = borders::case(sim, instance, Scores::Plain, [0, 0], Sort::Bias)?;
    let CorpusCase::Attention(mut case) = case else {
        return None;
    };
    let places = places(config.head_dim_v as usize).count();
    // Those for long sequences, whose heads take longest, are not given each value at each place.
    let turns = if config.min_rows > 0 { 1 } else { VALUES.len() };
    case.spec.heads_kv = SHARED_HEADS + turns * places;
    case.spec.mask = Mask::Band {
        lower: None,
        upper: Some(SEEN as i32 - 1),
    };
    if instance.name.ends_with("_modified") {
        case.spec.modifiers.chunk = Some(KEYS as u32);
    }
    [TILE_M, config.min_rows as usize]
        .into_iter()
        .find_map(|rows| {
            let mut case = case.clone();
            case.spec.lengths = match config.varlen {
                true => Lengths::Varlen(vec![(rows, KEYS)]),
                false => Lengths::one(rows, KEYS),
            };
            let case = CorpusCase::Attention(case);
            let kernels = corpus::kernels(sim, &case)?;
            kernels.contains(&instance.name).then_some(case)
        })
}

/// Runs it with values in v that are not finite: what a kernel takes for such a value in v or o, or not, makes it look at more keys or
/// fewer, compute other rows again, or leave what it should have.
///
/// # Panics
/// If o is wrong.
pub fn run(sim: &mut Sim, case: &CorpusCase) -> Result<(), Error> {
    let CorpusCase::Attention(case) = case else {
        return Ok(());
    };
    let mut case = case.forward()?;
    for head in 0..case.v.spec().shape.heads {
        spoil(&mut case.v, head);
    }
    let (o, lse) = case.run(sim)?;
    let verdict = case.check(&o, &lse, Rows::All)?;
    assert!(verdict.passed(), "{verdict}");
    Ok(())
}

/// Puts values that are not finite into a head of `v`.
fn spoil(v: &mut HostTensor, head: usize) {
    let dim = v.spec().shape.dim;
    let mut set = |key, place, lane, value| v.set(0, head, key, component(place, lane), value);
    let one_of_four = |first| (first % TOGETHER..SEEN).step_by(TOGETHER);
    match head {
        // Each value is seen by all rows, of keys that one of the four alone is.
        0 => {
            for place in places(dim) {
                for lane in 0..TOGETHER * VALUES.len() {
                    let value = VALUES[lane / TOGETHER];
                    one_of_four(lane).for_each(|key| set(key, place, lane, value));
                }
            }
        }
        // So are infinities, and behind what the rows see is a NaN, which is not to reach them: in one of each pair, as both are computed
        // again.
        1 => {
            for place in places(dim) {
                for i in 0..2 * TOGETHER {
                    let lane = 2 * TOGETHER * place.1 + i;
                    let value = VALUES[i / TOGETHER];
                    one_of_four(i).for_each(|key| set(key, place, lane, value));
                    set(KEYS - 1, place, lane, f32::NAN);
                }
            }
        }
        // An infinity that half of the rows see, in one of each pair.
        2..SHARED_HEADS => {
            for place in places(dim).filter(|(_, of_pair)| *of_pair == head % 2) {
                set(SEEN + TILE_M / 2, place, 0, VALUES[head / 2 - 1]);
            }
        }
        // One value, not among the first keys.
        _ => {
            let number = head - SHARED_HEADS;
            let count = places(dim).count();
            let place = places(dim).nth(number % count).expect("there are so many");
            let value = VALUES[(number % count + number / count) % VALUES.len()];
            set(TOGETHER + number % TOGETHER, place, number % 16, value);
        }
    }
}
