//! `cargo xtask dist`

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::Value;
use xshell::{Shell, cmd};

use xtask::paths;

use crate::tools;

/// The script that runs everything in the packed folder.
const RUN_TESTS: &str = include_str!("run-tests.sh");

/// Packs the command, the test binaries, the examples and the PTX into `dist/`.
pub fn run() -> anyhow::Result<()> {
    let sh = Shell::new()?;
    sh.change_dir(paths::root());
    let dist = paths::root().join("dist");
    sh.remove_path(&dist)?;
    for folder in ["bin", "tests", "ptx", "bench"] {
        sh.create_dir(dist.join(folder))?;
    }

    tools::run_alone(&["build"])?;
    let manifest = fs::read_to_string(paths::ptx().join("manifest.json"))?;
    let manifest: Value = serde_json::from_str(&manifest).context("the build's manifest")?;
    for kernel in manifest["kernels"].as_array().into_iter().flatten() {
        let ptx = kernel["ptx"].as_str().context("a kernel has PTX")?;
        sh.copy_file(ptx, dist.join("ptx"))?;
    }
    cmd!(sh, "cargo build --release --package ferroflash-cli").run()?;
    pack_binary(
        &sh,
        &paths::target().join("release/ferroflash"),
        &dist.join("bin/ferroflash"),
    )?;
    for (name, binary) in test_binaries(&sh)? {
        pack_binary(&sh, &binary, &dist.join("tests").join(name))?;
    }
    copy_folder(&paths::root().join("examples"), &dist.join("examples"))?;
    for file in sh.read_dir("bench")? {
        if file.extension().is_some_and(|extension| extension == "py") {
            sh.copy_file(file, dist.join("bench"))?;
        }
    }

    let script = dist.join("run-tests");
    fs::write(&script, RUN_TESTS)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    println!(
        "packed {}; on a GPU machine run dist/run-tests",
        dist.display()
    );
    Ok(())
}

/// Tests that need the stand-in for NVIDIA's driver, which only the source tree builds.
const NOT_PACKED: [&str; 1] = ["cuda_fake"];

/// Name and path of every test binary to pack.
fn test_binaries(sh: &Shell) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let json = cmd!(
        sh,
        "cargo test --release --no-run --package ferroflash-tests --package ferroflash --package ferroflash-insight --package ferroflash-testing --package ferroflash-cli --message-format=json"
    )
    .read()?;
    let mut binaries = Vec::new();
    for line in json.lines() {
        let message: Value = serde_json::from_str(line).context("cargo's messages are JSON")?;
        let is_test = message["profile"]["test"] == true;
        if let (true, Some(path), Some(name)) = (
            is_test,
            message["executable"].as_str(),
            message["target"]["name"].as_str(),
        ) {
            if NOT_PACKED.contains(&name) {
                continue;
            }
            let kind = message["target"]["kind"][0].as_str().unwrap_or("test");
            binaries.push((format!("{name}-{kind}"), PathBuf::from(path)));
        }
    }
    anyhow::ensure!(!binaries.is_empty(), "cargo built no test binaries");
    Ok(binaries)
}

/// Copies a program without its debug information. Symbols stay: they are small, and backtraces need them.
fn pack_binary(sh: &Shell, from: &Path, to: &Path) -> anyhow::Result<()> {
    sh.copy_file(from, to)?;
    cmd!(sh, "strip --strip-debug {to}").run()?;
    Ok(())
}

fn copy_folder(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}
