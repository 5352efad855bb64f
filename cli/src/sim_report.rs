//! `ferroflash sim-report`: a kernel's instructions, memory traffic and bank conflicts, line by line.

use std::collections::BTreeMap;
use std::io::{self, Write};

use ferroflash::Backend;
use ferroflash::backend::sim::{KernelStatistics, Sim, SimDevice};
use ferroflash_testing::oracle::Rows;
use ptx_sim::LineStatistics;
use serde::Serialize;

use crate::arguments;
use crate::bench;
use crate::failure::Failure;
use crate::table::Table;
use crate::words::counted;

#[derive(clap::Args)]
#[command(
    mut_arg("backend", |arg| arg.hide(true)),
    mut_arg("pass", |arg| arg.hide(true)),
    mut_arg("sweep", |arg| arg.hide(true)),
    mut_arg("seqs", |arg| arg.hide(true)),
    mut_arg("tokens", |arg| arg.hide(true)),
    mut_arg("peers", |arg| arg.hide(true)),
)]
#[group(skip)]
pub struct Args {
    #[command(flatten)]
    bench: bench::Args,
    /// Order in which warps and copies run: 0 in turn, any other at random
    #[arg(long, value_name = "S", default_value_t = 0, value_parser = arguments::seed, allow_hyphen_values = true)]
    schedule_seed: u64,
}

/// An element of the output of `--json`, one for each launch.
#[derive(Serialize)]
struct Report<'a> {
    kernel: &'static str,
    grid: u32,
    thread_instructions: u64,
    tensor_macs: u64,
    global_sectors: u64,
    bank_conflicts: u64,
    /// Number of warp executions by opcode.
    mix: &'a BTreeMap<String, u64>,
    lines: Vec<Line<'a>>,
}

/// Statistics of one PTX instruction.
#[derive(Serialize)]
struct Line<'a> {
    line: u32,
    opcode: &'a str,
    text: &'a str,
    warps: u64,
    lanes: u64,
    tensor_macs: u64,
    /// Sectors of 32 bytes per global request.
    sectors_per_request: Option<f64>,
    /// Passes over the shared-memory banks beyond the fewest possible, per access.
    conflicts_per_access: Option<f64>,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let bench = bench::simulated(&args.bench)?;
    let mut sim = Sim::on(SimDevice::with_schedule(args.schedule_seed));
    sim.plan(&bench.problem()?)?;
    sim.memory().take_statistics();
    let case = bench.case()?;
    let (o, lse) = case.run(&mut sim)?;
    let verdict = case.check(&o, &lse, Rows::All)?;
    if !verdict.passed() {
        return Err(Failure::Failed(format!("the result is wrong ({verdict})")));
    }
    let launches = sim.memory().take_statistics();
    let reports: Vec<Report<'_>> = launches.iter().map(Report::new).collect();
    let mut out = io::stdout();
    if bench.json {
        let line = serde_json::to_string(&reports).expect("plain numbers and strings");
        writeln!(out, "{line}")?;
    } else {
        for report in &reports {
            report.print(&mut out)?;
        }
    }
    Ok(())
}

impl<'a> Report<'a> {
    fn new(launch: &'a KernelStatistics) -> Self {
        let statistics = &launch.statistics;
        Self {
            kernel: launch.kernel,
            grid: launch.grid,
            thread_instructions: statistics.thread_instructions,
            tensor_macs: statistics.tensor_macs,
            global_sectors: statistics.sectors(),
            bank_conflicts: statistics.bank_conflicts(),
            mix: &statistics.mix,
            lines: statistics.lines.iter().map(Line::new).collect(),
        }
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { kernel, grid, .. } = self;
        writeln!(out, "{kernel}, {}", counted(*grid as usize, "block"))?;
        writeln!(out, "  thread instructions  {}", self.thread_instructions)?;
        writeln!(out, "  tensor multiply-adds {}", self.tensor_macs)?;
        writeln!(out, "  global sectors       {}", self.global_sectors)?;
        writeln!(out, "  bank conflicts       {}\n", self.bank_conflicts)?;

        let mut mix: Vec<_> = self.mix.iter().collect();
        mix.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
        let all: u64 = self.mix.values().sum();
        let mut table = Table::new(&["opcode", "warps", "%"]);
        for (opcode, warps) in mix {
            let share = 100.0 * *warps as f64 / all as f64;
            table.row([opcode.clone(), warps.to_string(), format!("{share:.1}")]);
        }
        table.print(out)?;

        writeln!(out)?;
        let mut table = Table::new(&[
            "memory and tensor instruction",
            "line",
            "warps",
            "sectors/request",
            "conflicts/access",
            "multiply-adds",
        ]);
        for line in self.lines.iter().filter(|line| line.is_of_interest()) {
            table.row(line.cells());
        }
        table.print(out)?;
        writeln!(out)
    }
}

/// Characters of an instruction's text that a table shows.
const SHOWN_CHARS: usize = 72;

impl<'a> Line<'a> {
    fn new(line: &'a LineStatistics) -> Self {
        let ratio = |total: u64, requests: u64| match requests {
            0 => None,
            _ => Some(total as f64 / requests as f64),
        };
        Self {
            line: line.line,
            opcode: &line.opcode,
            text: &line.text,
            warps: line.warps,
            lanes: line.lanes,
            tensor_macs: line.tensor_macs,
            sectors_per_request: ratio(line.sectors, line.global_requests),
            conflicts_per_access: ratio(line.bank_conflicts(), line.shared_requests),
        }
    }

    fn is_of_interest(&self) -> bool {
        self.sectors_per_request.is_some()
            || self.conflicts_per_access.is_some()
            || self.tensor_macs > 0
    }

    fn cells(&self) -> [String; 6] {
        let mut text: String = self.text.chars().take(SHOWN_CHARS).collect();
        if text.len() < self.text.len() {
            text.push('…');
        }
        let or_dash = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |r| format!("{r:.2}"));
        [
            text,
            self.line.to_string(),
            self.warps.to_string(),
            or_dash(self.sectors_per_request),
            or_dash(self.conflicts_per_access),
            match self.tensor_macs {
                0 => "-".to_owned(),
                macs => macs.to_string(),
            },
        ]
    }
}
