//! Kernels that ptxas and nvdisasm have passed before: what they make of the same PTX is the same again.
//!
//! Assembling every kernel for every architecture takes a quarter of an hour of a core. `--pin-registers` writes a digest of whatever
//! the outcome depends on for each kernel that passed every check; where a digest has not changed, the outcome has not either.

use std::collections::BTreeMap;
use std::fs;
use std::hash::Hasher;
use std::path::PathBuf;

use anyhow::Context;
use cuda_builder::{Build, Kernel};
use fnv::FnvHasher;
use xtask::paths;

use crate::budgets::Budgets;
use crate::json;
use crate::kernels::{self, Tools};
use crate::ptx_checks;

/// What decides whether a kernel passes: when it changes, every kernel is assembled again.
const CHECKS: [&str; 5] = [
    include_str!("ptx_checks.rs"),
    include_str!("sass/mod.rs"),
    include_str!("sass/graph.rs"),
    include_str!("sass/loops.rs"),
    include_str!("../../../cuda/cuda_builder/src/ptxas.rs"),
];

/// Digests of kernels, by their names.
pub struct Passed(BTreeMap<String, String>);

fn path() -> PathBuf {
    paths::root().join("kernels-gpu/assembled.json")
}

impl Passed {
    /// Reads the digests.
    pub fn read() -> anyhow::Result<Self> {
        json::read(&path()).map(Self)
    }

    /// Whether `kernel` is as it was when it passed.
    pub fn holds(&self, kernel: &Kernel, tools: &Tools, budgets: &Budgets) -> anyhow::Result<bool> {
        let then = self.0.get(&kernel.entry);
        Ok(then.is_some() && then == Some(&digest(kernel, tools, budgets)?))
    }

    /// Writes the digests of all kernels of `build` that pass now: those that are as they were, and of those that are assembled the
    /// ones without a fault.
    pub fn write(&self, build: &Build, tools: &Tools, budgets: &Budgets) -> anyhow::Result<()> {
        let mut digests = BTreeMap::new();
        for kernel in &build.kernels {
            let passes = match kernel.resources.is_empty() {
                true => self.holds(kernel, tools, budgets)?,
                false => ptx_checks::resource_faults_of(kernel, budgets).is_empty(),
            };
            if passes {
                digests.insert(kernel.entry.clone(), digest(kernel, tools, budgets)?);
            }
        }
        let path = path();
        let text = serde_json::to_string_pretty(&digests)? + "\n";
        fs::write(&path, text).with_context(|| path.display().to_string())
    }
}

/// A digest of the PTX, the architectures it is assembled for, the programs' releases, the checks and the kernel's budget.
fn digest(kernel: &Kernel, tools: &Tools, budgets: &Budgets) -> anyhow::Result<String> {
    let mut hasher = FnvHasher::default();
    let mut add = |bytes: &[u8]| {
        hasher.write(&(bytes.len() as u64).to_le_bytes());
        hasher.write(bytes);
    };
    add(&fs::read(&kernel.ptx)?);
    add(kernels::assembled_archs(kernel).join(" ").as_bytes());
    add(tools.releases.as_bytes());
    for check in CHECKS {
        add(check.as_bytes());
    }
    let budget = budgets.get(&kernel.entry).copied().unwrap_or_default();
    add(serde_json::to_string(&budget)?.as_bytes());
    Ok(format!("{:016x}", hasher.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::budgets::Budget;

    #[test]
    fn whatever_an_outcome_depends_on_changes_the_digest() {
        let folder = tempfile::tempdir().unwrap();
        let ptx = folder.path().join("k.ptx");
        let kernel = |arch: &str, text: &str| {
            fs::write(&ptx, text).unwrap();
            Kernel {
                entry: "k".to_owned(),
                arch: arch.to_owned(),
                threads: 128,
                min_blocks: 1,
                cluster: 1,
                dynamic_shared_bytes: None,
                ptx: ptx.clone(),
                resources: Vec::new(),
            }
        };
        let tools = |releases: &str| Tools::named(releases);
        let budgets = |registers| {
            let budget = Budget {
                registers,
                spilled_bytes: 0,
            };
            Budgets::from([("k".to_owned(), budget)])
        };
        let first = digest(&kernel("sm_80", "ret;"), &tools("13.0"), &budgets(9)).unwrap();
        let passed = Passed(BTreeMap::from([("k".to_owned(), first)]));
        let holds = |arch, text, releases, registers| {
            let kernel = kernel(arch, text);
            passed
                .holds(&kernel, &tools(releases), &budgets(registers))
                .unwrap()
        };
        assert!(holds("sm_80", "ret;", "13.0", 9));
        assert!(!holds("sm_90a", "ret;", "13.0", 9));
        assert!(!holds("sm_80", "ret; ", "13.0", 9));
        assert!(!holds("sm_80", "ret;", "13.1", 9));
        assert!(!holds("sm_80", "ret;", "13.0", 8));
        let other = Kernel {
            entry: "l".to_owned(),
            ..kernel("sm_80", "ret;")
        };
        assert!(!passed.holds(&other, &tools("13.0"), &budgets(9)).unwrap());
    }
}
