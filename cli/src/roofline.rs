//! `ferroflash roofline`: the limits of attention on a GPU.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ferroflash::backend::cuda::{Cuda, CudaDevice};
use ferroflash::{DType, Error};
use ferroflash_insight::cost::{Pass, Workload};
use ferroflash_insight::gpu_spec::GpuSpec;
use ferroflash_insight::probe::{self, Effort, Measured, Reading};
use ferroflash_insight::results::Found;
use ferroflash_insight::roofline::{self, Row};
use ferroflash_insight::{results, roofline_plot};
use serde::Serialize;

use crate::arguments::{self, DTypeName};
use crate::failure::Failure;
use crate::say::say;
use crate::table::Table;
use crate::{picture, progress};

#[derive(clap::Args)]
pub struct Args {
    /// GPU: a100-40g, a100-80g, h100, h200 or b200; or `measured`, the first GPU here, timed with kernels that do one thing
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
    /// Folder of measurements for the picture [default: bench/results, if there is one]
    #[arg(long, value_name = "FOLDER", requires = "svg")]
    results: Option<PathBuf>,
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

/// The output of `--json`.
#[derive(Serialize)]
struct Report {
    gpu: GpuSpec,
    /// The measurements behind the figures of `gpu`, if they are not a data sheet's.
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<Measured>,
    dtype: &'static str,
    /// Peak rate, FLOP/s.
    peak_flops: f64,
    /// Arithmetic intensity at the ridge, FLOPs a byte.
    ridge: f64,
    rows: Vec<Row>,
}

/// Value of `--device` that stands for this machine's GPU.
const MEASURED: &str = "measured";

/// The GPU called `name`, and its measurements if it had to be measured.
fn device(name: &str) -> Result<(GpuSpec, Option<Measured>), Failure> {
    if name == MEASURED {
        let (gpu, measured) = measure()?;
        return Ok((gpu, Some(measured)));
    }
    let gpu = name.parse().map_err(|error| match error {
        Error::Argument { wrong, allowed, .. } => {
            Failure::refused("--device", wrong, format!("{allowed}, or {MEASURED}"))
        }
        other => other.into(),
    })?;
    Ok((gpu, None))
}

/// Size of the copy that measures bandwidth: this many times the L2 cache, and at least so many bytes.
const COPY_L2: u64 = 32;
const COPY_BYTES: u64 = 1 << 30;
/// The copy is at most this fraction of the GPU's memory, so that its two buffers take at most half.
const COPY_SHARE: u64 = 4;
/// Milliseconds of a run, long enough for the clock to settle at the GPU's power limit, and number of runs.
const RUN_MS: f64 = 50.0;
const RUNS: usize = 10;

fn measure() -> Result<(GpuSpec, Measured), Failure> {
    let cuda = CudaDevice::new(0).map_err(|error| match error {
        Error::NoDevice { wrong, .. } => Failure::refused(
            "--device",
            format!("{MEASURED}: {wrong}"),
            "an NVIDIA GPU here, or the name of one",
        ),
        other => other.into(),
    })?;
    let info = cuda.cuda_info();
    let memory_bytes = info.device.memory_bytes.unwrap_or(u64::MAX);
    let effort = Effort {
        copy_bytes: (info.l2_bytes * COPY_L2)
            .max(COPY_BYTES)
            .min(memory_bytes / COPY_SHARE),
        run_ms: RUN_MS,
        runs: RUNS,
    };
    let mut cuda = Cuda::on(cuda);
    let spinner = progress::spinner("measuring");
    let measured = probe::measure(&mut cuda, &effort)?;
    spinner.finish_and_clear();
    Ok((measured.spec(&cuda), measured))
}

/// Default folder of measurements, which this project's repository has.
const RESULTS: &str = "bench/results";

pub fn run(args: &Args) -> Result<(), Failure> {
    let works = works(args)?;
    if let Some(folder) = args.results.as_deref().filter(|folder| !folder.is_dir()) {
        let wrong = format!("{}: there is no such folder", folder.display());
        let allowed = "a folder with files of bench/side_by_side.py --json";
        return Err(Failure::refused("--results", wrong, allowed));
    }
    let (gpu, measured) = device(&args.device)?;
    let dtype = DType::from(args.dtype);
    let mut rows = Vec::new();
    for work in &works {
        rows.extend(roofline::rows(work, &gpu)?);
    }
    if let Some(path) = &args.svg {
        let folder = args.results.as_deref().unwrap_or(Path::new(RESULTS));
        let Found { points, broken } = results::read(folder, &gpu, dtype);
        for (path, wrong) in broken {
            say!("{}: {wrong}: left out", path.display());
        }
        if points.is_empty() {
            let folder = folder.display();
            let (name, dtype) = (&gpu.name, dtype.name());
            say!(
                "no measurements of {dtype} on a GPU like {name} in {folder}: the picture has none"
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
        measured,
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

/// The requested problems, which are checked before a GPU is measured.
fn works(args: &Args) -> Result<Vec<Workload>, Failure> {
    let mut works = Vec::new();
    for &head_dim in &args.head_dim {
        for &seq in &args.seq {
            works.push(Workload::new(args.heads, seq, head_dim, args.dtype.into())?);
        }
    }
    Ok(works)
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
    if let Some(measured) = &report.measured {
        writeln!(out)?;
        print_readings(measured, out)?;
    }
    for pass in Pass::ALL {
        if report.rows.iter().any(|row| row.pass == pass) {
            writeln!(out)?;
            print_pass(report, pass, out)?;
        }
    }
    Ok(())
}

fn print_readings(measured: &Measured, out: &mut impl Write) -> io::Result<()> {
    let mut table = Table::new(&["measured", "kernel", "rate", "unit"]);
    let Measured {
        bandwidth,
        tensor_flops,
        f32_flops,
        exps,
    } = measured;
    for (what, Reading { kernel, rate }, unit) in [
        ("memory, read and written", bandwidth, "TB/s"),
        ("tensor cores, bf16", tensor_flops, "TFLOP/s"),
        ("CUDA cores, f32", f32_flops, "TFLOP/s"),
        ("exponentials", exps, "T/s"),
    ] {
        let rate = format!("{:.3}", rate / 1e12);
        table.row([what, kernel, &rate, unit].map(str::to_owned));
    }
    table.print(out)
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
