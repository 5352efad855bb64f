//! What every kernel is pinned at, the largest over the architectures it is assembled for: it may fall, but not rise
//! unnoticed.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use cuda_builder::{Build, Kernel};
use serde::{Deserialize, Serialize};

use crate::paths;

/// A kernel's budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes a thread spills, stores and loads together. Where it is not 0 the kernel falls short of its aim, and says so
    /// in every report.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub spilled_bytes: u32,
    /// Instructions of its main loops that reach local memory; the aim is 0 here too.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub main_loop_local: u32,
}

/// Budgets by kernel.
pub type Budgets = BTreeMap<String, Budget>;

fn is_zero(count: &u32) -> bool {
    *count == 0
}

fn path() -> PathBuf {
    paths::root().join("kernels-gpu/register-budgets.json")
}

/// Reads the pinned counts.
pub fn read() -> anyhow::Result<Budgets> {
    let path = path();
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

/// Pins what ptxas reports now.
pub fn write(build: &Build) -> anyhow::Result<()> {
    let budgets: Budgets = build
        .kernels
        .iter()
        .filter(|kernel| !kernel.resources.is_empty())
        .map(|kernel| (kernel.entry.clone(), worst(kernel)))
        .collect();
    fs::write(path(), serde_json::to_string_pretty(&budgets)? + "\n")?;
    Ok(())
}

/// The most a kernel takes on any architecture.
fn worst(kernel: &Kernel) -> Budget {
    kernel
        .resources
        .iter()
        .fold(Budget::default(), |worst, resources| Budget {
            registers: worst.registers.max(resources.registers),
            spilled_bytes: worst.spilled_bytes.max(resources.spilled_bytes()),
            main_loop_local: worst.main_loop_local.max(resources.main_loop_local()),
        })
}
