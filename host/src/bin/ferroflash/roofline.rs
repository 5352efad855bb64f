//! `ferroflash roofline`: what limits attention on a GPU.

use std::io::{self, Write};
use std::path::PathBuf;

use ferroflash::DType;
use ferroflash::learn::cost::{Pass, Workload};
use ferroflash::learn::gpu_spec::GpuSpec;
use ferroflash::learn::roofline::{self, Row};
use ferroflash::learn::{results, roofline_plot};
use serde::Serialize;

use crate::arguments::{self, DTypeName};
use crate::failure::Failure;
use crate::picture;
use crate::table::Table;

#[derive(clap::Args)]
pub struct Args {
    /// GPU: a100-40g, a100-80g, h100, h200 or b200
    #[arg(long, default_value = "h100")]
    device: String,
    /// Batch times heads
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = arguments::seed, allow_hyphen_values = true)]
    heads: u64,
    /// Queries and keys, one value or several with commas
    #[arg(long, value_name = "N,…", default_value = "4096", value_delimiter = ',', value_parser = arguments::seed, allow_hyphen_values = true)]
    seq: Vec<u64>,
    /// Components of q, k, v and o, one value or several with commas
    #[arg(long, value_name = "N,…", default_value = "128", value_delimiter = ',', value_parser = arguments::seed, allow_hyphen_values = true)]
    head_dim: Vec<u64>,
    /// Element type
    #[arg(long, value_enum, default_value_t = DTypeName::Bf16)]
    dtype: DTypeName,
    /// Which of the two computations
    #[arg(long, value_enum, default_value_t = PassName::Both)]
    pass: PassName,
    /// Draw the roof to this file, with what was measured on such a GPU
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Folder of measurements for the picture
    #[arg(long, value_name = "FOLDER", default_value = "bench/results")]
    results: PathBuf,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum PassName {
    /// o and lse
    Fwd,
    /// Gradients of q, k and v
    Bwd,
    /// One after the other
    Both,
}

impl PassName {
    fn holds(self, pass: Pass) -> bool {
        match self {
            Self::Fwd => pass == Pass::Forward,
            Self::Bwd => pass == Pass::Backward,
            Self::Both => true,
        }
    }
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    gpu: GpuSpec,
    dtype: &'static str,
    /// FLOP/s.
    peak_flops: f64,
    /// FLOPs a byte.
    ridge: f64,
    rows: Vec<Row>,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let gpu: GpuSpec = args.device.parse()?;
    let dtype = DType::from(args.dtype);
    let mut rows = Vec::new();
    for &head_dim in &args.head_dim {
        for &seq in &args.seq {
            let work = Workload::new(args.heads, seq, head_dim, dtype)?;
            rows.extend(roofline::rows(&work, &gpu)?);
        }
    }
    if let Some(path) = &args.svg {
        let points = results::read(&args.results, &gpu, dtype);
        if points.is_empty() {
            eprintln!(
                "no measurements on a GPU like {} in {}: the picture has none",
                gpu.name,
                args.results.display()
            );
        }
        let svg = roofline_plot::draw(&gpu, dtype, &rows, &points);
        picture::write(path, &svg)?;
    }
    rows.retain(|row| args.pass.holds(row.pass));
    let report = Report {
        dtype: dtype.name(),
        peak_flops: gpu.peak_flops(dtype),
        ridge: gpu.ridge(dtype),
        gpu,
        rows,
    };
    let mut out = io::stdout();
    if args.json {
        let line = serde_json::to_string(&report).expect("plain numbers and strings");
        writeln!(out, "{line}")?;
    } else {
        print(&report, &mut out)?;
    }
    Ok(())
}

fn print(report: &Report, out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "{}: {:.1} TFLOP/s {}, {:.0} GB/s, ridge {:.1} FLOP/byte, {:.2} T exponentials/s",
        report.gpu.name,
        report.peak_flops / 1e12,
        report.dtype,
        report.gpu.bandwidth / 1e9,
        report.ridge,
        report.gpu.exps / 1e12,
    )?;
    for pass in Pass::ALL {
        if report.rows.iter().any(|row| row.pass == pass) {
            writeln!(out)?;
            print_pass(report, pass, out)?;
        }
    }
    Ok(())
}

fn print_pass(report: &Report, pass: Pass, out: &mut impl Write) -> io::Result<()> {
    let mut table = Table::new(&[
        pass.name(),
        "seq",
        "head_dim",
        "GFLOP",
        "MB read",
        "MB written",
        "FLOP/byte",
        "bound",
        "least µs",
        "TFLOP/s",
    ]);
    for row in report.rows.iter().filter(|row| row.pass == pass) {
        table.row([
            row.algorithm.name().to_owned(),
            row.seq.to_string(),
            row.head_dim.to_string(),
            format!("{:.2}", row.cost.flops as f64 / 1e9),
            format!("{:.1}", row.cost.read_bytes as f64 / 1e6),
            format!("{:.1}", row.cost.written_bytes as f64 / 1e6),
            format!("{:.0}", row.intensity),
            row.bound.name().to_owned(),
            format!("{:.1}", row.seconds * 1e6),
            format!("{:.0}", row.attainable_flops / 1e12),
        ]);
    }
    table.print(out)
}
