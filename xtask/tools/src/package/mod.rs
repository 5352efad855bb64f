//! Stages and tries the crates that are published: `cargo xtask package`.
//!
//! | file | what it does |
//! |---|---|
//! | `stage` | writes a workspace of them under `target/publish/`, with licences, READMEs and compiled kernels |
//! | `toolchain` | makes a search path on which no GPU compiler is found |
//! | `smoke` | builds a user's crate, the documentation as docs.rs does, and, to see its message, without a compiler |

mod smoke;
mod stage;
mod toolchain;

use xshell::Shell;
use xtask::paths;

/// A crate that is published.
struct Published {
    /// Folder in this workspace.
    folder: &'static str,
    /// Name in the registry, and folder in the staged workspace.
    name: &'static str,
}

const fn published(folder: &'static str, name: &'static str) -> Published {
    Published { folder, name }
}

/// The published crates, each after those that it depends on.
const CRATES: [Published; 9] = [
    published("cuda/cuda_std_macros", "ferroflash-cuda-std-macros"),
    published("cuda/cuda_std", "ferroflash-cuda-std"),
    published("kernels-gpu", "ferroflash-kernels"),
    published("cuda/ptx_pack", "ferroflash-ptx-pack"),
    published("cuda/cuda_builder", "ferroflash-cuda-builder"),
    published("cuda/cuda_loader", "ferroflash-cuda-loader"),
    published("sim", "ptx-sim"),
    published("ptx", "ferroflash-ptx"),
    published("host", "ferroflash"),
];

/// Stages the crates, tries them unless `is_tried` is false, and prints how they are published.
pub fn run(is_tried: bool) -> anyhow::Result<()> {
    let sh = Shell::new()?;
    let root = paths::target().join("publish");
    stage::stage(&sh, &root)?;
    if is_tried {
        smoke::run(&sh, &root)?;
    }
    println!("staged in {}; in this order:", root.display());
    for Published { name, .. } in CRATES {
        println!("  cargo publish --package {name}");
    }
    Ok(())
}
