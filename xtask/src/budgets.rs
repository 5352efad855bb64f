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
}

/// Budgets by kernel.
pub type Budgets = BTreeMap<String, Budget>;

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
    let registers = kernel.resources.iter().map(|on| on.registers).max();
    Budget {
        registers: registers.unwrap_or_default(),
    }
}
