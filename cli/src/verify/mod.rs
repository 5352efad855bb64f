//! `ferroflash verify`: a backend against the f64 oracle.

mod cache;
mod checked;

use std::fmt;
use std::io::{self, Write};

use ferroflash::plan::eligible;
use ferroflash::{Backend, BackwardOptions, DType, Layout, Problem, Shape, TensorSpec};
use ferroflash_testing::cases::{
    CaseSpec, Limits, cache_dtypes_of, drawn, drawn_caches, dtypes_of,
};
use ferroflash_testing::oracle::Rows;

use crate::arguments::{self, BackendName, Pass};
use crate::backends::{self, Work};
use crate::failure::Failure;
use crate::progress;

use checked::Checked;

#[derive(clap::Args)]
pub struct Args {
    /// Problems to try
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = arguments::positive, allow_hyphen_values = true)]
    cases: usize,
    /// Seed of the problems
    #[arg(long, value_name = "S", default_value_t = 0, value_parser = arguments::seed, allow_hyphen_values = true)]
    seed: u64,
    /// Which pass to try
    #[arg(long, value_enum, default_value_t = Pass::Fwd)]
    pass: Pass,
    /// Try attention to caches, in pages and not
    #[arg(long)]
    cache: bool,
    /// Where to run
    #[arg(long, value_enum, default_value_t = BackendName::Auto)]
    backend: BackendName,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    if args.cache && args.pass != Pass::Fwd {
        let wrong = "a cache has no backward pass";
        return Err(Failure::refused("--pass", wrong, "fwd"));
    }
    let verify = Verify {
        cases: args.cases,
        seed: args.seed,
        pass: args.pass,
        cache: args.cache,
    };
    backends::run(args.backend, verify)
}

struct Verify {
    cases: usize,
    seed: u64,
    pass: Pass,
    cache: bool,
}

impl Work for Verify {
    fn run<B: Backend>(self, backend: &mut B) -> Result<(), Failure> {
        let (limits, most_keys) = match backend.name() {
            "sim" => (Limits::SIMULATED, cache::SIMULATED_KEYS),
            _ => (Limits::FAST, cache::FAST_KEYS),
        };
        if self.cache {
            let dtypes = cache_dtypes_of(backend)?;
            let specs = drawn_caches(&dtypes, most_keys, self.seed);
            return self.try_all(backend, specs, cache::check);
        }
        let dtypes = match self.pass {
            Pass::Fwd => dtypes_of(backend)?,
            Pass::Bwd => backward_dtypes_of(backend)?,
        };
        let specs = drawn(&dtypes, limits, self.seed);
        match self.pass {
            Pass::Fwd => self.try_all(backend, specs, check_forward),
            Pass::Bwd => self.try_all(backend, specs, check_backward),
        }
    }
}

impl Verify {
    /// Runs `check` on each of the first cases of `specs`, and prints a table of what it finds.
    fn try_all<B: Backend, S: fmt::Display + fmt::Debug>(
        &self,
        backend: &mut B,
        specs: impl Iterator<Item = S>,
        check: impl Fn(&mut B, &S) -> Result<Vec<Checked>, Failure>,
    ) -> Result<(), Failure> {
        let mut out = io::stdout();
        let bar = progress::bar("verify", self.cases);
        let mut summary = Summary::default();
        let names = self.pass.results();
        let [first, others @ ..] = names else {
            unreachable!("a pass has results")
        };
        let others = others.join(" | ");
        writeln!(
            out,
            "| case | problem | kernel | {first}: error / allowed | {others} | quality | |"
        )?;
        writeln!(out, "|---|---|---|{}---|---|", "---|".repeat(names.len()))?;
        for (number, spec) in specs.take(self.cases).enumerate() {
            for checked in check(backend, &spec)? {
                bar.suspend(|| checked.print(&mut out, number, &spec))?;
                summary.add(number, names, &checked);
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        summary.report(self.seed)
    }
}

impl Pass {
    /// The tensors that are checked.
    fn results(self) -> &'static [&'static str] {
        match self {
            Self::Fwd => &["o", "lse"],
            Self::Bwd => &["dq", "dk", "dv", "d_alibi_slopes"],
        }
    }
}

/// Runs `spec` with every variant that can run it, not only the preferred one.
fn check_forward<B: Backend>(backend: &mut B, spec: &CaseSpec) -> Result<Vec<Checked>, Failure> {
    let mut case = spec.build()?;
    let mut checked = Vec::new();
    for variant in eligible(&case.problem()?, &backend.capabilities()) {
        case.options.force = Some(variant);
        let plan = backend.plan(&case.problem()?)?;
        let (o, lse) = case.run(backend)?;
        let verdict = case.check(&o, &lse, Rows::All)?;
        checked.push(Checked {
            kernel: backends::in_words(&plan.kernel_name(), plan.heads_per_tile()),
            ratios: vec![Some(verdict.o.ratio), Some(verdict.lse.ratio)],
            quality: case.quality(&verdict)?,
            passed: verdict.passed(),
            detail: verdict.to_string(),
        });
    }
    Ok(checked)
}

/// As [`check_forward`], of the backward pass.
fn check_backward<B: Backend>(backend: &mut B, spec: &CaseSpec) -> Result<Vec<Checked>, Failure> {
    let mut case = spec.build_backward()?;
    case.arrangements = spec.arrangements_of_gradients();
    let mut checked = Vec::new();
    for variant in eligible(&case.problem()?, &backend.capabilities()) {
        case.forward.options.force = Some(variant);
        let kernel = backend.plan(&case.problem()?)?.kernel_name();
        let run = case.run(backend)?;
        let verdict = case.check(&run, Rows::All)?;
        let slopes = run.d_alibi_slopes.is_some();
        checked.push(Checked {
            kernel,
            ratios: vec![
                Some(verdict.dq.ratio),
                Some(verdict.dk.ratio),
                Some(verdict.dv.ratio),
                slopes.then_some(verdict.d_alibi_slopes.ratio),
            ],
            quality: None,
            passed: verdict.passed(),
            detail: verdict.to_string(),
        });
    }
    Ok(checked)
}

/// The element types that the backend has a backward pass for.
fn backward_dtypes_of<B: Backend>(backend: &B) -> Result<Vec<DType>, Failure> {
    let shape = Shape {
        batch: 1,
        heads: 1,
        seq: 1,
        dim: 8,
    };
    let mut dtypes = Vec::new();
    for dtype in DType::ALL {
        let spec = TensorSpec::contiguous(dtype, shape, Layout::Bshd)?;
        let options = BackwardOptions::default();
        let problem =
            Problem::backward_with_dense_gradients(spec, spec, spec, spec, spec, &options)?;
        if !eligible(&problem, &backend.capabilities()).is_empty() {
            dtypes.push(dtype);
        }
    }
    Ok(dtypes)
}

/// Largest value of a figure, and the case that gave it.
#[derive(Default)]
struct Largest {
    value: f64,
    case: usize,
}

impl Largest {
    fn add(&mut self, case: usize, value: f64) {
        if value > self.value {
            *self = Self { value, case };
        }
    }
}

/// Summary of all runs: their number, failures and worst figures.
#[derive(Default)]
struct Summary {
    runs: usize,
    wrong: usize,
    /// Largest ratio of each tensor, by name.
    ratios: Vec<(&'static str, Largest)>,
    quality: Option<Largest>,
}

impl Summary {
    fn add(&mut self, case: usize, names: &[&'static str], checked: &Checked) {
        if self.ratios.is_empty() {
            self.ratios = names
                .iter()
                .map(|&name| (name, Largest::default()))
                .collect();
        }
        for ((_, largest), &ratio) in self.ratios.iter_mut().zip(&checked.ratios) {
            largest.add(case, ratio.unwrap_or(0.0));
        }
        if let Some(quality) = checked.quality {
            self.quality.get_or_insert_default().add(case, quality);
        }
        self.runs += 1;
        self.wrong += usize::from(!checked.passed);
    }

    fn report(&self, seed: u64) -> Result<(), Failure> {
        let mut out = io::stdout();
        writeln!(out)?;
        let each = self.ratios.iter();
        let each =
            each.map(|(name, Largest { value, case })| format!("{name} {value:.3} (case {case})"));
        let each = each.collect::<Vec<_>>().join(", ");
        writeln!(out, "worst error over allowed error: {each}")?;
        if let Some(Largest { value, case }) = &self.quality {
            writeln!(
                out,
                "worst error over that of plain attention in the same dtype: {value:.2} (case {case})"
            )?;
        }
        writeln!(
            out,
            "{} of {} runs within the bound",
            self.runs - self.wrong,
            self.runs
        )?;
        match self.wrong {
            0 => Ok(()),
            wrong => Err(Failure::Failed(format!(
                "verify: {wrong} of {} runs with seed {seed} lie outside the bound; none may",
                self.runs
            ))),
        }
    }
}
