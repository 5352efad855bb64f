//! `ferroflash verify`: a backend against the f64 oracle.

use std::io::{self, Write};

use ferroflash::Backend;
use ferroflash::cases::{CaseSpec, Limits, dtypes_of};
use ferroflash::oracle::{Rows, Verdict};
use ferroflash::plan::eligible;
use rand::SeedableRng;
use rand::seq::IndexedRandom;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::arguments::{self, BackendName};
use crate::backends::{self, Work};
use crate::failure::Failure;
use crate::progress;

#[derive(clap::Args)]
pub struct Args {
    /// Problems to try
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = arguments::positive, allow_hyphen_values = true)]
    cases: usize,
    /// Seed of the problems
    #[arg(long, value_name = "S", default_value_t = 0, value_parser = arguments::seed, allow_hyphen_values = true)]
    seed: u64,
    /// Where to run
    #[arg(long, value_enum, default_value_t = BackendName::Auto)]
    backend: BackendName,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let verify = Verify {
        cases: args.cases,
        seed: args.seed,
    };
    backends::run(args.backend, verify)
}

struct Verify {
    cases: usize,
    seed: u64,
}

impl Work for Verify {
    fn run<B: Backend>(self, backend: &mut B) -> Result<(), Failure> {
        let limits = match backend.name() {
            "sim" => Limits::SIMULATED,
            _ => Limits::FAST,
        };
        let mut out = io::stdout();
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(self.seed);
        let dtypes = dtypes_of(backend)?;
        let bar = progress::bar("verify", self.cases);
        let mut summary = Summary::default();
        writeln!(
            out,
            "| case | problem | kernel | o: error / allowed | lse | quality | |"
        )?;
        writeln!(out, "|---|---|---|---|---|---|---|")?;
        for number in 0..self.cases {
            let &dtype = dtypes.choose(&mut rng).expect("some dtype runs");
            let spec = CaseSpec::random(&mut rng, dtype, &limits);
            let mut case = spec.build()?;
            // Every variant that can run the case, not only the preferred one.
            for variant in eligible(&case.problem()?, &backend.capabilities()) {
                case.options.force = Some(variant);
                let plan = backend.plan(&case.problem()?)?;
                let kernel = backends::in_words(&plan.kernel_name(), plan.heads_per_tile());
                let (o, lse) = case.run(backend)?;
                let verdict = case.check(&o, &lse, Rows::All)?;
                bar.suspend(|| print_row(&mut out, number, &spec, &kernel, &verdict))?;
                summary.add(number, &verdict);
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        summary.report(self.seed)
    }
}

fn print_row(
    out: &mut impl Write,
    number: usize,
    spec: &CaseSpec,
    kernel: &str,
    verdict: &Verdict,
) -> io::Result<()> {
    let quality = verdict
        .quality()
        .map_or("-".to_owned(), |quality| format!("{quality:.2}"));
    let outcome = if verdict.passed() { "ok" } else { "WRONG" };
    writeln!(
        out,
        "| {number} | {spec} | {kernel} | {:.3} | {:.3} | {quality} | {outcome} |",
        verdict.o.ratio, verdict.lse.ratio
    )?;
    if !verdict.passed() {
        writeln!(out, "  {verdict}\n  {spec:?}")?;
    }
    Ok(())
}

/// The worst of every run.
#[derive(Default)]
struct Summary {
    runs: usize,
    wrong: usize,
    worst_o: (f64, usize),
    worst_lse: (f64, usize),
    worst_quality: (f64, usize),
}

impl Summary {
    fn add(&mut self, case: usize, verdict: &Verdict) {
        let keep = |worst: &mut (f64, usize), value: f64| {
            if value > worst.0 {
                *worst = (value, case);
            }
        };
        keep(&mut self.worst_o, verdict.o.ratio);
        keep(&mut self.worst_lse, verdict.lse.ratio);
        keep(&mut self.worst_quality, verdict.quality().unwrap_or(0.0));
        self.runs += 1;
        self.wrong += usize::from(!verdict.passed());
    }

    fn report(&self, seed: u64) -> Result<(), Failure> {
        let mut out = io::stdout();
        writeln!(out)?;
        writeln!(
            out,
            "worst error over allowed error: o {:.3} (case {}), lse {:.3} (case {})",
            self.worst_o.0, self.worst_o.1, self.worst_lse.0, self.worst_lse.1
        )?;
        writeln!(
            out,
            "worst error over that of plain attention in the same dtype: {:.2} (case {})",
            self.worst_quality.0, self.worst_quality.1
        )?;
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
