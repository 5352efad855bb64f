//! Inputs whose result depends on the edges of each query's visible range.

use rand::RngExt;

use super::spec::Case;
use ferroflash::{HostTensor, Problem, Sequence};

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
    for sequence in problem.sequences() {
        for head_kv in 0..problem.k().shape.heads {
            plant_head(case, &problem, &sequence, head_kv, rng);
        }
    }
}

/// Plants keys of one head of one sequence.
fn plant_head(
    case: &mut Case,
    problem: &Problem,
    sequence: &Sequence,
    head_kv: usize,
    rng: &mut impl RngExt,
) {
    let (seq_q, seq_kv) = (sequence.seq_q(), sequence.seq_kv() as i64);
    let (batch, first_q) = (sequence.batch, sequence.q_rows.start);
    let rows_q = problem.q().shape.seq;
    let heads = head_kv * problem.group()..(head_kv + 1) * problem.group();
    let longest = heads
        .clone()
        .flat_map(|head| sequence.q_rows.clone().map(move |row| (head, row)))
        .map(|(head, row)| norm(&case.q, batch, head, row))
        .fold(0.0, f32::max);
    for j in 0..seq_kv {
        // Offsets j − i at which j is the last visible, first hidden, first visible, and
        // last hidden key; an open side reaches to the ends of the sequence.
        let ends = [0, seq_kv - 1];
        let offset = match rng.random_range(0..4) {
            0 => i64::from(sequence.band.upper),
            1 => i64::from(sequence.band.upper) + 1,
            2 => i64::from(sequence.band.lower),
            _ => i64::from(sequence.band.lower) - 1,
        };
        let row = match usize::try_from(j - offset) {
            Ok(i) if i < seq_q => first_q + i,
            // No row has its edge here. The ends of the sequence dominate some row all the
            // same, or a tile that is cut short would not show; or a row of the packed neighbour,
            // which must not see them.
            _ if ends.contains(&j) => match neighbour(sequence, j, rows_q) {
                Some(row) if seq_q == 0 || rng.random_bool(0.5) => row,
                _ if seq_q > 0 => rng.random_range(sequence.q_rows.clone()),
                _ => continue,
            },
            _ => continue,
        };
        let head = rng.random_range(heads.clone());
        let key = sequence.kv_rows.start + j as usize;
        let query_norm = norm(&case.q, batch, head, row);
        let factor = planted_factor(problem.softmax_scale(), query_norm, longest);
        for dim in 0..problem.q().shape.dim {
            let value = factor * case.q.get(batch, head, row, dim);
            case.k.set(batch, head_kv, key, dim, value);
        }
    }
}

/// The row of another packed sequence that is nearest to key `j`, the first or the last of this one; sequences that are
/// not packed have no neighbours.
fn neighbour(sequence: &Sequence, j: i64, rows_q: usize) -> Option<usize> {
    match j {
        0 => sequence.q_rows.start.checked_sub(1),
        _ => Some(sequence.q_rows.end).filter(|&row| row < rows_q),
    }
}

/// Factor from a query to the key planted for it: aims at [`TARGET_SCORE`] for its own row, and keeps every other row's
/// score below [`LARGEST_SCORE`] in size.
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
