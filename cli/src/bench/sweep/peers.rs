//! `--peers FILE`: measurements of other libraries on the problems of a sweep.

use std::path::{Path, PathBuf};

use ferroflash::Mask;
use ferroflash_insight::results::{Row, SideBySide};

use super::points::{PEER, Point};
use crate::bench::problem::Bench;
use crate::failure::Failure;

fn refused(path: &Path, wrong: impl std::fmt::Display) -> Failure {
    Failure::refused(
        "--peers",
        format!("{}: {wrong}", path.display()),
        "a file of bench/side_by_side.py --json that ran problems of this sweep",
    )
}

/// Reads the file.
pub fn load(path: &Path) -> Result<(PathBuf, SideBySide), Failure> {
    let file = SideBySide::load(path).map_err(|wrong| refused(path, wrong))?;
    Ok((path.to_owned(), file))
}

/// A point for each peer on each of `benches` that it ran; `case` describes a bench in words.
pub fn points(
    path: &Path,
    file: &SideBySide,
    benches: &[Bench],
    case: impl Fn(&Bench) -> String,
) -> Result<Vec<Point>, Failure> {
    let mut points = Vec::new();
    for bench in benches {
        let problem = bench.problem()?;
        for row in file.rows.iter().filter(|row| is_of(file, row, bench)) {
            for (who, times) in &row.peers {
                let seconds = times.ms_sustained / 1e3;
                points.push(Point {
                    case: case(bench),
                    variant: PEER.to_owned(),
                    batch: row.batch,
                    seq: row.seq,
                    kernel: who.clone(),
                    ms_sustained: times.ms_sustained,
                    ms_burst: times.ms_burst,
                    clock_mhz: times.clock_mhz,
                    watts: times.watts,
                    // With our count of FLOPs, which differs slightly from the script's.
                    tflops: problem.flops() / seconds / 1e12,
                    gbs: problem.bytes() / seconds / 1e9,
                    workspace_bytes: None,
                    peak_bytes: None,
                    device: file.device.clone(),
                });
            }
        }
    }
    if points.is_empty() {
        return Err(refused(path, "no peer in it ran a problem of this sweep"));
    }
    Ok(points)
}

/// Whether `row` is the problem of `bench`.
fn is_of(file: &SideBySide, row: &Row, bench: &Bench) -> bool {
    let [q, k, v] = bench.shapes;
    let mask = match row.causal {
        true => Mask::Causal,
        false => Mask::None,
    };
    let sizes = (row.batch, row.heads, row.seq, row.d);
    row.what == "fwd"
        && file.dtype() == Some(bench.dtype)
        && bench.is_plain()
        && bench.options.mask == mask
        && sizes == (q.batch, q.heads, q.seq, q.dim)
        && [k, v] == [q; 2]
}
