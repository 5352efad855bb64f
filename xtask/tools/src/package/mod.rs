//! The crates as they are published: `cargo xtask package`.
//!
//! | file | what it does |
//! |---|---|
//! | `stage` | a workspace of them under `target/publish/`, with licences, READMEs and compiled kernels |
//! | `toolchain` | a search path on which no GPU compiler is found |
//! | `smoke` | a user's crate, documentation as docs.rs builds it, and what a build without a compiler says |

mod smoke;
mod stage;
mod toolchain;

use xshell::Shell;
use xtask::paths;

/// A crate that is published.
struct Published {
    /// Its folder in this workspace.
    folder: &'static str,
    /// Its name in the registry, which is its folder in the staged workspace.
    name: &'static str,
}

const fn published(folder: &'static str, name: &'static str) -> Published {
    Published { folder, name }
}

/// Each behind those that it depends on.
const CRATES: [Published; 8] = [
    published("cuda/cuda_std_macros", "ferroflash-cuda-std-macros"),
    published("cuda/cuda_std", "ferroflash-cuda-std"),
    published("kernels-gpu", "ferroflash-kernels"),
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
