//! The output of `bench` for one problem.

use std::io::{self, Write};

use ferroflash::Problem;
use serde::Serialize;

use super::gauge::Reading;
use super::protocol::Times;
use crate::backends;
use crate::words::counted;

/// Facts about a run, apart from its times.
pub struct Ran {
    pub kernel: String,
    /// Query heads that share a tile (packed GQA).
    pub heads_per_tile: u32,
    /// Contents of the inputs, if not N(0, 1) alone.
    pub input: Option<String>,
    pub device: String,
    /// Whether calls were queued, or ran one at a time on a device that does not queue.
    pub is_queued: bool,
    /// Microseconds until a call with a kept plan returns, if the device queues.
    pub host_us_planned: Option<f64>,
    /// [`Plan::workspace_bytes`](ferroflash::Plan::workspace_bytes).
    pub workspace_bytes: usize,
}

/// The output of `--json`. `bench/README.md` says how the times are taken.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub kernel: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    pub heads_per_tile: u32,
    /// Milliseconds of a call when calls follow each other without a pause.
    pub ms_sustained: f64,
    /// Milliseconds of a call in a burst after a pause.
    pub ms_burst: f64,
    /// Clock of the multiprocessors in MHz and power of the board in watts during the sustained calls, and energy of a
    /// floating-point operation in picojoules, if they can be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_mhz: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pj_per_flop: Option<f64>,
    /// Median microseconds until a call returns: the host's share of it, if the device queues.
    pub host_us: f64,
    /// The same with a plan that is made once, if the device queues.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_us_planned: Option<f64>,
    /// Whether calls were queued; if not, they ran one at a time, and `sustained_calls` and `bursts` are small.
    pub queued: bool,
    /// Calls that `ms_sustained` is the median of.
    pub sustained_calls: usize,
    /// Bursts that `ms_burst` is the median of.
    pub bursts: usize,
    /// Sustained rate in 10¹² floating-point operations a second, counting the matrix products over visible pairs: two
    /// in a forward pass, five in a backward pass.
    pub tflops: f64,
    /// Sustained rate in 10⁹ bytes a second, counting every operand once.
    pub gbs: f64,
    /// Bytes of all operands.
    pub operand_bytes: u64,
    /// Bytes that the plan asks for beside them, all at the same time. What the CPU backend keeps for rows and threads is not
    /// counted.
    pub workspace_bytes: u64,
    /// Both: the most that the pass needs at a time.
    pub peak_bytes: u64,
    pub device: String,
    /// Of attention to a cache.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheRates>,
}

/// What a call does.
pub struct Amount {
    /// [`Problem::flops`].
    pub flops: f64,
    /// Bytes that have to be read or written.
    pub moved_bytes: f64,
    /// Bytes of all operands.
    pub operand_bytes: u64,
}

impl Amount {
    pub fn of(problem: &Problem) -> Self {
        Self {
            flops: problem.flops(),
            moved_bytes: problem.bytes(),
            operand_bytes: problem.bytes() as u64,
        }
    }
}

impl Report {
    pub fn new(ran: Ran, amount: &Amount, times: &Times) -> Self {
        let seconds = times.ms_sustained / 1e3;
        let (operand_bytes, workspace_bytes) = (amount.operand_bytes, ran.workspace_bytes as u64);
        let reading = times.reading;
        let energy = |Reading { watts, .. }| pj_per_flop(watts, seconds, amount.flops);
        Self {
            kernel: ran.kernel,
            input: ran.input,
            heads_per_tile: ran.heads_per_tile,
            ms_sustained: times.ms_sustained,
            ms_burst: times.ms_burst,
            clock_mhz: reading.map(|reading| reading.clock_mhz),
            watts: reading.map(|reading| reading.watts),
            pj_per_flop: reading.and_then(energy),
            host_us: times.host_us,
            host_us_planned: ran.host_us_planned,
            queued: ran.is_queued,
            sustained_calls: times.sustained_calls,
            bursts: times.bursts,
            tflops: amount.flops / seconds / 1e12,
            gbs: amount.moved_bytes / seconds / 1e9,
            operand_bytes,
            workspace_bytes,
            peak_bytes: operand_bytes + workspace_bytes,
            device: ran.device,
            cache: None,
        }
    }

    /// The same, of attention to a cache.
    pub fn of_cache(self, rates: CacheRates) -> Self {
        Self {
            cache: Some(rates),
            ..self
        }
    }

    /// One line of JSON on standard output.
    pub fn print_json(&self) -> io::Result<()> {
        let line = serde_json::to_string(self).expect("plain numbers and strings");
        writeln!(io::stdout(), "{line}")
    }

    /// Some lines of text on standard output.
    pub fn print(&self) -> io::Result<()> {
        let mut out = io::stdout();
        let kernel = backends::in_words(&self.kernel, self.heads_per_tile);
        writeln!(out, "{kernel} on {}", self.device)?;
        if let Some(input) = &self.input {
            writeln!(out, "  {input} inputs")?;
        }
        writeln!(
            out,
            "  {:.4} ms sustained (median of {}), {:.4} ms in a burst (median of {})",
            self.ms_sustained,
            counted(self.sustained_calls, "call"),
            self.ms_burst,
            counted(self.bursts, "burst"),
        )?;
        if !self.queued {
            writeln!(out, "  calls one at a time, as this device queues none")?;
        }
        writeln!(
            out,
            "  sustained: {:.3} TFLOP/s, {:.1} GB/s",
            self.tflops, self.gbs
        )?;
        if let Some(cache) = &self.cache {
            cache.print(&mut out)?;
        }
        let mb = |bytes: u64| bytes as f64 / 1e6;
        writeln!(
            out,
            "  memory: {:.1} MB of operands and {:.1} MB of workspace, {:.1} MB at the peak",
            mb(self.operand_bytes),
            mb(self.workspace_bytes),
            mb(self.peak_bytes),
        )?;
        if let (Some(clock_mhz), Some(watts)) = (self.clock_mhz, self.watts) {
            write!(out, "  sustained: {clock_mhz:.0} MHz, {watts:.0} W")?;
            match self.pj_per_flop {
                Some(energy) => writeln!(out, ", {energy:.3} pJ/FLOP")?,
                None => writeln!(out)?,
            }
        }
        write!(out, "  {:.1} µs median until a call returns", self.host_us)?;
        match self.host_us_planned {
            Some(us) => writeln!(out, ", {us:.1} µs by a kept plan"),
            None => writeln!(out),
        }
    }
}

/// How fast a cache is read.
#[derive(Clone, Debug, Serialize)]
pub struct CacheRates {
    /// Keys of a page, if the cache lies in pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_size: Option<usize>,
    /// Equal caches that calls go round.
    pub caches: usize,
    /// Bytes of the keys and values that queries see.
    pub kv_bytes: u64,
    /// Sustained rate at which these are read, 10⁹ bytes a second.
    pub kv_gbs: f64,
    /// The device's bandwidth by its data sheet, 10⁹ bytes a second, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_gbs: Option<f64>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub graph: Option<GraphRates>,
}

/// Times of a CUDA graph.
#[derive(Clone, Debug, Serialize)]
pub struct GraphRates {
    /// Calls in the graph.
    pub graph_calls: usize,
    /// Microseconds of a call: the graph's median time over its calls.
    pub us_graph: f64,
    /// Rate at which keys and values are read, 10⁹ bytes a second.
    pub kv_gbs_graph: f64,
}

impl GraphRates {
    pub fn new(calls: usize, us: f64, kv_bytes: u64) -> Self {
        Self {
            graph_calls: calls,
            us_graph: us,
            kv_gbs_graph: kv_bytes as f64 / us / 1e3,
        }
    }
}

impl CacheRates {
    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let of_device = |gbs: f64| {
            let device =
                |all: f64| format!(", {:.2} of the data sheet's {:.2}", gbs / all, all / 1e3);
            self.device_gbs.map(device).unwrap_or_default()
        };
        let pages = match self.page_size {
            Some(keys) => format!("in pages of {}", counted(keys, "key")),
            None => "in one piece a sequence".to_owned(),
        };
        let (tbs, caches) = (self.kv_gbs / 1e3, counted(self.caches, "cache"));
        let share = of_device(self.kv_gbs);
        writeln!(out, "  K and V {pages}, of {caches}: {tbs:.3} TB/s{share}")?;
        let Some(graph) = &self.graph else {
            return Ok(());
        };
        let (us, tbs) = (graph.us_graph, graph.kv_gbs_graph / 1e3);
        let calls = counted(graph.graph_calls, "call");
        let share = of_device(graph.kv_gbs_graph);
        writeln!(
            out,
            "  {us:.2} µs a call in a graph of {calls}: {tbs:.3} TB/s{share}"
        )
    }
}

/// Picojoules of an operation, if `flops` operations take `seconds` at `watts`; `None` if there are no operations.
fn pj_per_flop(watts: f64, seconds: f64, flops: f64) -> Option<f64> {
    (flops > 0.0).then(|| watts * seconds / flops * 1e12)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn energy_is_power_by_time_over_operations() {
        // At 700 W and 700 TFLOP/s an operation takes a picojoule.
        let energy = pj_per_flop(700.0, 0.5, 350e12).expect("there are operations");
        assert!((energy - 1.0).abs() < 1e-12, "{energy}");
        assert_eq!(pj_per_flop(700.0, 0.5, 0.0), None);
    }
}
