//! Counts in the form a reader wants: by opcode and by PTX line.

use std::collections::BTreeMap;
use std::fmt;

use super::{Count, Counters};
use crate::error::SourceLines;
use crate::ir::{Kernel, Op};

/// Counts of one PTX line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineStatistics {
    /// 1-based line of the PTX text, and the text.
    pub line: u32,
    pub text: String,
    pub opcode: String,
    /// Times a warp executed it; lanes that took part, summed.
    pub warps: u64,
    pub lanes: u64,
    /// Multiply-adds of a matrix instruction.
    pub tensor_macs: u64,
    /// Global-memory requests (one a warp, or one a bulk copy) and the 32-byte sectors they touched.
    pub global_requests: u64,
    pub sectors: u64,
    /// Shared-memory requests, the passes over the banks they took, and the fewest possible.
    pub shared_requests: u64,
    pub passes: u64,
    pub ideal_passes: u64,
}

impl LineStatistics {
    /// Passes beyond the fewest possible: 0 means no bank conflict.
    pub fn bank_conflicts(&self) -> u64 {
        self.passes - self.ideal_passes
    }
}

/// Counts of a launch, summed over its warps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Thread instructions (lanes that took part, summed).
    pub thread_instructions: u64,
    /// Multiply-adds of matrix instructions.
    pub tensor_macs: u64,
    /// Warp executions by opcode.
    pub mix: BTreeMap<String, u64>,
    /// Every line that ran, in order.
    pub lines: Vec<LineStatistics>,
}

/// Multiply-adds one warp contributes by executing `op`.
fn macs(op: &Op) -> u64 {
    match op {
        Op::Mma(op) => 16 * 8 * u64::from(op.k),
        // A warp's quarter of the warpgroup's 64 rows.
        Op::Wgmma(op) => 16 * u64::from(op.n) * u64::from(op.k),
        _ => 0,
    }
}

impl Statistics {
    pub(crate) fn new(kernel: &Kernel, counters: &Counters, source: &str) -> Self {
        let mut stats = Self::default();
        let mut lines: BTreeMap<(u32, u32), (Count, u64)> = BTreeMap::new();
        for (pc, count) in counters.by_pc.iter().enumerate() {
            if count.warps == 0 {
                continue;
            }
            let tensor_macs = count.warps * macs(&kernel.code[pc].op);
            stats.tensor_macs += tensor_macs;
            let key = (kernel.code[pc].line, kernel.opcode_of[pc]);
            let line = lines.entry(key).or_default();
            line.0 += *count;
            line.1 += tensor_macs;
        }
        let source = SourceLines::new(source);
        for ((line, opcode), (count, tensor_macs)) in lines {
            let opcode = kernel.opcodes[opcode as usize].to_string();
            stats.thread_instructions += count.lanes;
            *stats.mix.entry(opcode.clone()).or_default() += count.warps;
            stats.lines.push(LineStatistics {
                line,
                text: source.quote(line),
                opcode,
                warps: count.warps,
                lanes: count.lanes,
                tensor_macs,
                global_requests: count.global_requests,
                sectors: count.sectors,
                shared_requests: count.shared_requests,
                passes: count.passes,
                ideal_passes: count.ideal_passes,
            });
        }
        stats
    }

    /// 32-byte sectors of global memory that every line touched, summed.
    pub fn sectors(&self) -> u64 {
        self.lines.iter().map(|line| line.sectors).sum()
    }

    /// Bank conflicts of every line, summed.
    pub fn bank_conflicts(&self) -> u64 {
        self.lines.iter().map(LineStatistics::bank_conflicts).sum()
    }

    /// Warp executions of opcodes that start with `prefix`.
    pub fn executed(&self, prefix: &str) -> u64 {
        self.mix
            .iter()
            .filter(|(opcode, _)| opcode.starts_with(prefix))
            .map(|(_, n)| n)
            .sum()
    }
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "thread instructions {}", self.thread_instructions)?;
        writeln!(f, "tensor multiply-adds {}", self.tensor_macs)?;
        let mut mix: Vec<_> = self.mix.iter().collect();
        mix.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
        writeln!(f, "\n{:>12}  opcode", "warps")?;
        for (opcode, n) in mix {
            writeln!(f, "{n:>12}  {opcode}")?;
        }
        writeln!(
            f,
            "\n{:>6} {:>10} {:>12} {:>10}  memory instruction",
            "line", "requests", "sectors/req", "conflicts"
        )?;
        for l in &self.lines {
            let requests = l.global_requests + l.shared_requests;
            if requests == 0 {
                continue;
            }
            let per_request = if l.global_requests == 0 {
                "-".to_owned()
            } else {
                format!("{:.2}", l.sectors as f64 / l.global_requests as f64)
            };
            let conflicts = if l.shared_requests == 0 {
                "-".to_owned()
            } else {
                l.bank_conflicts().to_string()
            };
            writeln!(
                f,
                "{:>6} {requests:>10} {per_request:>12} {conflicts:>10}  {}",
                l.line, l.text
            )?;
        }
        Ok(())
    }
}
