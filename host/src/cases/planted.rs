//! Inputs whose result hangs on the edges of what each query sees.

use rand::RngExt;

use super::spec::Case;
use crate::HostTensor;

/// Scores the planted keys aim at: far above the N(0, 1) of the others.
const TARGET_SCORE: f32 = 14.0;
/// No planted score exceeds this; the oracle's bound for f32 is calibrated up to it.
const LARGEST_SCORE: f32 = 20.0;

/// Makes keys at the edges of the rows' visible ranges equal to those rows' queries, up to a factor.
///
/// Each key serves one row, drawn at random, in one role: the row's last visible key, its first
/// hidden one, or the same two at the left edge.
pub(super) fn plant(case: &mut Case, rng: &mut impl RngExt) {
    let Ok(problem) = case.problem() else {
        return;
    };
    let (shape, group) = (problem.q().shape, problem.group());
    let seq_kv = problem.k().shape.seq as i64;
    let band = problem.band();
    for batch in 0..shape.batch {
        for head_kv in 0..problem.k().shape.heads {
            let heads = head_kv * group..(head_kv + 1) * group;
            let longest = heads
                .clone()
                .flat_map(|head| (0..shape.seq).map(move |i| (head, i)))
                .map(|(head, i)| norm(&case.q, batch, head, i))
                .fold(0.0, f32::max);
            for j in 0..seq_kv {
                // Offsets j − i at which j is the last visible, first hidden, first visible, and
                // last hidden key; an open side reaches to the ends of the sequence.
                let ends = [0, seq_kv - 1];
                let offset = match rng.random_range(0..4) {
                    0 => i64::from(band.upper),
                    1 => i64::from(band.upper) + 1,
                    2 => i64::from(band.lower),
                    _ => i64::from(band.lower) - 1,
                };
                let row = j - offset;
                let row = match usize::try_from(row) {
                    Ok(row) if row < shape.seq => row,
                    // No row has its edge here. The ends of the sequence dominate some row all the
                    // same, or a tile that is cut short would not show.
                    _ if ends.contains(&j) && shape.seq > 0 => rng.random_range(0..shape.seq),
                    _ => continue,
                };
                let head = rng.random_range(heads.clone());
                let scale = problem.softmax_scale();
                let query_norm = norm(&case.q, batch, head, row);
                let factor = planted_factor(scale, query_norm, longest);
                for dim in 0..shape.dim {
                    let value = factor * case.q.get(batch, head, row, dim);
                    case.k.set(batch, head_kv, j as usize, dim, value);
                }
            }
        }
    }
}

/// What to multiply a query by to make a key: aims at [`TARGET_SCORE`] for its own row, and keeps
/// every other row's score below [`LARGEST_SCORE`] in size.
fn planted_factor(scale: f32, query_norm: f32, longest: f32) -> f32 {
    let own = scale * query_norm * query_norm;
    let others = (scale * query_norm * longest).abs();
    if own == 0.0 {
        return 1.0;
    }
    (TARGET_SCORE / own.abs()).min(LARGEST_SCORE / others) * own.signum()
}

fn norm(q: &HostTensor, batch: usize, head: usize, row: usize) -> f32 {
    (0..q.spec().shape.dim)
        .map(|dim| q.get(batch, head, row, dim).powi(2))
        .sum::<f32>()
        .sqrt()
}
