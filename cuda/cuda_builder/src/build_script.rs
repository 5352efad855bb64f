//! Helpers for the build script of a crate that embeds PTX.

use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::compiler::RUSTC_VAR;
use crate::{Compression, CudaBuilder, Error};

/// Environment variable that names a folder for cargo's intermediate files, shared by several builds. A workspace sets
/// it for itself (`.cargo/config.toml`), so that kernels are compiled once for all of its profiles and commands, and
/// compressed once in each way.
pub const TARGET_DIR_VAR: &str = "FERROFLASH_GPU_TARGET_DIR";

/// The folder in it for what is compressed.
pub const PACKS_FOLDER: &str = "packs";

/// Environment variable by which `cuda_std::kernel` leaves kernels out.
const KERNELS_VAR: &str = "CUDA_STD_KERNELS";

/// Compiles the kernel crate in `crate_dir` for `archs`, and returns the path of a Rust file that defines
/// `static PACKS: [Pack; P]`, each `Pack::new(size, compressed)`: the PTX of several kernels, its size in bytes and itself as
/// `ptx_pack` has it; and `static MODULES: [Module; N]`, each `Module::new(entry, &PACKS[…], place)`: a kernel's name, and the range of
/// its pack's bytes at which its PTX stands.
///
/// Writes under `OUT_DIR` alone, or where [`TARGET_DIR_VAR`] allows it. Cargo runs the build script again when the
/// crate or one of `others`, crates that its kernels depend on, changes.
///
/// # Errors
/// [`Error::NoCompiler`] if there is no GPU compiler: a build script installs none.
pub fn embed<A: Into<String>>(
    crate_dir: &Path,
    others: &[&str],
    archs: impl IntoIterator<Item = A>,
) -> Result<PathBuf, Error> {
    println!("cargo::rerun-if-changed={}", crate_dir.display());
    for other in others {
        println!("cargo::rerun-if-changed={other}");
    }
    println!("cargo::rerun-if-env-changed={RUSTC_VAR}");
    println!("cargo::rerun-if-env-changed={TARGET_DIR_VAR}");
    println!("cargo::rerun-if-env-changed={KERNELS_VAR}");
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("cargo runs build scripts"));
    let target_dir = target_dir(&out_dir);
    let mut builder = CudaBuilder::new(crate_dir)
        .target_dir(&target_dir)
        .copy_to(out_dir.join("ptx"));
    for arch in archs {
        builder = builder.arch(arch);
    }
    let compression = match env::var("PROFILE").as_deref() {
        Ok("release") => Compression::Small,
        _ => Compression::Fast,
    };
    let kept = target_dir.join(PACKS_FOLDER);
    builder
        .build()?
        .embed(&out_dir.join("ptx"), compression, &kept)
}

/// The shared folder, if there is one that can be written to.
fn target_dir(out_dir: &Path) -> PathBuf {
    let shared = env::var_os(TARGET_DIR_VAR).map(PathBuf::from);
    let is_writable = |folder: &PathBuf| {
        let probe = folder.join(format!("writable-{}", std::process::id()));
        let made = fs::create_dir_all(folder).and_then(|()| fs::write(&probe, ""));
        made.and_then(|()| fs::remove_file(&probe)).is_ok()
    };
    shared
        .filter(is_writable)
        .unwrap_or_else(|| out_dir.join("gpu"))
}

/// Tells cargo why the build script fails: in one line, after the output of a program that failed.
pub fn report(error: &dyn std::error::Error) {
    let text = error.to_string();
    let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
    if !rest.is_empty() {
        eprintln!("{rest}");
    }
    println!("cargo::error={first}");
}
