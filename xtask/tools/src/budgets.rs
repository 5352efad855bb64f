//! Register budgets: every kernel's count is pinned at the largest over the architectures that it is assembled for, and
//! may fall, but not rise unnoticed.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::PathBuf;

use cuda_builder::compiler::RUSTC_VAR;
use cuda_builder::{Build, Kernel};
use kernels_gpu::instances::{BIAS, CACHED, DECODE, INSTANCES, Instance, KernelConfig, MODIFIED};
use serde::{Deserialize, Serialize};

use crate::json;
use crate::kernels::CRATES;
use xtask::paths;

/// A kernel's budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Registers per thread.
    pub registers: u32,
    /// Bytes that a thread spills, in kernels with modifiers, those of the gradient by a bias among them, where what each option does to the blocks that it concerns takes more
    /// registers than there are, in Hopper's for a cache, whose producer looks keys up in pages, in those of two blocks an SM for an e4m3 cache,
    /// which take two pages' keys for one run (`bench/results/decode-log.md`), and in those of f32 on tensor cores,
    /// whose numbers are two each (`bench/results/tf32-log.md`). No other kernel spills more than [`FEW_BYTES`], and none in its main
    /// loops.
    #[serde(default, skip_serializing_if = "is_none")]
    pub spilled_bytes: u32,
}

fn is_none(bytes: &u32) -> bool {
    *bytes == 0
}

/// The most that is pinned, stored and loaded together: beyond, a kernel's tile is too large. It is what the backward pass of f16 by
/// Hopper's instructions needs at a head_dim of 128 (`bench/results/wgmma-log.md`).
const MOST_SPILLED_BYTES: u32 = 904;

/// What any kernel may spill outside of its main loops, stored and loaded together: one register.
pub const FEW_BYTES: u32 = 8;

/// Budgets by kernel.
pub type Budgets = BTreeMap<String, Budget>;

fn path(crate_dir: &str) -> PathBuf {
    paths::root().join(crate_dir).join("register-budgets.json")
}

/// Reads the pinned counts of every crate.
pub fn read() -> anyhow::Result<Budgets> {
    let of_crates: Result<Vec<_>, _> = CRATES.into_iter().map(read_one).collect();
    Ok(of_crates?.into_iter().flatten().collect())
}

fn read_one(crate_dir: &str) -> anyhow::Result<Budgets> {
    json::read(&path(crate_dir))
}

/// Pins the counts that ptxas reports now; kernels that were not assembled keep theirs. A compiler chosen by `$FERROFLASH_RUSTC` is
/// a second one: its counts raise the first one's budgets, and do not lower them.
pub fn write(build: &Build) -> anyhow::Result<()> {
    let pinned = read()?;
    let now = build.kernels.iter().filter_map(|kernel| {
        let budget = match kernel.resources.is_empty() {
            true => *pinned.get(&kernel.entry)?,
            false => worst(kernel),
        };
        Some((kernel.entry.clone(), budget))
    });
    let now = now.collect();
    let budgets = match env::var_os(RUSTC_VAR) {
        Some(_) => raised(pinned, now),
        None => now,
    };
    let (insight, product): (Budgets, Budgets) = budgets
        .into_iter()
        .partition(|(entry, _)| kernels_insight::instances::find(entry).is_some());
    for (crate_dir, budgets) in CRATES.into_iter().zip([product, insight]) {
        let text = serde_json::to_string_pretty(&budgets)? + "\n";
        fs::write(path(crate_dir), text)?;
    }
    Ok(())
}

/// `measured`, each raised to its budget in `first` if that is larger.
fn raised(first: Budgets, mut measured: Budgets) -> Budgets {
    for (entry, budget) in &mut measured {
        if let Some(first) = first.get(entry) {
            budget.registers = budget.registers.max(first.registers);
            budget.spilled_bytes = budget.spilled_bytes.max(first.spilled_bytes);
        }
    }
    measured
}

/// The most registers that a kernel takes on any architecture, and the most that it spills where it may.
fn worst(kernel: &Kernel) -> Budget {
    let registers = kernel.resources.iter().map(|on| on.registers).max();
    let may_spill = MODIFIED.iter().chain(BIAS).chain(CACHED);
    let joins_pages = |row: &&Instance| match row.config {
        KernelConfig::Decode(config) => config.is_e4m3 && config.min_blocks > 1,
        _ => false,
    };
    let may_spill = may_spill.chain(DECODE.iter().filter(joins_pages));
    let mut may_spill = may_spill.chain(INSTANCES.iter().filter(|row| row.adds_parts()));
    let may_spill = may_spill.any(|row| row.name == kernel.entry);
    let spilled = kernel.resources.iter().map(|on| on.spilled_bytes()).max();
    let most = if may_spill {
        MOST_SPILLED_BYTES
    } else {
        FEW_BYTES
    };
    let spilled = spilled.filter(|&bytes| bytes <= most);
    Budget {
        registers: registers.unwrap_or_default(),
        spilled_bytes: spilled.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_compiler_raises_and_does_not_lower() {
        let budgets = |registers: [u32; 2]| {
            let names = ["a", "b"].map(str::to_owned);
            let budgets = registers.map(|registers| Budget {
                registers,
                spilled_bytes: 0,
            });
            Budgets::from_iter(names.into_iter().zip(budgets))
        };
        assert_eq!(
            raised(budgets([10, 20]), budgets([8, 24])),
            budgets([10, 24])
        );
        // Budgets of removed kernels are dropped, new kernels are pinned as measured.
        assert_eq!(
            raised(
                Budgets::from([("gone".to_owned(), Budget::default())]),
                budgets([1, 2])
            ),
            budgets([1, 2])
        );
    }
}
