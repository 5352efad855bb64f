//! `ferroflash ladder`: from the textbook's softmax to FlashAttention-2, rung by rung.

use std::io::{self, Write};

use ferroflash::{DType, Mask};
use ferroflash_insight::cost::Tiles;
use ferroflash_insight::ladder::attention::{Measured, Rung};
use ferroflash_insight::ladder::backward::{
    BackwardHead, BackwardRung, ExactGradients, MeasuredBackward,
};
use ferroflash_insight::ladder::dropout::Dropout;
use ferroflash_insight::ladder::exact::Exact;
use ferroflash_insight::ladder::global::Traffic;
use ferroflash_insight::ladder::gpu::Size;
use ferroflash_insight::ladder::head::Head;
use ferroflash_insight::ladder::product;
use ferroflash_insight::ladder::softmax::{
    OVERFLOWING_ROW, Rounding, Row, Softmax, naive_exponentials,
};
use serde::Serialize;

use crate::arguments::{self, MaskName};
use crate::failure::Failure;
use crate::ladder_gpu;
use crate::progress;
use crate::table::{Table, error_bound};

#[derive(clap::Args)]
pub struct Args {
    /// Queries and keys; on the CPU 8192 at most, 4096 with a head_dim of 256, which takes a minute
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = arguments::count, allow_hyphen_values = true)]
    seq: usize,
    /// Components of q, k, v and o
    #[arg(long, value_name = "D", default_value_t = 64, value_parser = arguments::count, allow_hyphen_values = true)]
    head_dim: usize,
    /// Which keys a query sees
    #[arg(long, value_enum, default_value_t = MaskName::None)]
    mask: MaskName,
    /// Probability with which an entry of P is dropped
    #[arg(long, value_name = "P", value_parser = arguments::real, allow_hyphen_values = true)]
    dropout: Option<f32>,
    /// Where to run: the CPU shows the algorithms, a GPU runs them as kernels
    #[arg(long, value_enum, default_value_t = LadderBackend::Cpu)]
    backend: LadderBackend,
    /// Batch times heads on a GPU; the CPU shows one
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = arguments::count, allow_hyphen_values = true)]
    heads: usize,
    /// Seed of the inputs and of dropout
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = arguments::seed, allow_hyphen_values = true)]
    seed: u64,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum LadderBackend {
    /// Small functions, one head, every load and store counted
    Cpu,
    /// The kernels in a simulator on the CPU
    Sim,
    /// The kernels on the first NVIDIA GPU
    Cuda,
}

/// Result of one softmax algorithm on [`OVERFLOWING_ROW`].
#[derive(Serialize)]
struct SoftmaxReport {
    softmax: &'static str,
    formula: &'static str,
    passes: u32,
    /// As text, since JSON has neither ∞ nor NaN.
    y: Vec<String>,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Report {
    /// Softmax algorithms on [`OVERFLOWING_ROW`], in f16.
    softmax: Vec<SoftmaxReport>,
    seq: usize,
    head_dim: usize,
    tiles: Tiles,
    rungs: Vec<Measured>,
    /// Largest error of ferroflash's own CPU backend; `None` with dropout, which it lacks.
    product_largest_error: Option<f64>,
    /// Of the same head's backward pass.
    backward: Vec<MeasuredBackward>,
    /// As `product_largest_error`, of dq, dk and dv.
    product_largest_gradient_error: Option<f64>,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    match args.backend {
        LadderBackend::Cpu => cpu(args),
        LadderBackend::Sim => ladder_gpu::sim(&gpu_size(args)?, args.json),
        LadderBackend::Cuda => ladder_gpu::cuda(&gpu_size(args)?, args.json),
    }
}

/// The problem's size for the GPU rungs; refuses the options that they lack.
fn gpu_size(args: &Args) -> Result<Size, Failure> {
    let only_cpu = |argument| {
        let allowed = "--backend cpu, or leave it out";
        Failure::refused(argument, "the GPU rungs do without it", allowed)
    };
    if !matches!(args.mask, MaskName::None) {
        return Err(only_cpu("--mask"));
    }
    if args.dropout.is_some() {
        return Err(only_cpu("--dropout"));
    }
    Ok(Size {
        heads: args.heads,
        seq: args.seq,
        head_dim: args.head_dim,
        seed: args.seed,
        runs: 0,
    })
}

fn cpu(args: &Args) -> Result<(), Failure> {
    if args.heads != 1 {
        return Err(Failure::refused(
            "--heads",
            format!("{} heads; the CPU shows one", args.heads),
            "1, or --backend sim or cuda",
        ));
    }
    let mut head = Head::random(args.seq, args.head_dim, args.seed)?;
    head.mask = match args.mask {
        MaskName::None => Mask::None,
        // With as many queries as keys, both corners are the same.
        MaskName::Causal | MaskName::CausalTopLeft => Mask::Causal,
    };
    if let Some(probability) = args.dropout {
        head.dropout = Some(Dropout::new(f64::from(probability), args.seed)?);
    }
    let steps = Rung::ALL.len() + BackwardRung::ALL.len() + 4;
    let bar = progress::bar("ladder", steps);
    let exact = Exact::of(&head);
    bar.inc(1);
    let measure = |rung: Rung| {
        let measured = rung.measure(&head, &exact);
        bar.inc(1);
        measured
    };
    let pass = BackwardHead::random(&head, args.seed)?;
    let exact_gradients = ExactGradients::of(&pass);
    bar.inc(1);
    let measure_backward = |rung: BackwardRung| {
        let measured = rung.measure(&pass, &exact_gradients);
        bar.inc(1);
        measured
    };
    let report = Report {
        softmax: Softmax::ALL.map(softmax).into(),
        seq: args.seq,
        head_dim: args.head_dim,
        tiles: head.tiles,
        rungs: Rung::ALL.map(measure).into(),
        product_largest_error: product::largest_error(&head, &exact)?,
        backward: BackwardRung::ALL.map(measure_backward).into(),
        product_largest_gradient_error: product::largest_gradient_error(&pass, &exact_gradients)?,
    };
    bar.finish_and_clear();
    let mut out = io::stdout();
    if args.json {
        let line = serde_json::to_string(&report).expect("plain numbers and strings");
        writeln!(out, "{line}")?;
    } else {
        print_softmax(&report, &mut out)?;
        print_rungs(&report, &mut out)?;
        print_backward(&report, &mut out)?;
    }
    Ok(())
}

fn softmax(softmax: Softmax) -> SoftmaxReport {
    let row = Row::new(&OVERFLOWING_ROW);
    let y = softmax.run(&row, Rounding(DType::F16));
    SoftmaxReport {
        softmax: softmax.name(),
        formula: softmax.formula(),
        passes: row.passes(),
        y: y.into_iter().map(|y| text(y, 5)).collect(),
    }
}

/// A number as text, infinity as `inf`.
fn text(value: f32, decimals: usize) -> String {
    if value == f32::INFINITY {
        "inf".to_owned()
    } else {
        format!("{value:.decimals$}")
    }
}

fn print_softmax(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let exps = naive_exponentials(&OVERFLOWING_ROW, DType::F16);
    let exps: Vec<_> = exps.into_iter().map(|exp| text(exp, 1)).collect();
    writeln!(
        out,
        "softmax of {OVERFLOWING_ROW:?} in f16, whose largest number is 65504"
    )?;
    writeln!(out, "exp: {}", exps.join(", "))?;
    writeln!(out)?;
    let mut table = Table::new(&["f16", "passes", "y₀", "y₁", "y₂", "y₃", "y₄"]);
    for SoftmaxReport {
        softmax, passes, y, ..
    } in &report.softmax
    {
        let cells = [softmax.to_string(), passes.to_string()];
        table.row(cells.into_iter().chain(y.clone()));
    }
    table.print(out)?;
    writeln!(out)?;
    for row in &report.softmax {
        writeln!(out, "{}: {}", row.softmax, row.formula)?;
    }
    Ok(())
}

fn print_rungs(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let Tiles {
        fa1_block_n,
        block_m,
        block_n,
    } = report.tiles;
    writeln!(out)?;
    writeln!(
        out,
        "attention of one head, seq {}, head_dim {}, f32; FA1 with {block_m} rows × {fa1_block_n} keys, FA2 with {block_m} × {block_n}",
        report.seq, report.head_dim
    )?;
    writeln!(out)?;
    let rows = report.rungs.iter().map(|rung| RungRow {
        name: rung.rung,
        passes: [
            rung.passes_over_scores,
            rung.passes_over_keys,
            rung.passes_over_output,
        ],
        traffic: &rung.traffic,
        largest_error: rung.largest_error,
    });
    print_table(["S, P moved", "K, V read", "O moved"], rows, out)?;
    let product = "ferroflash's own loop on the CPU, on the same head";
    print_product(product, report.product_largest_error, out)?;
    writeln!(out)?;
    let attention = report.rungs.iter().skip(report.softmax.len());
    for rung in attention {
        writeln!(out, "{}: {}", rung.rung, rung.formula)?;
    }
    Ok(())
}

fn print_backward(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let Tiles {
        block_m, block_n, ..
    } = report.tiles;
    writeln!(out)?;
    writeln!(
        out,
        "its gradients; FA2 with {block_n} keys that stay and {block_m} rows that pass"
    )?;
    writeln!(out)?;
    let rows = report.backward.iter().map(|rung| RungRow {
        name: rung.rung,
        passes: [
            rung.passes_over_scores,
            rung.passes_over_queries,
            rung.passes_over_keys,
        ],
        traffic: &rung.traffic,
        largest_error: rung.largest_error,
    });
    print_table(["P, dP, dS moved", "Q, dO read", "K read"], rows, out)?;
    let product = "ferroflash's own gradients on the CPU, of the same head";
    print_product(product, report.product_largest_gradient_error, out)?;
    writeln!(out)?;
    for rung in &report.backward {
        writeln!(out, "{}: {}", rung.rung, rung.formula)?;
    }
    Ok(())
}

/// A rung of either pass as a row of its table.
struct RungRow<'a> {
    name: &'a str,
    /// Passes over each of three kinds of matrices.
    passes: [f64; 3],
    traffic: &'a Traffic,
    largest_error: f64,
}

/// The table of a pass, whose columns of passes are called `passes`.
fn print_table<'a>(
    passes: [&str; 3],
    rows: impl Iterator<Item = RungRow<'a>>,
    out: &mut impl Write,
) -> io::Result<()> {
    let [a, b, c] = passes;
    let mut table = Table::new(&["rung", a, b, c, "KB read", "KB written", "largest error"]);
    let kilobytes = |bytes: u64| format!("{:.0}", bytes as f64 / 1e3);
    for row in rows {
        let [a, b, c] = row.passes.map(|passes| format!("{passes:.0} ×"));
        table.row([
            row.name.to_owned(),
            a,
            b,
            c,
            kilobytes(row.traffic.read_bytes),
            kilobytes(row.traffic.written_bytes),
            error_bound(row.largest_error),
        ]);
    }
    table.print(out)
}

/// The error of ferroflash's own `product`, if it computes such a head.
fn print_product(product: &str, error: Option<f64>, out: &mut impl Write) -> io::Result<()> {
    let Some(error) = error else {
        return Ok(());
    };
    writeln!(out)?;
    writeln!(out, "{product}: largest error {}", error_bound(error))
}
