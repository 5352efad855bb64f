//! `ferroflash bench`: checks the result of one problem, then times it.

use std::fmt;

use ferroflash::{
    AlibiSlopes, Backend, BackwardOptions, DType, ForwardOptions, Layout, Memory, Output, Plan,
    Problem, SEQ_LIMIT, Shape, Tensor, backward, backward_into, backward_planned_into, forward,
    forward_into, forward_planned_into,
};
use ferroflash_testing::cases::{
    BackwardCase, BackwardRun, CacheShape, Case, InputKind, Lengths, normal,
};
use ferroflash_testing::oracle::Rows;

use indicatif::ProgressBar;

use crate::arguments::{self, BackendName, DTypeName, ForwardArgs, InputName, LayoutName};
use crate::backends::{self, Work};
use crate::bench_cache::{BenchCache, CacheArgs};
use crate::bench_protocol::{self, Times};
use crate::bench_report::{Amount, Ran, Report};
use crate::bench_sweep;
use crate::failure::Failure;
use crate::modifiers::ModifierArgs;
use crate::progress;

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
    sweep: bench_sweep::SweepArgs,
    #[command(flatten)]
    cache: CacheArgs,
}

/// A pass through attention.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Pass {
    /// o and lse from q, k and v
    Fwd,
    /// dq, dk and dv from those, and the loss's gradient by o
    Bwd,
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

/// One problem to time.
pub struct Bench {
    /// Shapes of q, k and v.
    pub shapes: [Shape; 3],
    pub dtype: DType,
    pub layout: Layout,
    pub options: ForwardOptions,
    pub input: InputKind,
    pub pass: Pass,
    pub deterministic: bool,
    pub json: bool,
}

/// Seed of the random values of [`InputKind::apply`].
const INPUT_SEED: u64 = 0;

/// Rows that are checked before anything is timed.
const CHECKED_ROWS: Rows = Rows::Sampled { count: 64, seed: 0 };

impl Work for Bench {
    fn run<B: Backend>(self, backend: &mut B) -> Result<(), Failure> {
        let report = self.measure(backend)?;
        match self.json {
            true => report.print_json()?,
            false => report.print()?,
        }
        Ok(())
    }
}

impl Bench {
    /// The problem to time, without its inputs.
    pub fn problem(&self) -> Result<Problem, Failure> {
        let specs = self
            .shapes
            .map(|shape| ferroflash::TensorSpec::contiguous(self.dtype, shape, self.layout));
        let [q, k, v] = specs;
        let (q, k, v) = (q?, k?, v?);
        let forward = Problem::with_dense_output(q, k, v, &self.options)?;
        if self.pass == Pass::Fwd {
            return Ok(forward);
        }
        let o = *forward.o();
        let options = self.backward_options();
        Ok(Problem::backward_with_dense_gradients(
            q, k, v, o, o, &options,
        )?)
    }

    fn backward_options(&self) -> BackwardOptions {
        BackwardOptions::of(&self.options).deterministic(self.deterministic)
    }

    /// The name of the inputs' kind; `None` for the default, N(0, 1).
    pub fn input_name(&self) -> Option<&'static str> {
        (self.input != InputKind::Random).then(|| self.input.name())
    }

    /// The problem with its inputs.
    pub fn case(&self) -> Result<Case, Failure> {
        let [q, k, v] = self.shapes;
        let input = |shape, seed| normal(self.dtype, shape, self.layout, seed);
        let mut case = Case {
            q: input(q, 1)?,
            k: input(k, 2)?,
            v: input(v, 3)?,
            options: self.options.clone(),
            o: None,
        };
        self.input.apply(&mut case, INPUT_SEED);
        Ok(case)
    }

    /// Checks the result, then times it.
    pub fn measure<B: Backend>(&self, backend: &mut B) -> Result<Report, Failure> {
        let problem = self.problem()?;
        let plan = backend.plan(&problem)?;
        let kernel = plan.kernel_name();
        // Fails early if the problem does not fit the device: making the inputs takes long.
        backend.memory().alloc(problem.bytes() as usize)?;

        let spinner = progress::spinner("inputs");
        let case = self.case()?;
        let memory = backend.memory();
        let q = case.q.upload(memory)?;
        let k = case.k.upload(memory)?;
        let v = case.v.upload(memory)?;

        spinner.set_message("check");
        // A forced family may have kernels for one pass only.
        let options = match self.pass {
            Pass::Fwd => self.options.clone(),
            Pass::Bwd => self.options.clone().force(None),
        };
        let output = forward(backend, &q, &k, &v, &options)?;
        let inputs = Inputs { case, q, k, v };
        let (times, host_us_planned) = match self.pass {
            Pass::Fwd => self.time_forward(backend, &plan, &inputs, output, &spinner)?,
            Pass::Bwd => self.time_backward(backend, &plan, inputs, &output, &spinner)?,
        };
        spinner.finish_and_clear();
        let ran = Ran {
            kernel,
            heads_per_tile: plan.heads_per_tile(),
            input: self.input_name().map(str::to_owned),
            device: backend.device_name(),
            is_queued: backend.memory().is_queued(),
            host_us_planned,
            workspace_bytes: plan.workspace_bytes(),
        };
        Ok(Report::new(ran, &Amount::of(&problem), &times))
    }

    /// Checks `output`, and times the pass that made it, with a new plan each call and, on the host, with a kept one.
    fn time_forward<B: Backend>(
        &self,
        backend: &mut B,
        plan: &Plan,
        inputs: &Inputs<B>,
        mut output: Output<B::Memory>,
        spinner: &ProgressBar,
    ) -> Result<(Times, Option<f64>), Failure> {
        let Inputs { case, q, k, v } = inputs;
        let memory = backend.memory();
        let lse = output.lse.as_ref().expect("it is asked for by default");
        let (o, lse) = (output.o.download(memory)?, lse.download(memory)?);
        let verdict = case.check(&o, &lse, CHECKED_ROWS)?;
        refuse_unless(verdict.passed(), &plan.kernel_name(), &verdict)?;
        spinner.set_message("time");
        let mut run = |backend: &mut B| {
            forward_into(backend, q, k, v, &mut output, &self.options).map_err(Failure::from)
        };
        let times = bench_protocol::times(backend, &mut run)?;
        let mut run = |backend: &mut B| {
            forward_planned_into(backend, plan, q, k, v, &mut output).map_err(Failure::from)
        };
        let host_us_planned = bench_protocol::host_us(backend, &times, &mut run)?;
        Ok((times, host_us_planned))
    }

    /// Checks the gradients of `output`, and times the pass that makes them, with a new plan each call and, on the host, with a
    /// kept one.
    fn time_backward<B: Backend>(
        &self,
        backend: &mut B,
        plan: &Plan,
        Inputs { case, q, k, v }: Inputs<B>,
        output: &Output<B::Memory>,
        spinner: &ProgressBar,
    ) -> Result<(Times, Option<f64>), Failure> {
        let options = self.backward_options();
        let o = output.o.spec().shape;
        let case = BackwardCase {
            forward: case,
            d_o: normal(self.dtype, o, self.layout, D_O_SEED)?,
            d_lse: None,
            deterministic: self.deterministic,
            workspace_limit_bytes: None,
            alibi_gradient: false,
            bias_gradient: false,
            arrangements: None,
        };
        let d_o = case.d_o.upload(backend.memory())?;
        let mut gradients = backward(backend, &q, &k, &v, output, &d_o, &options)?;
        let memory = backend.memory();
        let lse = output.lse.as_ref().expect("it is asked for by default");
        let run = BackwardRun {
            o: output.o.download(memory)?,
            lse: lse.download(memory)?,
            dq: gradients.dq.download(memory)?,
            dk: gradients.dk.download(memory)?,
            dv: gradients.dv.download(memory)?,
            d_alibi_slopes: None,
            d_bias: None,
        };
        let verdict = case.check(&run, CHECKED_ROWS)?;
        refuse_unless(verdict.passed(), &plan.kernel_name(), &verdict)?;
        spinner.set_message("time");
        let mut run = |backend: &mut B| {
            backward_into(backend, &q, &k, &v, output, &d_o, &mut gradients, &options)
                .map_err(Failure::from)
        };
        let times = bench_protocol::times(backend, &mut run)?;
        let mut run = |backend: &mut B| {
            backward_planned_into(backend, plan, &q, &k, &v, output, &d_o, &mut gradients)
                .map_err(Failure::from)
        };
        let host_us_planned = bench_protocol::host_us(backend, &times, &mut run)?;
        Ok((times, host_us_planned))
    }
}

/// A case and its inputs on the backend.
struct Inputs<B: Backend> {
    case: Case,
    q: Tensor<B::Memory>,
    k: Tensor<B::Memory>,
    v: Tensor<B::Memory>,
}

/// Seed of the loss's gradient by o.
const D_O_SEED: u64 = 4;

pub fn refuse_unless(
    passed: bool,
    kernel: &str,
    verdict: &impl fmt::Display,
) -> Result<(), Failure> {
    if passed {
        return Ok(());
    }
    Err(Failure::Failed(format!(
        "{kernel}: its result is wrong ({verdict}); a kernel is timed only if it is right"
    )))
}
