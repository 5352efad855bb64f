//! `ferroflash verify`: a backend against the f64 oracle.

use ferroflash::cases::{CaseSpec, Limits};
use ferroflash::oracle::{Rows, Verdict};
use ferroflash::{Backend, DType};
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
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = arguments::count, allow_negative_numbers = true)]
    cases: usize,
    /// Seed of the problems
    #[arg(long, value_name = "S", default_value_t = 0, value_parser = arguments::seed, allow_negative_numbers = true)]
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
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(self.seed);
        let dtypes = dtypes(backend)?;
        let bar = progress::bar("verify", self.cases);
        let mut summary = Summary::default();
        println!("| case | problem | kernel | o: error / allowed | lse | quality | |");
        println!("|---|---|---|---|---|---|---|");
        for number in 0..self.cases {
            let &dtype = dtypes.choose(&mut rng).expect("some dtype runs");
            let spec = CaseSpec::random(&mut rng, dtype, &limits);
            let case = spec.build()?;
            let kernel = backend.kernel_name(&case.problem()?)?;
            let (o, lse) = case.run(backend)?;
            let verdict = case.check(&o, &lse, Rows::All)?;
            let quality = verdict
                .quality()
                .map_or("-".to_owned(), |quality| format!("{quality:.2}"));
            bar.suspend(|| {
                println!(
                    "| {number} | {spec} | {kernel} | {:.3} | {:.3} | {quality} | {} |",
                    verdict.o.ratio,
                    verdict.lse.ratio,
                    if verdict.passed() { "ok" } else { "WRONG" }
                );
                if !verdict.passed() {
                    println!("  {verdict}\n  {spec:?}");
                }
            });
            summary.add(number, &verdict);
            bar.inc(1);
        }
        bar.finish_and_clear();
        summary.report(self.cases, self.seed)
    }
}

/// The dtypes that `backend` has a variant for.
fn dtypes<B: Backend>(backend: &B) -> Result<Vec<DType>, Failure> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(0);
    let mut dtypes = Vec::new();
    for dtype in DType::ALL {
        let probe = CaseSpec::random(&mut rng, dtype, &Limits::SIMULATED).build()?;
        if backend.kernel_name(&probe.problem()?).is_ok() {
            dtypes.push(dtype);
        }
    }
    if dtypes.is_empty() {
        return Err(Failure::refused(
            "--backend",
            "no embedded kernel can run on this device",
            "a backend that `ferroflash info` shows kernels for",
        ));
    }
    Ok(dtypes)
}

/// The worst of every case.
#[derive(Default)]
struct Summary {
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
        self.wrong += usize::from(!verdict.passed());
    }

    fn report(&self, cases: usize, seed: u64) -> Result<(), Failure> {
        println!();
        println!(
            "worst error over allowed error: o {:.3} (case {}), lse {:.3} (case {})",
            self.worst_o.0, self.worst_o.1, self.worst_lse.0, self.worst_lse.1
        );
        println!(
            "worst error over that of plain attention in the same dtype: {:.2} (case {})",
            self.worst_quality.0, self.worst_quality.1
        );
        println!("{} of {cases} cases within the bound", cases - self.wrong);
        match self.wrong {
            0 => Ok(()),
            wrong => Err(Failure::Failed(format!(
                "verify: {wrong} of {cases} cases with seed {seed} lie outside the bound; none may"
            ))),
        }
    }
}
