//! `ferroflash bench`: the time of one problem, once its result is known to be right.

use ferroflash::cases::{Case, normal};
use ferroflash::oracle::Rows;
use ferroflash::{
    Backend, DType, ForwardOptions, Layout, Memory, Problem, Shape, forward, forward_into,
};
use serde::Serialize;

use crate::arguments::{self, BackendName, DTypeName, ForwardArgs, LayoutName};
use crate::backends::{self, Work};
use crate::failure::Failure;
use crate::progress;

#[derive(clap::Args)]
pub struct Args {
    /// Sequences
    #[arg(long, value_name = "B", value_parser = arguments::count, allow_negative_numbers = true)]
    batch: usize,
    /// Query heads
    #[arg(long, value_name = "H", value_parser = arguments::count, allow_negative_numbers = true)]
    heads: usize,
    /// Heads of k and v [default: as many as query heads]
    #[arg(long, value_name = "HK", value_parser = arguments::count, allow_negative_numbers = true)]
    heads_kv: Option<usize>,
    /// Query rows
    #[arg(long, value_name = "SQ", value_parser = arguments::count, allow_negative_numbers = true)]
    seq_q: usize,
    /// Keys
    #[arg(long, value_name = "SK", value_parser = arguments::count, allow_negative_numbers = true)]
    seq_kv: usize,
    /// Components of q and k
    #[arg(long, value_name = "D", value_parser = arguments::count, allow_negative_numbers = true)]
    head_dim: usize,
    /// Components of v and o [default: head_dim]
    #[arg(long, value_name = "DV", value_parser = arguments::count, allow_negative_numbers = true)]
    head_dim_v: Option<usize>,
    /// Element type
    #[arg(long, value_enum, default_value_t = DTypeName::F32)]
    dtype: DTypeName,
    /// Axis order of q, k, v and o
    #[arg(long, value_enum, default_value_t = LayoutName::Bshd)]
    layout: LayoutName,
    #[command(flatten)]
    forward: ForwardArgs,
    /// What to time
    #[arg(long, value_enum, default_value_t = Pass::Fwd)]
    pass: Pass,
    /// Where to run
    #[arg(long, value_enum, default_value_t = BackendName::Auto)]
    backend: BackendName,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Pass {
    /// o and lse from q, k and v
    Fwd,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let layout = Layout::from(args.layout);
    let options = args.forward.options()?.o_layout(layout);
    let Pass::Fwd = args.pass;
    let shape = |heads, seq, dim| Shape {
        batch: args.batch,
        heads,
        seq,
        dim,
    };
    let heads_kv = args.heads_kv.unwrap_or(args.heads);
    let head_dim_v = args.head_dim_v.unwrap_or(args.head_dim);
    let bench = Bench {
        shapes: [
            shape(args.heads, args.seq_q, args.head_dim),
            shape(heads_kv, args.seq_kv, args.head_dim),
            shape(heads_kv, args.seq_kv, head_dim_v),
        ],
        dtype: args.dtype.into(),
        layout,
        options,
        json: args.json,
    };
    backends::run(args.backend, bench)
}

struct Bench {
    /// Of q, k and v.
    shapes: [Shape; 3],
    dtype: DType,
    layout: Layout,
    options: ForwardOptions,
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    kernel: String,
    ms_median: f64,
    ms_min: f64,
    ms_max: f64,
    runs: usize,
    /// 10¹² floating-point operations of the two matrix products over visible pairs, a second.
    tflops: f64,
    /// 10⁹ bytes of q, k and v read once and o and lse written once, a second.
    gbs: f64,
    device: String,
}

/// Rows that are checked before anything is timed.
const CHECKED_ROWS: usize = 64;

impl Work for Bench {
    fn run<B: Backend>(self, backend: &mut B) -> Result<(), Failure> {
        let specs = self
            .shapes
            .map(|shape| ferroflash::TensorSpec::contiguous(self.dtype, shape, self.layout));
        let [q, k, v] = specs;
        let problem = Problem::with_dense_output(q?, k?, v?, &self.options)?;
        let kernel = backend.kernel_name(&problem)?;
        if problem.o().is_empty() {
            return Err(Failure::refused(
                "shape",
                "there is nothing to compute",
                "batch and seq-q of 1 or more",
            ));
        }

        let spinner = progress::spinner("inputs");
        let [q, k, v] = self.shapes;
        let input = |shape, seed| normal(self.dtype, shape, self.layout, seed);
        let case = Case {
            q: input(q, 1)?,
            k: input(k, 2)?,
            v: input(v, 3)?,
            options: self.options,
        };
        let memory = backend.memory();
        let q = case.q.upload(memory)?;
        let k = case.k.upload(memory)?;
        let v = case.v.upload(memory)?;

        spinner.set_message("check");
        let mut output = forward(backend, &q, &k, &v, &self.options)?;
        let memory = backend.memory();
        let (o, lse) = (output.o.download(memory)?, output.lse.download(memory)?);
        let rows = Rows::Sampled {
            count: CHECKED_ROWS,
            seed: 0,
        };
        let verdict = case.check(&o, &lse, rows)?;
        if !verdict.passed() {
            return Err(Failure::Failed(format!(
                "{kernel}: its result is wrong ({verdict}); a kernel is timed only if it is right"
            )));
        }

        spinner.set_message("time");
        let mut run = |backend: &mut B| {
            forward_into(backend, &q, &k, &v, &mut output, &self.options).map_err(Failure::from)
        };
        let times = time(backend, &mut run)?;
        spinner.finish_and_clear();
        self.print(&report(kernel, backend.device_name(), &problem, times))
    }
}

impl Bench {
    fn print(&self, report: &Report) -> Result<(), Failure> {
        if self.json {
            let line = serde_json::to_string(report).expect("plain numbers and strings");
            println!("{line}");
        } else {
            let Report {
                kernel,
                ms_median,
                ms_min,
                ms_max,
                runs,
                tflops,
                gbs,
                device,
            } = report;
            println!("{kernel} on {device}");
            println!("  {ms_median:.4} ms median of {runs} runs, {ms_min:.4} to {ms_max:.4}");
            println!("  {tflops:.3} TFLOP/s, {gbs:.1} GB/s");
        }
        Ok(())
    }
}

/// Milliseconds that warming up takes at least.
const WARM_UP_MS: f64 = 100.0;
/// Milliseconds that the timed runs take together, about.
const MEASURE_MS: f64 = 1000.0;
/// Timed runs, at least and at most.
const RUNS: (usize, usize) = (5, 500);

/// The milliseconds of each run, sorted.
///
/// All runs are queued with a mark between each two before any is waited for, so that a device never
/// waits for the host between them.
fn time<B: Backend>(
    backend: &mut B,
    run: &mut impl FnMut(&mut B) -> Result<(), Failure>,
) -> Result<Vec<f64>, Failure> {
    let (mut warm_up_runs, mut warm_up_ms) = (0, 0.0);
    while warm_up_runs < 1 || (warm_up_ms < WARM_UP_MS && warm_up_runs < RUNS.1) {
        let start = backend.memory().mark()?;
        run(backend)?;
        let stop = backend.memory().mark()?;
        warm_up_ms += backend.memory().elapsed_ms(&start, &stop)?;
        warm_up_runs += 1;
    }
    let one_run_ms = warm_up_ms / warm_up_runs as f64;
    let runs = ((MEASURE_MS / one_run_ms) as usize).clamp(RUNS.0, RUNS.1);
    let mut marks = vec![backend.memory().mark()?];
    for _ in 0..runs {
        run(backend)?;
        marks.push(backend.memory().mark()?);
    }
    let mut times = Vec::with_capacity(runs);
    for pair in marks.windows(2) {
        times.push(backend.memory().elapsed_ms(&pair[0], &pair[1])?);
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

fn report(kernel: String, device: String, problem: &Problem, times: Vec<f64>) -> Report {
    let ms_median = median(&times);
    let seconds = ms_median / 1e3;
    Report {
        kernel,
        ms_median,
        ms_min: times[0],
        ms_max: times[times.len() - 1],
        runs: times.len(),
        tflops: problem.flops() / seconds / 1e12,
        gbs: problem.bytes() / seconds / 1e9,
        device,
    }
}

/// Median of sorted values.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}
