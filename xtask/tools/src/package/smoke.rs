//! Tries the staged crates as a user would: offline except for the crates cargo has fetched, without a GPU compiler.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use xshell::{Shell, cmd};
use xtask::paths;

use super::toolchain::Toolchain;
use super::{CRATES, Published};

/// Attention in three lines, on the CPU and on the simulator.
const USER: &str = include_str!("user.rs");

pub fn run(sh: &Shell, root: &Path) -> anyhow::Result<()> {
    let toolchain = Toolchain::without_gpu(sh, &root.join("toolchain"))?;
    let packed = pack(sh, root)?;
    let user = User {
        toolchain: &toolchain,
        target: root.join("target"),
    };
    runs(&user, root, &packed)?;
    println!("ok       a user's crate, on the CPU and on the simulator");
    documents(&user, root)?;
    println!("ok       documentation, as docs.rs builds it");
    refuses(&user)?;
    println!("ok       what a build without a GPU compiler says");
    Ok(())
}

/// Packs every crate as `cargo publish` would, and returns the folder that they are unpacked in.
fn pack(sh: &Shell, root: &Path) -> anyhow::Result<std::path::PathBuf> {
    let _here = sh.push_dir(root);
    let target = root.join("target");
    cmd!(
        sh,
        "cargo package --workspace --no-verify --allow-dirty --offline --quiet --target-dir {target}"
    )
    .run()?;
    let packed = root.join("packed");
    sh.remove_path(&packed)?;
    sh.create_dir(&packed)?;
    for Published { name, .. } in CRATES {
        let archive = target.join(format!(
            "package/{name}-{}.crate",
            env!("CARGO_PKG_VERSION")
        ));
        // An archive's files all have one time, by which cargo would take them for those that it compiled before.
        cmd!(
            sh,
            "tar --extract --touch --gzip --file {archive} --directory {packed}"
        )
        .quiet()
        .run()?;
    }
    Ok(packed)
}

/// A user's environment: a toolchain, and the crates that cargo has fetched.
struct User<'a> {
    toolchain: &'a Toolchain,
    target: std::path::PathBuf,
}

impl User<'_> {
    /// `cargo ARGUMENTS --offline` in `folder`, with hardly any of this process's environment.
    fn cargo(&self, folder: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.toolchain.bin.join("cargo"));
        command.env_clear();
        for kept in ["HOME", "CARGO_HOME", "CARGO_BUILD_JOBS"] {
            if let Some(value) = std::env::var_os(kept) {
                command.env(kept, value);
            }
        }
        command
            .args(arguments)
            .args(["--offline", "--quiet"])
            .current_dir(folder)
            .env("PATH", &self.toolchain.bin)
            .env("CARGO_TARGET_DIR", &self.target);
        command
    }
}

/// A crate that depends on the packed ones builds and runs.
fn runs(user: &User<'_>, root: &Path, packed: &Path) -> anyhow::Result<()> {
    let folder = root.join("user");
    fs::create_dir_all(folder.join("src"))?;
    fs::write(folder.join("src/main.rs"), USER)?;
    let version = env!("CARGO_PKG_VERSION");
    let mut manifest = format!(
        "[package]\nname = \"user\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n\
         ferroflash = {{ version = \"{version}\", default-features = false, features = [\"sim\"] }}\n\n\
         [patch.crates-io]\n"
    );
    for Published { name, .. } in CRATES {
        let path = packed.join(format!("{name}-{version}"));
        manifest += &format!("{name} = {{ path = {:?} }}\n", path.display().to_string());
    }
    fs::write(folder.join("Cargo.toml"), manifest)?;
    // The same versions as this workspace's, which cargo has fetched.
    fs::copy(paths::root().join("Cargo.lock"), folder.join("Cargo.lock"))?;
    let status = user.cargo(&folder, &["run"]).status()?;
    ensure!(status.success(), "the user's crate: {status}");
    Ok(())
}

/// The documentation builds without warnings, as on docs.rs: without the network and with compiled kernels.
fn documents(user: &User<'_>, root: &Path) -> anyhow::Result<()> {
    let status = user
        .cargo(
            root,
            &[
                "doc",
                "--workspace",
                "--no-deps",
                "--features",
                "ferroflash/sim,ferroflash/serde",
            ],
        )
        .env("DOCS_RS", "1")
        .env("RUSTDOCFLAGS", "--deny warnings")
        .status()?;
    ensure!(status.success(), "cargo doc on the staged crates: {status}");
    Ok(())
}

/// In this workspace, whose build compiles kernels, the build without a compiler says in one line what is missing.
fn refuses(user: &User<'_>) -> anyhow::Result<()> {
    let mut build = user.cargo(paths::root(), &["build", "--package", "ferroflash-ptx"]);
    let output = build.env("FERROFLASH_RUSTC", "/nowhere/rustc").output()?;
    let text = String::from_utf8(output.stderr).context("cargo prints UTF-8")?;
    if output.status.success() {
        println!("NOT RUN  what a build without a GPU compiler says: a system compiler is here");
        return Ok(());
    }
    let said: Vec<_> = text
        .lines()
        .filter(|line| line.contains("ferroflash-ptx@"))
        .collect();
    let is_clear = |line: &&str| {
        line.starts_with("error: ferroflash-ptx@")
            && line.contains("no GPU compiler")
            && line.contains("`cargo xtask doctor --install`")
    };
    ensure!(
        said.len() == 1 && said.iter().all(is_clear),
        "not one clear line: {text}"
    );
    Ok(())
}
