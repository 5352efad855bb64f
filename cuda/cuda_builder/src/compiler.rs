//! Finding a rustc that can build `core` for the GPU.
//!
//! Such a compiler has its own source of the standard library (`rust-src`) and is recent enough. The order:
//!
//! 1. `$FERROFLASH_RUSTC`;
//! 2. the workspace's toolchain, where rustup has installed `rust-src` from `rust-toolchain.toml`;
//! 3. a system rustc with a source package of the same version (Debian: `rustc-web` + `rust-web-src`).

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Error, run};

/// Environment variable that names the compiler to use instead of any other.
pub const RUSTC_VAR: &str = "FERROFLASH_RUSTC";

/// First release whose LLVM knows every instruction `cuda_std` emits, as (major, minor).
pub const OLDEST: (u32, u32) = (1, 95);

/// Where distributions install a rustc that rustup does not manage.
const SYSTEM_RUSTC: [&str; 2] = ["/usr/bin/rustc", "/usr/local/bin/rustc"];

/// A rustc that can build `core` for the GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiler {
    /// The program.
    pub rustc: PathBuf,
    /// Output of `rustc --version`.
    pub version: String,
    /// How it was found, for people.
    pub origin: &'static str,
}

/// A place that was searched: the compiler there, or why it is unsuitable.
pub type Candidate = (&'static str, Result<Compiler, String>);

/// Looks at every place, in order. `workspace` is any folder the workspace's toolchain file covers.
pub fn candidates(workspace: &Path) -> Vec<Candidate> {
    let mut found = Vec::new();
    if let Some(rustc) = std::env::var_os(RUSTC_VAR) {
        let origin = "$FERROFLASH_RUSTC";
        found.push((origin, inspect(Path::new(&rustc), workspace, origin)));
    }
    let origin = "the workspace toolchain";
    found.push((origin, inspect(Path::new("rustc"), workspace, origin)));
    for path in SYSTEM_RUSTC {
        let origin = "a system compiler";
        let path = Path::new(path);
        if path.exists() {
            found.push((origin, inspect(path, workspace, origin)));
        }
    }
    found
}

impl Compiler {
    /// The first suitable compiler. Installs nothing; `install::compiler` does.
    ///
    /// # Errors
    /// [`Error::NoCompiler`] says what was found wanting and which command mends it.
    pub fn find(workspace: &Path) -> Result<Self, Error> {
        let mut reasons = Vec::new();
        for (origin, candidate) in candidates(workspace) {
            match candidate {
                Ok(compiler) => return Ok(compiler),
                Err(why) => reasons.push(format!("{origin}: {why}")),
            }
        }
        Err(Error::NoCompiler(reasons))
    }
}

/// Whether `rustc` can build `core` for the GPU; if not, why.
fn inspect(rustc: &Path, directory: &Path, origin: &'static str) -> Result<Compiler, String> {
    let ask = |argument: &[&str]| {
        let mut command = Command::new(rustc);
        run::checked(
            command
                .args(argument)
                .current_dir(directory)
                .env_remove("RUSTUP_TOOLCHAIN"),
        )
        .map(|text| text.trim().to_owned())
        .map_err(|error| {
            error
                .to_string()
                .lines()
                .next()
                .unwrap_or_default()
                .to_owned()
        })
    };
    let version = ask(&["--version"])?;
    let release =
        parse_release(&version).ok_or_else(|| format!("cannot read its version, {version:?}"))?;
    if release < OLDEST {
        return Err(format!("{version} is older than {}.{}", OLDEST.0, OLDEST.1));
    }
    let sysroot = PathBuf::from(ask(&["--print", "sysroot"])?);
    let source = sysroot.join("lib/rustlib/src/rust/library/core/Cargo.toml");
    if !source.exists() {
        return Err(format!(
            "{version} has no rust-src ({} is missing)",
            source.display()
        ));
    }
    // A rustup proxy would pick its toolchain anew in every folder: name the program behind it.
    let behind = sysroot.join("bin/rustc");
    let rustc = if behind.exists() {
        behind
    } else {
        rustc.to_owned()
    };
    Ok(Compiler {
        rustc,
        version,
        origin,
    })
}

/// (major, minor) of `rustc 1.96.0 (…)`.
fn parse_release(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split_whitespace().nth(1)?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_releases() {
        assert_eq!(
            parse_release("rustc 1.96.0 (ac68faa20 2026-05-25)"),
            Some((1, 96))
        );
        assert_eq!(
            parse_release("rustc 1.97.0-nightly (0 2026-07-01)"),
            Some((1, 97))
        );
        assert_eq!(parse_release("gcc"), None);
    }

    /// A stand-in for rustc: a script that answers `--version` and `--print sysroot`.
    fn fake(directory: &Path, version: &str, with_source: bool) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let sysroot = directory.join("sysroot");
        if with_source {
            let core = sysroot.join("lib/rustlib/src/rust/library/core");
            std::fs::create_dir_all(&core).unwrap();
            std::fs::write(core.join("Cargo.toml"), "").unwrap();
        }
        let script = format!(
            "#!/bin/sh\nif [ \"$1\" = --version ]; then echo 'rustc {version} (0 2026-01-01)'; else echo '{}'; fi\n",
            sysroot.display()
        );
        let path = directory.join("rustc");
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn says_why_a_compiler_does_not_do() {
        let inspect_fake = |version: &str, with_source: bool| {
            let directory = tempfile::tempdir().unwrap();
            let rustc = fake(directory.path(), version, with_source);
            inspect(&rustc, directory.path(), "a test")
        };
        assert!(
            inspect_fake("1.94.1", true)
                .unwrap_err()
                .contains("older than 1.95")
        );
        assert!(
            inspect_fake("1.95.0", false)
                .unwrap_err()
                .contains("has no rust-src")
        );
        assert_eq!(
            inspect_fake("1.96.0", true).unwrap().version,
            "rustc 1.96.0 (0 2026-01-01)"
        );
        assert!(inspect(Path::new("/nonexistent/rustc"), Path::new("/"), "a test").is_err());
    }
}
