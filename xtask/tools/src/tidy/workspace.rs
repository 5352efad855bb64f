//! Checks the workspace against the rules: `cargo xtask tidy`.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use serde::Deserialize;
use xshell::{Shell, cmd};

use super::{RULES, Tree, violations};
use xtask::paths;

/// Crates that a build of the library for the CPU alone must not compile.
const NOT_FOR_CPU: [&str; 10] = [
    "clap",
    "cuda_loader",
    "cust",
    "ferroflash-ptx",
    "ferroflash-ptx-pack",
    "lzma-rust2",
    "plotters",
    "proptest",
    "ptx-sim",
    "rand",
];

/// Checks that the library without features depends on none of [`NOT_FOR_CPU`].
fn check_dependencies() -> anyhow::Result<()> {
    let sh = Shell::new()?;
    sh.change_dir(paths::root());
    let tree = cmd!(
        sh,
        "cargo tree --package ferroflash --edges normal,build --no-default-features --prefix none --offline"
    );
    let tree = tree.quiet().read()?;
    let names = tree.lines().filter_map(|line| line.split(' ').next());
    let superfluous: Vec<_> = names.filter(|name| NOT_FOR_CPU.contains(name)).collect();
    ensure!(
        superfluous.is_empty(),
        "tidy: without features ferroflash depends on {}",
        superfluous.join(", ")
    );
    Ok(())
}

pub fn run() -> anyhow::Result<()> {
    check_dependencies()?;
    let tree = workspace()?;
    let found = violations(&tree, RULES)?;
    for line in &found {
        println!(
            "{}",
            line.trim_start_matches(&format!("{}/", paths::root().display()))
        );
    }
    ensure!(found.is_empty(), "tidy: {} forbidden imports", found.len());
    let paths: usize = tree
        .modules
        .iter()
        .map(|module| module.mentions.len())
        .sum();
    println!(
        "tidy: {} rules hold of {paths} paths in {} modules of {} crates",
        RULES.len(),
        tree.modules.len(),
        tree.crates.len()
    );
    Ok(())
}

/// The modules of the workspace's libraries.
pub fn workspace() -> anyhow::Result<Tree> {
    let sh = Shell::new()?;
    sh.change_dir(paths::root());
    let metadata = cmd!(sh, "cargo metadata --no-deps --offline --format-version 1").quiet();
    let metadata: Metadata =
        serde_json::from_str(&metadata.read()?).context("what cargo says of the workspace")?;
    let mut tree = Tree::default();
    for target in metadata
        .packages
        .iter()
        .flat_map(|package| &package.targets)
    {
        let is_library = |kind: &String| ["lib", "rlib", "proc-macro"].contains(&kind.as_str());
        if target.kind.iter().any(is_library) {
            tree.add_crate(&target.name.replace('-', "_"), &target.src_path)?;
        }
    }
    Ok(tree)
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
    src_path: PathBuf,
}
