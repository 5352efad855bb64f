//! Running cargo for the GPU target.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::manifest::write_if_changed;
use crate::{Compiler, Error, run};

/// The GPU target of rustc.
const TARGET: &str = "nvptx64-nvidia-cuda";

/// The profile of the workspace that kernels are compiled with.
const PROFILE: &str = "gpu";

/// Flags every kernel needs, and why:
///
/// * JumpThreading off: it copies a barrier into both sides of a thread-dependent branch, which no GPU
///   barrier survives;
/// * `unroll-threshold`: Rust has no unroll pragma, and an accumulator array indexed by a loop that LLVM
///   leaves rolled lives in local memory instead of registers;
/// * `cap-lints`: lints are the workspace compiler's business, not this possibly newer one's.
const FLAGS: [&str; 6] = [
    "-Zmir-enable-passes=-JumpThreading",
    "-Cllvm-args=-unroll-threshold=4000",
    "--cap-lints=warn",
    "-Zunstable-options",
    "--check-cfg=cfg(gpu_arch,values(any()))",
    "-Aunused",
];

/// A command that stands in for the linker. Nothing is linked, as the assembly text is the product, but cargo rebuilds
/// a crate whose output is missing.
const LINKER: &str =
    "#!/bin/sh\nwhile [ $# -gt 0 ]; do [ \"$1\" = -o ] && : > \"$2\"; shift; done\n";

/// Separates flags in `CARGO_ENCODED_RUSTFLAGS`.
const FLAG_SEPARATOR: &str = "\x1f";

/// Compiles the crate in `manifest_dir` for `arch` and returns the path of its PTX.
///
/// `target_dir` holds intermediate files; an architecture has a folder of its own in it, so that several
/// do not evict each other.
pub fn compile(
    compiler: &Compiler,
    manifest_dir: &Path,
    arch: &str,
    target_dir: &Path,
) -> Result<PathBuf, Error> {
    let target_dir = target_dir.join(arch);
    // Crates that share a folder do not overwrite each other's.
    let ptx = target_dir.join(file_name(manifest_dir)?);
    std::fs::create_dir_all(&target_dir).map_err(Error::io(&target_dir))?;
    let linker = target_dir.join("linker.sh");
    write_if_changed(&linker, LINKER)?;
    std::fs::set_permissions(&linker, Permissions::from_mode(0o755)).map_err(Error::io(&linker))?;
    let run = || run(compiler, manifest_dir, arch, &target_dir, &ptx);
    run()?;
    if !ptx.exists() {
        // Cargo rebuilt nothing, but the output was removed: remove its artifacts and build again.
        let artifacts = target_dir.join(TARGET);
        std::fs::remove_dir_all(&artifacts).map_err(Error::io(artifacts))?;
        run()?;
    }
    Ok(ptx)
}

/// The name of the PTX of the crate in `manifest_dir`: its folder's and that of the folder around it, as several crates of kernels may
/// lie in folders of one name.
fn file_name(manifest_dir: &Path) -> Result<String, Error> {
    let path = manifest_dir
        .canonicalize()
        .map_err(Error::io(manifest_dir))?;
    let names: Vec<_> = path
        .iter()
        .rev()
        .take(2)
        .map(|name| name.to_string_lossy())
        .collect();
    Ok(format!("{}.ptx", names.join("-of-")))
}

/// Runs cargo without the network, and with it only if that fails for want of it: a build that was fetched before works
/// offline, though cargo does not tell build scripts of its `--offline`.
fn run(
    compiler: &Compiler,
    manifest_dir: &Path,
    arch: &str,
    target_dir: &Path,
    ptx: &Path,
) -> Result<(), Error> {
    let attempt = |network: &[&str]| {
        let mut command = command(compiler, manifest_dir, arch, target_dir);
        let emit = format!("--emit=asm={}", ptx.display());
        run::checked(command.args(network).arg("--").arg(emit))
    };
    match attempt(&["--offline"]) {
        Err(Error::Failed { output, .. }) if output.contains("--offline") => attempt(&[])?,
        outcome => outcome?,
    };
    Ok(())
}

/// The PTX ISA version, as a target feature, that code for `arch` is written in: LLVM takes the first that knows the architecture,
/// and sm_89's conversions of e4m3 and sm_90a's vectors of `red` came with 8.1.
fn ptx_version(arch: &str) -> &'static str {
    match arch {
        "sm_89" | "sm_90a" => "+ptx81",
        _ => "",
    }
}

fn command(compiler: &Compiler, manifest_dir: &Path, arch: &str, target_dir: &Path) -> Command {
    let flags = FLAGS.map(str::to_owned);
    let arch_flags = [
        format!("-Ctarget-cpu={arch}"),
        format!("-Ctarget-feature={}", ptx_version(arch)),
        format!("--cfg=gpu_arch=\"{arch}\""),
        format!("-Clinker={}", target_dir.join("linker.sh").display()),
    ];
    let flags = flags
        .into_iter()
        .chain(arch_flags)
        .collect::<Vec<_>>()
        .join(FLAG_SEPARATOR);

    let mut command = Command::new("cargo");
    // A build script or `cargo xtask` runs inside another cargo, whose settings are not for this one.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let inherited = text.starts_with("CARGO") || text.starts_with("RUST");
        let kept =
            ["CARGO_HOME", "CARGO_NET_OFFLINE"].contains(&&*text) || text.starts_with("RUSTUP_");
        if inherited && !kept {
            command.env_remove(&name);
        }
    }
    command
        .current_dir(manifest_dir)
        .env("RUSTC", &compiler.rustc)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_TARGET_DIR", target_dir)
        .env("CARGO_ENCODED_RUSTFLAGS", flags)
        .args([
            "rustc",
            "--lib",
            "--crate-type",
            "cdylib",
            "-Zbuild-std=core",
        ])
        .args(["--target", TARGET, "--profile", PROFILE, "--quiet"]);
    command
}
