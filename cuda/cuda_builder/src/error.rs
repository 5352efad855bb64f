//! Errors on the way from Rust to PTX.

use std::path::PathBuf;

/// Why a build failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No rustc that can build `core` for the GPU; for each one found, why it is unsuitable.
    #[error("no GPU compiler ({}); `cargo xtask doctor --install` in ferroflash's workspace installs one", .0.join("; "))]
    NoCompiler(Vec<String>),
    /// A package was installed, but lacks the program it should contain.
    #[error("{package} ships no {name}")]
    NoTool {
        name: &'static str,
        package: &'static str,
    },
    /// A program could not be started.
    #[error("cannot run {program}: {source}")]
    Spawn {
        program: String,
        #[source]
        source: std::io::Error,
    },
    /// A program ran and failed.
    #[error("{program} failed ({status}):\n{output}")]
    Failed {
        program: String,
        status: String,
        output: String,
    },
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The PTX does not look like what rustc emits.
    #[error("unexpected PTX: {0}")]
    Ptx(String),
}

impl Error {
    /// Attaches the path to an I/O error.
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A build script hands the error to cargo, which shows one line.
    #[test]
    fn a_missing_compiler_is_told_in_one_line() {
        let reasons = ["the workspace toolchain: it has no rust-src".to_owned()];
        let message = Error::NoCompiler(reasons.into()).to_string();
        assert_eq!(
            message,
            "no GPU compiler (the workspace toolchain: it has no rust-src); `cargo xtask doctor --install` in ferroflash's \
             workspace installs one"
        );
        assert_eq!(message.lines().count(), 1);
    }
}
