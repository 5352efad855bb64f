//! NVIDIA's own programs: finding them, in a CUDA toolkit or in a virtual environment of Python.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Error, run};

/// A program of the CUDA toolkit.
#[derive(Clone, Copy, Debug)]
pub struct Tool {
    /// Name of the program.
    pub name: &'static str,
    /// Environment variable that names the program to use instead of any other.
    pub variable: &'static str,
    /// The PyPI package that ships it, with its version.
    pub package: &'static str,
}

/// The PTX assembler, of the toolkit release the kernels are tuned with.
pub const PTXAS: Tool = Tool {
    name: "ptxas",
    variable: "PTXAS",
    package: "nvidia-cuda-nvcc==13.0.*",
};

/// The disassembler. It reads what an older ptxas wrote; 13.2 is the first release that has a package.
pub const NVDISASM: Tool = Tool {
    name: "nvdisasm",
    variable: "NVDISASM",
    package: "nvidia-cuda-nvdisasm==13.2.*",
};

impl Tool {
    /// Finds it: by its variable, in a CUDA toolkit, on the search path, or in the virtual environment in `venv`.
    pub fn find(&self, venv: &Path) -> Option<PathBuf> {
        let named = std::env::var_os(self.variable).map(PathBuf::from);
        let toolkits = ["CUDA_HOME", "CUDA_PATH"]
            .into_iter()
            .filter_map(std::env::var_os)
            .map(PathBuf::from);
        let toolkits = toolkits
            .chain([PathBuf::from("/usr/local/cuda")])
            .map(|root| root.join("bin").join(self.name));
        named
            .into_iter()
            .chain(toolkits)
            .chain(which::which(self.name).ok())
            .chain(self.in_venv(venv))
            .find(|path| version(path).is_ok())
    }

    /// The command that installs it into `venv`.
    pub fn install_command(&self, venv: &Path) -> String {
        format!(
            "python3 -m venv {0} && {0}/bin/pip install '{1}'",
            venv.display(),
            self.package
        )
    }

    /// PyPI packages put the program in `lib/python3.X/site-packages/nvidia/cu13/bin` or `…/cuda_nvcc/bin`.
    fn in_venv(&self, venv: &Path) -> Vec<PathBuf> {
        let children = |directory: PathBuf| {
            std::fs::read_dir(directory)
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path())
        };
        children(venv.join("lib"))
            .flat_map(|python| children(python.join("site-packages/nvidia")))
            .map(|package| package.join("bin").join(self.name))
            .filter(|path| path.exists())
            .collect()
    }
}

/// The release line of `program --version`.
///
/// # Errors
/// [`Error::Spawn`] or [`Error::Failed`] if it does not run.
pub fn version(program: &Path) -> Result<String, Error> {
    let text = run::checked(Command::new(program).arg("--version"))?;
    let release = text
        .lines()
        .find(|line| line.contains("release"))
        .unwrap_or_default();
    Ok(release.trim().to_owned())
}
