//! `ferroflash ladder --backend cuda|sim`: the rungs as kernels.

use std::io::{self, Write};

use ferroflash::Gpu;
use ferroflash::backend::Device;
use ferroflash::backend::cuda::{Cuda, CudaDevice};
use ferroflash::backend::sim::{Sim, SimDevice};
use ferroflash_insight::ladder::gpu::{self, Rung, Size};
use serde::Serialize;

use crate::failure::Failure;
use crate::progress;
use crate::table::{Table, error_bound};
use crate::words::counted;

/// The output of `--json`.
#[derive(Serialize)]
struct Report {
    device: String,
    heads: usize,
    seq: usize,
    head_dim: usize,
    rungs: Vec<Rung>,
}

/// Timed runs, of which the median counts.
const TIMED_RUNS: usize = 5;

pub fn cuda(size: &Size, json: bool) -> Result<(), Failure> {
    let size = Size {
        runs: TIMED_RUNS,
        ..*size
    };
    let mut cuda: Cuda = Gpu::<CudaDevice>::on(CudaDevice::new(0)?);
    run(&mut cuda, &size, json)
}

pub fn sim(size: &Size, json: bool) -> Result<(), Failure> {
    let mut sim: Sim = Gpu::<SimDevice>::on(SimDevice::new());
    run(&mut sim, size, json)
}

fn run<D: Device>(gpu: &mut Gpu<D>, size: &Size, json: bool) -> Result<(), Failure> {
    let spinner = progress::spinner("rungs");
    let rungs = gpu::climb(gpu, size)?;
    spinner.finish_and_clear();
    let report = Report {
        device: gpu.info().name.clone(),
        heads: size.heads,
        seq: size.seq,
        head_dim: size.head_dim,
        rungs,
    };
    let mut out = io::stdout();
    if json {
        let line = serde_json::to_string(&report).expect("plain numbers and strings");
        writeln!(out, "{line}")?;
    } else {
        print(&report, &mut out)?;
    }
    match report.rungs.iter().find(|rung| rung.error_ratio > 1.0) {
        None => Ok(()),
        Some(rung) => Err(Failure::Failed(format!(
            "{}: its result is wrong, {:.3} of the allowed error; a rung must be right to count",
            rung.name, rung.error_ratio
        ))),
    }
}

fn print(report: &Report, out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "{}: {}, seq {}, head_dim {}",
        report.device,
        counted(report.heads, "head"),
        report.seq,
        report.head_dim
    )?;
    writeln!(out)?;
    // A GPU gives times and a simulator gives counts, so columns that no rung fills are left out.
    let filled = |(_, cell): &&Column| report.rungs.iter().any(|rung| cell(rung).is_some());
    let columns: Vec<_> = COLUMNS.iter().filter(filled).collect();
    let headers: Vec<_> = columns.iter().map(|(header, _)| *header).collect();
    let mut table = Table::new(&headers);
    for rung in &report.rungs {
        let cells = columns.iter().map(|(_, cell)| cell(rung));
        table.row(cells.map(|cell| cell.unwrap_or("–".to_owned())));
    }
    table.print(out)
}

/// A column's header, and the cell of a rung.
type Column = (&'static str, fn(&Rung) -> Option<String>);

const COLUMNS: [Column; 10] = [
    ("rung", |rung| Some(rung.name.to_owned())),
    ("dtype", |rung| Some(rung.dtype.to_owned())),
    ("ms", |rung| rung.ms.map(|ms| format!("{ms:.3}"))),
    ("TFLOP/s", |rung| {
        rung.tflops.map(|tflops| format!("{tflops:.2}"))
    }),
    ("speed-up", |rung| {
        rung.speed_up.map(|speed_up| format!("{speed_up:.2} ×"))
    }),
    ("MB by the model", |rung| Some(megabytes(rung.bytes))),
    ("MB asked for", |rung| {
        rung.counts.map(|counts| megabytes(counts.global_bytes))
    }),
    ("warp instructions", |rung| {
        rung.counts
            .map(|counts| counts.warp_instructions.to_string())
    }),
    ("largest error", |rung| {
        Some(error_bound(rung.largest_error))
    }),
    ("of allowed", |rung| {
        Some(format!("{:.2}", rung.error_ratio))
    }),
];

fn megabytes(bytes: u64) -> String {
    format!("{:.2}", bytes as f64 / 1e6)
}
