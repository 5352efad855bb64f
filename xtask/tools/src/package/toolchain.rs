//! A toolchain that builds for the host and cannot build for a GPU, as most users have it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::Context;
use xshell::{Shell, cmd};

/// A search path.
pub struct Toolchain {
    pub bin: PathBuf,
}

/// Programs that linking needs, linked into the search path if they are installed.
const LINKERS: [&str; 6] = ["cc", "gcc", "ld", "ar", "as", "sh"];

impl Toolchain {
    /// Makes a toolchain in `folder`: this one without its `rust-src`, and a linker.
    pub fn without_gpu(sh: &Shell, folder: &Path) -> anyhow::Result<Self> {
        sh.remove_path(folder)?;
        let real = PathBuf::from(cmd!(sh, "rustc --print sysroot").quiet().read()?);
        let sysroot = folder.join("sysroot");
        link_but(&real, &sysroot, &["lib", "bin"])?;
        link_but(&real.join("lib"), &sysroot.join("lib"), &["rustlib"])?;
        link_but(
            &real.join("lib/rustlib"),
            &sysroot.join("lib/rustlib"),
            &["src"],
        )?;

        let bin = folder.join("bin");
        fs::create_dir_all(&bin)?;
        for program in ["rustc", "rustdoc"] {
            let script = format!(
                "#!/bin/sh\nexec '{}' --sysroot '{}' \"$@\"\n",
                real.join("bin").join(program).display(),
                sysroot.display()
            );
            fs::write(bin.join(program), script)?;
            fs::set_permissions(bin.join(program), fs::Permissions::from_mode(0o755))?;
        }
        symlink(real.join("bin/cargo"), bin.join("cargo"))?;
        let path = std::env::var_os("PATH").context("there is a search path")?;
        for linker in LINKERS {
            let found = std::env::split_paths(&path).map(|folder| folder.join(linker));
            if let Some(found) = found.into_iter().find(|program| program.exists()) {
                symlink(found, bin.join(linker))?;
            }
        }
        Ok(Self { bin })
    }
}

/// Makes `to` a folder of links to the entries of `from` except `others`.
fn link_but(from: &Path, to: &Path, others: &[&str]) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name();
        if !others.iter().any(|other| name == *other) {
            symlink(entry.path(), to.join(name))?;
        }
    }
    Ok(())
}
