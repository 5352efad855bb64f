//! `cargo xtask tidy`

use std::path::PathBuf;

use anyhow::{Context, ensure};
use serde::Deserialize;
use xshell::{Shell, cmd};

use crate::paths;
use crate::tidy::{RULES, Tree, violations};

pub fn run() -> anyhow::Result<()> {
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
