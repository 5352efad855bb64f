//! `ferroflash bench`: checks the result of one problem, then times it.

mod cache;
mod gauge;
mod problem;
mod protocol;
mod report;
mod statistics;
mod sweep;
mod verdict;

use ferroflash::{AlibiSlopes, ForwardOptions, Layout, SEQ_LIMIT, Shape};
use ferroflash_testing::cases::{CacheShape, InputKind, Lengths};

use crate::arguments::{self, BackendName, DTypeName, ForwardArgs, InputName, LayoutName, Pass};
use crate::backends;
use crate::failure::Failure;
use crate::modifiers::ModifierArgs;

use cache::{BenchCache, CacheArgs};
use problem::Bench;
use sweep::SweepArgs;

#[derive(clap::Args)]
pub struct Args {
    /// Sequences
    #[arg(long, value_name = "B", required_unless_present_any = ["varlen", "tokens", "kv_lens"], conflicts_with = "varlen", value_parser = arguments::count, allow_hyphen_values = true)]
    batch: Option<usize>,
    /// Query heads
    #[arg(long, value_name = "H", value_parser = arguments::count, allow_hyphen_values = true)]
    heads: usize,
    /// Heads of k and v [default: as many as query heads]
    #[arg(long, value_name = "HK", value_parser = arguments::count, allow_hyphen_values = true)]
    heads_kv: Option<usize>,
    /// Query rows
    #[arg(long, value_name = "SQ", required_unless_present_any = ["varlen", "sweep", "tokens", "seqs", "peers", "kv_len", "kv_lens"], conflicts_with_all = ["sweep", "varlen"], value_parser = arguments::count, allow_hyphen_values = true)]
    seq_q: Option<usize>,
    /// Keys
    #[arg(long, value_name = "SK", required_unless_present_any = ["varlen", "sweep", "tokens", "seqs", "peers", "kv_len", "kv_lens"], conflicts_with_all = ["sweep", "varlen"], value_parser = arguments::count, allow_hyphen_values = true)]
    seq_kv: Option<usize>,
    /// Packed sequences of these lengths: N, or Q:K for other queries than keys
    #[arg(long, value_name = "N,…", conflicts_with = "sweep", value_delimiter = ',', value_parser = arguments::lengths, allow_hyphen_values = true)]
    varlen: Option<Vec<(usize, usize)>>,
    /// --batch packed sequences of uneven lengths drawn with this seed, which add up to as many rows
    #[arg(long, value_name = "S", conflicts_with_all = ["sweep", "varlen"], value_parser = arguments::seed, allow_hyphen_values = true)]
    varlen_seed: Option<u64>,
    /// Components of q and k
    #[arg(long, value_name = "D", value_parser = arguments::count, allow_hyphen_values = true)]
    head_dim: usize,
    /// Components of v and o [default: head_dim]
    #[arg(long, value_name = "DV", value_parser = arguments::count, allow_hyphen_values = true)]
    head_dim_v: Option<usize>,
    /// Element type
    #[arg(long, value_enum, default_value_t = DTypeName::F32)]
    dtype: DTypeName,
    /// Axis order of q, k, v and o
    #[arg(long, value_enum, default_value_t = LayoutName::Bshd)]
    layout: LayoutName,
    #[command(flatten)]
    forward: ForwardArgs,
    #[command(flatten)]
    modifiers: ModifierArgs,
    /// Add linear biases with the slopes of the paper, 2^(-8/H) and its powers
    #[arg(long)]
    alibi: bool,
    /// What q, k and v hold: N(0, 1), or what makes kernels leave their fast path
    #[arg(long, value_enum, default_value_t = InputName(InputKind::Random))]
    input: InputName,
    /// What to time
    #[arg(long, value_enum, default_value_t = Pass::Fwd)]
    pass: Pass,
    /// Time a backward pass whose results repeat bit for bit
    #[arg(long)]
    deterministic: bool,
    /// Where to run
    #[arg(long, value_enum, default_value_t = BackendName::Auto)]
    backend: BackendName,
    /// Print one line of JSON
    #[arg(long, conflicts_with = "sweep")]
    json: bool,
    #[command(flatten)]
    sweep: SweepArgs,
    #[command(flatten)]
    cache: CacheArgs,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    args.sweep.refuse_without_sweep()?;
    args.cache.refuse_without_cache()?;
    args.refuse_no_queries()?;
    if let Some(cache) = bench_cache(args)? {
        return match args.cache.graph_calls() {
            None => backends::run(args.backend, cache),
            Some(calls) => backends::on_cuda(args.backend, "--graph", |cuda| {
                cache.run_with_graph(cuda, calls)
            }),
        };
    }
    if let Some(lengths) = args.lengths()? {
        return backends::run(args.backend, bench(args, &lengths)?);
    }
    let square = |&seq: &usize| bench(args, &args.dense(seq, seq));
    let benches = args.sweep.seqs().iter().map(square);
    let benches = benches.collect::<Result<Vec<_>, _>>()?;
    backends::run(args.backend, args.sweep.work(benches)?)
}

impl Args {
    fn dense(&self, seq_q: usize, seq_kv: usize) -> Lengths {
        Lengths::Dense {
            batch: self.batch.unwrap_or_else(|| self.sweep.batch(seq_q)),
            seq_q,
            seq_kv,
        }
    }

    /// The options, but for lengths.
    fn options(&self) -> Result<ForwardOptions, Failure> {
        if self.deterministic && self.pass == Pass::Fwd {
            let wrong = "a forward pass always repeats bit for bit";
            let allowed = "--pass bwd beside it";
            return Err(Failure::refused("--deterministic", wrong, allowed));
        }
        let slopes = self.alibi.then(|| AlibiSlopes::geometric(self.heads));
        let options = self.modifiers.apply(self.forward.options()?)?;
        Ok(options
            .o_layout(self.layout.into())
            .alibi(slopes.transpose()?))
    }

    /// Refuses a problem without output. Sizes that no problem may have are refused when the problem is made.
    fn refuse_no_queries(&self) -> Result<(), Failure> {
        let varlen = self.varlen.as_deref();
        for (argument, is_empty, allowed) in [
            ("--batch", self.batch == Some(0), "it must be 1 or more"),
            ("--seq-q", self.seq_q == Some(0), "it must be 1 or more"),
            (
                "--varlen",
                varlen.is_some_and(|all| all.iter().all(|&(seq_q, _)| seq_q == 0)),
                "one of the sequences must have 1 query or more",
            ),
        ] {
            if is_empty {
                let wrong = "there is nothing to compute";
                return Err(Failure::refused(argument, wrong, allowed));
            }
        }
        Ok(())
    }

    /// The sequences of the one problem to time; `None` for a sweep.
    fn lengths(&self) -> Result<Option<Lengths>, Failure> {
        if let Some(lengths) = &self.varlen {
            return Ok(Some(Lengths::Varlen(lengths.clone())));
        }
        let (Some(seq_q), Some(seq_kv)) = (self.seq_q, self.seq_kv) else {
            return Ok(None);
        };
        let dense = self.dense(seq_q, seq_kv);
        let Some(seed) = self.varlen_seed else {
            return Ok(Some(dense));
        };
        // Checked before lengths are drawn, which may be more than memory holds.
        let rows = dense.batch().checked_mul(seq_q.max(seq_kv));
        if rows.is_none_or(|rows| rows >= SEQ_LIMIT) {
            let batch = dense.batch();
            let wrong =
                format!("{batch} sequences of {seq_q} queries and {seq_kv} keys are packed");
            let allowed = format!("they must have at most {} rows together", SEQ_LIMIT - 1);
            return Err(Failure::refused("--varlen-seed", wrong, allowed));
        }
        Ok(Some(dense.made_uneven(seed)))
    }
}

/// The one problem `args` describe, to run in the simulator.
pub fn simulated(args: &Args) -> Result<Bench, Failure> {
    if !matches!(args.backend, BackendName::Auto | BackendName::Sim) {
        let wrong = "only the simulator counts";
        return Err(Failure::refused("--backend", wrong, "sim, or leave it out"));
    }
    let one_problem = |argument| {
        let wrong = "a report is of one problem";
        let allowed = "--seq-q and --seq-kv, or --varlen, and not this";
        Failure::refused(argument, wrong, allowed)
    };
    if let Some(argument) = args.sweep.given().or_else(|| args.cache.given()) {
        return Err(one_problem(argument));
    }
    args.refuse_no_queries()?;
    let lengths = args.lengths()?.expect("clap asks for them");
    bench(args, &lengths)
}

/// The attention to a cache that `args` describe, if they do.
fn bench_cache(args: &Args) -> Result<Option<BenchCache>, Failure> {
    let Some(kv_lens) = args.cache.kv_lens(args.batch.unwrap_or(0)) else {
        return Ok(None);
    };
    for (argument, is_wrong, wrong, allowed) in [
        (
            "--pass",
            args.pass != Pass::Fwd,
            "a cache has no backward pass",
            "fwd",
        ),
        (
            "--input",
            args.input.0 != InputKind::Random,
            "a cache is timed with N(0, 1) alone",
            InputKind::Random.name(),
        ),
    ] {
        if is_wrong {
            return Err(Failure::refused(argument, wrong, allowed));
        }
    }
    Ok(Some(BenchCache {
        shape: CacheShape {
            dtype: args.dtype.into(),
            kv_dtype: args.cache.kv_dtype(args.dtype.into()),
            scales: args.cache.scales(),
            kv_lens,
            seq_q: args.seq_q.unwrap_or(1),
            heads: args.heads,
            heads_kv: args.heads_kv.unwrap_or(args.heads),
            head_dim: args.head_dim,
            head_dim_v: args.head_dim_v.unwrap_or(args.head_dim),
            page_size: args.cache.page_size(),
            layout: args.layout.into(),
        },
        options: args.options()?,
        json: args.json,
    }))
}

/// The problem `args` describe, with these sequences.
fn bench(args: &Args, lengths: &Lengths) -> Result<Bench, Failure> {
    let layout = Layout::from(args.layout);
    let options = args.options()?.cu_seqlens(lengths.cu_seqlens()?);
    let (batch, seq_q, seq_kv) = lengths.axes();
    let shape = |heads, seq, dim| Shape {
        batch,
        heads,
        seq,
        dim,
    };
    let InputName(input) = args.input;
    let dtype = args.dtype.into();
    if !input.suits(dtype) {
        return Err(Failure::refused(
            "--input",
            format!(
                "its scores are too large to check results of {}",
                dtype.name()
            ),
            "random, planted or non-finite; or --dtype f16 or bf16",
        ));
    }
    let heads_kv = args.heads_kv.unwrap_or(args.heads);
    let head_dim_v = args.head_dim_v.unwrap_or(args.head_dim);
    Ok(Bench {
        shapes: [
            shape(args.heads, seq_q, args.head_dim),
            shape(heads_kv, seq_kv, args.head_dim),
            shape(heads_kv, seq_kv, head_dim_v),
        ],
        dtype,
        layout,
        options,
        input,
        pass: args.pass,
        deterministic: args.deterministic,
        json: args.json,
    })
}
