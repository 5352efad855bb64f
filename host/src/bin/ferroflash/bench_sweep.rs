//! `ferroflash bench --sweep FOLDER`: every kernel that can run, over sequence lengths.

use std::fs;
use std::path::{Path, PathBuf};

use ferroflash::learn::sweep_plot::{self, Line};
use ferroflash::{Backend, Variant, variant};
use serde::{Deserialize, Serialize};

use crate::arguments;
use crate::backends::Work;
use crate::bench::{Bench, Report};
use crate::failure::Failure;
use crate::progress;

#[derive(clap::Args)]
pub struct SweepArgs {
    /// Time every kernel that can run at each of --seqs, and write sweep.csv, sweep.json and sweep.svg to this folder,
    /// where what was measured before is not measured again
    #[arg(long, value_name = "FOLDER")]
    sweep: Option<PathBuf>,
    /// Sequence lengths of a sweep
    #[arg(long, value_name = "N,…", default_value = "512,1024,2048,4096,8192,16384", value_delimiter = ',', value_parser = arguments::count, allow_hyphen_values = true)]
    seqs: Vec<usize>,
}

impl SweepArgs {
    pub fn seqs(&self) -> &[usize] {
        &self.seqs
    }

    /// Timing `benches` into the folder.
    pub fn work(&self, benches: Vec<Bench>) -> Result<Sweep, Failure> {
        let folder = self
            .sweep
            .clone()
            .expect("clap asks for it where no length is given");
        if self.seqs.contains(&0) {
            return Err(Failure::refused("--seqs", "0 rows", "1 or more each"));
        }
        fs::create_dir_all(&folder).map_err(|error| refused(&folder, &error))?;
        let points = read(&folder)?;
        Ok(Sweep {
            folder,
            benches,
            points,
        })
    }
}

/// One measurement.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Point {
    /// The problem in words: what was measured before is found again by it.
    problem: String,
    variant: String,
    seq: usize,
    #[serde(flatten)]
    report: Report,
}

pub struct Sweep {
    folder: PathBuf,
    benches: Vec<Bench>,
    points: Vec<Point>,
}

const JSON: &str = "sweep.json";

fn refused(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::refused(
        "--sweep",
        format!("{}: {error}", path.display()),
        "a writable folder, empty or with an earlier sweep",
    )
}

/// The measurements of an earlier sweep.
fn read(folder: &Path) -> Result<Vec<Point>, Failure> {
    let path = folder.join(JSON);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let text = fs::read_to_string(&path).map_err(|error| refused(&path, &error))?;
    serde_json::from_str(&text).map_err(|error| refused(&path, &error))
}

impl Work for Sweep {
    fn run<B: Backend>(mut self, backend: &mut B) -> Result<(), Failure> {
        let here = backend.capabilities();
        let mut tasks: Vec<(Bench, Variant)> = Vec::new();
        for bench in std::mem::take(&mut self.benches) {
            for variant in variant::eligible(&bench.problem()?, &here) {
                if bench.options.force.is_none_or(|forced| forced == variant) {
                    tasks.push((with(&bench, variant), variant));
                }
            }
        }
        let bar = progress::bar("sweep", tasks.len());
        let device = backend.device_name();
        for (bench, variant) in tasks {
            let problem = describe(&bench);
            let seq = bench.shapes[0].seq;
            let known = self.points.iter().any(|point| {
                point.problem == problem
                    && point.variant == variant.name()
                    && point.report.device == device
            });
            if !known {
                let report = bench.measure(backend)?;
                self.points.push(Point {
                    problem,
                    variant: variant.name().to_owned(),
                    seq,
                    report,
                });
                // After every point, so that a sweep that is stopped goes on where it was.
                self.write()?;
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        self.write()?;
        eprintln!("{} points in {}", self.points.len(), self.folder.display());
        Ok(())
    }
}

fn with(bench: &Bench, variant: Variant) -> Bench {
    Bench {
        options: bench.options.clone().force(variant),
        ..*bench
    }
}

/// Everything but the variant.
fn describe(bench: &Bench) -> String {
    let options = bench.options.clone().force(None);
    format!(
        "{} {:?} {:?} {options:?}",
        bench.dtype.name(),
        bench.layout,
        bench.shapes
    )
}

impl Sweep {
    fn write(&self) -> Result<(), Failure> {
        let json = serde_json::to_string_pretty(&self.points).expect("plain numbers and strings");
        for (name, text) in [
            ("sweep.csv", self.csv()),
            (
                "sweep.svg",
                sweep_plot::draw("Forward attention", &self.lines()),
            ),
            (JSON, json + "\n"),
        ] {
            let path = self.folder.join(name);
            fs::write(&path, text).map_err(|error| refused(&path, &error))?;
        }
        Ok(())
    }

    fn csv(&self) -> String {
        let mut csv =
            "device,kernel,variant,seq,ms_median,ms_min,ms_max,runs,tflops,gbs\n".to_owned();
        for point in &self.points {
            let Report {
                kernel,
                ms_median,
                ms_min,
                ms_max,
                runs,
                tflops,
                gbs,
                device,
            } = &point.report;
            let (variant, seq) = (&point.variant, point.seq);
            // A device's name may hold a comma.
            csv += &format!(
                "\"{}\",{kernel},{variant},{seq},{ms_median},{ms_min},{ms_max},{runs},{tflops},{gbs}\n",
                device.replace('"', "\"\"")
            );
        }
        csv
    }

    /// A line each kernel and device.
    fn lines(&self) -> Vec<Line> {
        let mut lines: Vec<Line> = Vec::new();
        for point in &self.points {
            let who = format!("{} on {}", point.report.kernel, point.report.device);
            let place = (point.seq, point.report.tflops);
            match lines.iter_mut().find(|line| line.who == who) {
                Some(line) => line.points.push(place),
                None => lines.push(Line {
                    who,
                    points: vec![place],
                }),
            }
        }
        for line in &mut lines {
            line.points.sort_by_key(|point| point.0);
        }
        lines
    }
}
