//! Grows the corpus of cases ([`ferroflash_tests::corpus`]) as a fuzzer does: draws cases for the kernels of which least is
//! executed, runs them in the simulator, and keeps those that execute what no other did.
//!
//! ```text
//! cargo run -p ferroflash-tests --example grow_corpus -- --seconds 600 [--kernel PART …] [--seed S] [--tries FILE] [--shrink MS]
//!     [--beside target/coverage [--without PART …]]
//! ```
//!
//! It runs the cases that are kept already first, and in the end leaves out those that others have made superfluous. With `--shrink`
//! it then makes dear cases smaller, as long as they execute what no other does. With `--beside` what other tests execute counts too, as
//! `cargo xtask coverage` has recorded it, so that the corpus keeps what nothing else executes.

mod beside;
mod draw;
mod own;
mod seen;
mod shrink;
mod smaller;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Parser;
use ferroflash::Backend;
use ferroflash::backend::sim::{KernelStatistics, Sim};
use ferroflash_testing::cases::CorpusCase;
use ferroflash_tests::corpus;
use ferroflash_tests::schedules::{SCHEDULES, counting};
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use beside::Beside;
use draw::Draws;
use seen::{Kept, Seen};

#[derive(Parser)]
struct Args {
    /// How long cases are drawn
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Only for kernels whose names contain this, and every other that is given
    #[arg(long)]
    kernel: Vec<String>,
    /// Seed of the draws
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// A file of cases that are tried before any is drawn
    #[arg(long)]
    tries: Option<PathBuf>,
    /// The file of the corpus, if it is not the repository's
    #[arg(long)]
    corpus: Option<PathBuf>,
    /// Instructions that a case must be the first to execute, or guards it must be the first to see held or failed
    #[arg(long, default_value_t = 20)]
    least: usize,
    /// Milliseconds, without checks, from which a case is made smaller
    #[arg(long)]
    shrink: Option<u64>,
    /// The folder of what tests executed, so that cases are left out which others than the corpus's make superfluous
    #[arg(long)]
    beside: Option<PathBuf>,
    /// Of these tests those whose names contain this do not count, nor every other that is given: those of the corpus, and those of inputs
    /// that are not finite
    #[arg(long, requires = "beside")]
    without: Vec<String>,
}

/// A simulated GPU for each schedule, made anew after a case that it stopped at. It counts and checks nothing, which is faster:
/// what is kept is checked.
struct Runner {
    sims: [Sim; SCHEDULES.len()],
}

impl Runner {
    fn new() -> Self {
        let sims = SCHEDULES.map(counting);
        Self { sims }
    }

    /// One that plans as all do.
    fn planner(&mut self) -> &mut Sim {
        &mut self.sims[0]
    }

    /// What `case` executes, and how long it takes.
    fn run(
        &mut self,
        case: &CorpusCase,
    ) -> Result<(Vec<KernelStatistics>, Duration), ferroflash::Error> {
        let schedule = corpus::schedule(case).expect("it was parsed or drawn");
        let sim = &mut self.sims[schedule];
        let begin = Instant::now();
        let outcome = corpus::run(sim, case);
        let launches = sim.memory().take_statistics();
        if outcome.is_err() {
            *sim = counting(SCHEDULES[schedule]);
        }
        outcome.map(|()| (launches, begin.elapsed()))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let mut corpus = Corpus::new(args.least);
    if let Some(folder) = &args.beside {
        corpus.beside = Beside::read(folder, &args.without)?;
    }
    let file = args.corpus.clone().unwrap_or_else(corpus::path);
    let text = fs::read_to_string(&file).unwrap_or_default();
    for case in corpus::parse(&text)? {
        match corpus.runner.run(&case) {
            Ok((launches, time)) => corpus.keep(case, &launches, time),
            Err(error) => println!("left out: {case}: {error}"),
        }
    }
    println!("{}", corpus.summary());
    if let Some(tries) = &args.tries {
        for case in corpus::parse(&fs::read_to_string(tries)?)? {
            corpus.try_case(case);
        }
        println!("{}", corpus.summary());
    }

    let is_wanted = |name: &str| args.kernel.iter().all(|part| name.contains(part));
    let mut draws = Draws::new(is_wanted, Xoshiro256PlusPlus::seed_from_u64(args.seed));
    if draws.is_empty() {
        return Err(format!(
            "cases are drawn for no kernel whose name contains {:?}",
            args.kernel
        )
        .into());
    }
    let end = Instant::now() + Duration::from_secs(args.seconds);
    let mut said = Instant::now();
    while Instant::now() < end {
        let Some((target, case)) = draws.next(corpus.runner.planner(), &corpus.seen) else {
            continue;
        };
        if let Some(is_worth_it) = corpus.try_case(case) {
            draws.learn(target, is_worth_it);
        }
        if said.elapsed() > Duration::from_secs(30) {
            said = Instant::now();
            println!("{}", corpus.summary());
            save(&file, &corpus.kept)?;
        }
    }
    corpus.kept = own::without_superfluous(corpus.kept, &corpus.beside);
    if let Some(dear) = args.shrink {
        corpus.shrink(Duration::from_millis(dear));
        corpus.kept = own::without_superfluous(corpus.kept, &corpus.beside);
    }
    save(&file, &corpus.kept)?;
    corpus.seen = Seen::of(&corpus.kept);
    println!("{}", corpus.summary());
    corpus.seen.print_least(is_wanted);
    Ok(())
}

/// The cases that are kept so far, and what they execute.
struct Corpus {
    runner: Runner,
    /// It checks what is to be kept.
    checked: Sim,
    seen: Seen,
    kept: Vec<Kept>,
    /// What other tests execute.
    beside: Beside,
    /// What a case has to gain.
    least: usize,
}

impl Corpus {
    fn new(least: usize) -> Self {
        Self {
            runner: Runner::new(),
            checked: Sim::new(),
            seen: Seen::default(),
            kept: vec![],
            beside: Beside::default(),
            least,
        }
    }

    fn summary(&self) -> String {
        format!("{} cases, {}", self.kept.len(), self.seen.summary())
    }

    fn keep(&mut self, case: CorpusCase, launches: &[KernelStatistics], time: Duration) {
        let one = Kept::new(case, launches, time);
        self.seen.add(&one);
        self.kept.push(one);
    }

    /// Keeps `case` if it gains enough, and returns whether it does; `None` if it cannot run.
    fn try_case(&mut self, case: CorpusCase) -> Option<bool> {
        let (launches, time) = match self.runner.run(&case) {
            Ok(ran) => ran,
            Err(error) => {
                println!("FAILED: {case}: {error}");
                return None;
            }
        };
        let gain = self.seen.gain(&launches, case.is_finite());
        // One that takes seconds has to be worth several.
        let is_worth_it = gain as f64 >= self.least as f64 * time.as_secs_f64().max(1.0);
        if !is_worth_it {
            return Some(false);
        }
        // Kept cases are tests: those of kinds that have no bound under their options are none.
        if let Err(wrong) = corpus::check(&mut self.checked, &case) {
            println!("WRONG: {case}: {wrong}");
            self.checked = Sim::new();
        } else {
            self.keep(case, &launches, time);
        }
        Some(true)
    }
}

fn save(file: &Path, kept: &[Kept]) -> Result<(), Box<dyn std::error::Error>> {
    let cases: Vec<_> = kept.iter().map(|kept| kept.case.clone()).collect();
    fs::write(file, corpus::text(&cases)?)?;
    Ok(())
}
