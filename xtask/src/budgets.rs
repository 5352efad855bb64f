//! The pinned register count of every kernel, the largest over the architectures it is assembled for: it may
//! fall, but not rise unnoticed.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use cuda_builder::{Build, Kernel};

use crate::paths;

/// Registers of a thread, by kernel.
pub type Budgets = BTreeMap<String, u32>;

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
    let worst = |kernel: &Kernel| {
        kernel
            .resources
            .iter()
            .map(|resources| resources.registers)
            .max()
    };
    let budgets: Budgets = build
        .kernels
        .iter()
        .filter_map(|kernel| Some((kernel.entry.clone(), worst(kernel)?)))
        .collect();
    fs::write(path(), serde_json::to_string_pretty(&budgets)? + "\n")?;
    Ok(())
}
