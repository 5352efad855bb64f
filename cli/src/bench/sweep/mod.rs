//! `ferroflash bench --sweep FOLDER`: every kernel that can run, over sequence lengths.

mod peers;
mod points;

use std::path::PathBuf;

use ferroflash::{Backend, Layout, Mask, Variant, plan};
use ferroflash_insight::results::SideBySide;

use super::problem::Bench;
use crate::arguments;
use crate::backends::Work;
use crate::failure::Failure;
use crate::progress;
use crate::say::say;
use crate::words::counted;

use points::{Point, Points};

#[derive(clap::Args)]
pub struct SweepArgs {
    /// Time every kernel that can run at each of --seqs, and write sweep.csv, sweep.json and sweep.svg to this folder,
    /// where what was measured before is not measured again
    #[arg(long, value_name = "FOLDER")]
    sweep: Option<PathBuf>,
    #[arg(long, help = seqs_help(), value_name = "N,…", value_delimiter = ',', value_parser = arguments::count, allow_hyphen_values = true)]
    seqs: Option<Vec<usize>>,
    /// Instead of --batch: at each length as many sequences as make this many queries, 1 at least
    #[arg(long, value_name = "N", conflicts_with = "batch", value_parser = arguments::count, allow_hyphen_values = true)]
    tokens: Option<usize>,
    /// Add the peers of this file of `bench/side_by_side.py --json` that ran the same problems
    #[arg(long, value_name = "FILE")]
    peers: Option<PathBuf>,
}

/// Default sequence lengths of a sweep.
const SEQS: [usize; 6] = [512, 1024, 2048, 4096, 8192, 16384];

/// Help text of --seqs. Its default is not clap's, since a default of clap's cannot be told from a given value.
fn seqs_help() -> String {
    let seqs = SEQS.map(|seq| seq.to_string()).join(",");
    format!("Sequence lengths of a sweep [default: {seqs}]")
}

impl SweepArgs {
    pub fn seqs(&self) -> &[usize] {
        self.seqs.as_deref().unwrap_or(&SEQS)
    }

    /// The first given argument that only a sweep takes.
    pub fn given(&self) -> Option<&'static str> {
        let arguments = [
            ("--sweep", self.sweep.is_some()),
            ("--seqs", self.seqs.is_some()),
            ("--tokens", self.tokens.is_some()),
            ("--peers", self.peers.is_some()),
        ];
        let given = arguments.into_iter().find(|(_, is_given)| *is_given);
        given.map(|(argument, _)| argument)
    }

    /// Refuses a sweep's arguments without --sweep. clap's `requires` gives way to the conflict with --seq-q.
    pub fn refuse_without_sweep(&self) -> Result<(), Failure> {
        match (&self.sweep, self.given()) {
            (None, Some(argument)) => Err(Failure::refused(
                argument,
                "only a sweep has it",
                "with --sweep FOLDER, or leave it out",
            )),
            _ => Ok(()),
        }
    }

    /// Number of sequences of length `seq` under --tokens.
    pub fn batch(&self, seq: usize) -> usize {
        let tokens = self.tokens.unwrap_or(0);
        tokens.checked_div(seq).unwrap_or(0).max(1)
    }

    /// The work of timing `benches` into the folder.
    pub fn work(&self, benches: Vec<Bench>) -> Result<Sweep, Failure> {
        let folder = self
            .sweep
            .as_deref()
            .expect("clap asks for it where no length is given");
        if self.seqs().contains(&0) {
            return Err(Failure::refused(
                "--seqs",
                "0 rows",
                "each must be 1 or more",
            ));
        }
        if self.tokens == Some(0) {
            return Err(Failure::refused(
                "--tokens",
                "0 queries",
                "it must be 1 or more",
            ));
        }
        let peers = match &self.peers {
            Some(path) => Some(peers::load(path)?),
            None => None,
        };
        let points = Points::open(folder)?;
        Ok(Sweep {
            tokens: self.tokens,
            benches,
            peers,
            points,
        })
    }
}

pub struct Sweep {
    tokens: Option<usize>,
    benches: Vec<Bench>,
    peers: Option<(PathBuf, SideBySide)>,
    points: Points,
}

impl Work for Sweep {
    fn run<B: Backend>(mut self, backend: &mut B) -> Result<(), Failure> {
        if let Some((path, file)) = &self.peers {
            let points = peers::points(path, file, &self.benches, |bench| self.case(bench))?;
            for point in points {
                self.points.put(point);
            }
        }
        let here = backend.capabilities();
        let mut tasks: Vec<(Bench, Variant)> = Vec::new();
        for bench in &self.benches {
            let variants = plan::eligible(&bench.problem()?, &here);
            for (place, variant) in variants.into_iter().enumerate() {
                // Where decode kernels are not preferred they take long, and nobody runs them.
                let is_meant = match bench.options.force {
                    None => variant != Variant::Decode || place == 0,
                    Some(forced) => forced == variant,
                };
                if is_meant {
                    tasks.push((with(bench, variant), variant));
                }
            }
        }
        if tasks.is_empty() {
            // The error of making a plan says why there is nothing to time.
            for bench in &self.benches {
                backend.plan(&bench.problem()?)?;
            }
        }
        let device = backend.device_name();
        // Points measured earlier are skipped; the bar counts the rest.
        tasks.retain(|(bench, variant)| {
            let [q, _, _] = bench.shapes;
            let case = self.case(bench);
            !self.points.know(&case, q.batch, q.seq, *variant, &device)
        });
        let bar = progress::bar("sweep", tasks.len());
        for (bench, variant) in tasks {
            let report = bench.measure(backend)?;
            let [q, _, _] = bench.shapes;
            self.points.put(Point {
                case: self.case(&bench),
                variant: variant.name().to_owned(),
                batch: q.batch,
                seq: q.seq,
                kernel: report.kernel,
                ms_sustained: report.ms_sustained,
                ms_burst: report.ms_burst,
                clock_mhz: report.clock_mhz,
                watts: report.watts,
                tflops: report.tflops,
                gbs: report.gbs,
                workspace_bytes: Some(report.workspace_bytes),
                peak_bytes: Some(report.peak_bytes),
                device: report.device,
            });
            // Written after every point, so that a stopped sweep can be resumed.
            self.points.write()?;
            bar.inc(1);
        }
        bar.finish_and_clear();
        self.points.write()?;
        say!("{}", self.points);
        Ok(())
    }
}

fn with(bench: &Bench, variant: Variant) -> Bench {
    Bench {
        options: bench.options.clone().force(variant),
        ..*bench
    }
}

impl Sweep {
    /// Text that describes everything about a problem except its length.
    fn case(&self, bench: &Bench) -> String {
        let [q, k, v] = bench.shapes;
        let mut words = vec![
            bench.dtype.name().to_owned(),
            match (q.dim, v.dim) {
                (dim, dim_v) if dim == dim_v => format!("head_dim {dim}"),
                (dim, dim_v) => format!("head_dim {dim} and {dim_v}"),
            },
            match (q.heads, k.heads) {
                (heads, heads_kv) if heads == heads_kv => counted(heads, "head"),
                (heads, heads_kv) => format!("{} on {heads_kv}", counted(heads, "head")),
            },
            match self.tokens {
                Some(tokens) => counted(tokens, "token"),
                None => format!("batch {}", q.batch),
            },
        ];
        words.extend(option_words(bench));
        words.join(", ")
    }
}

/// The options and inputs of a bench that differ from the defaults.
fn option_words(bench: &Bench) -> Vec<String> {
    let options = &bench.options;
    let words = [
        (options.mask != Mask::None).then(|| options.mask.to_string()),
        options.softmax_scale.map(|scale| format!("scale {scale}")),
        options.softcap.map(|softcap| format!("softcap {softcap}")),
        options.alibi.as_ref().map(|_| "ALiBi".to_owned()),
        bench.input_name().map(|name| format!("{name} inputs")),
        (bench.layout != Layout::Bshd).then(|| format!("{:?}", bench.layout).to_lowercase()),
    ];
    words.into_iter().flatten().collect()
}
