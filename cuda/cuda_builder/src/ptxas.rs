//! NVIDIA's PTX assembler: finding it, installing it, and reading its report.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::manifest::Resources;
use crate::{Error, run};

/// Names the ptxas to use, before any other is looked for.
pub const PTXAS_VAR: &str = "PTXAS";

/// The PyPI package that ships ptxas, pinned to the toolkit release the kernels are tuned with.
pub const PYPI_PACKAGE: &str = "nvidia-cuda-nvcc==13.0.*";

/// Finds ptxas: `$PTXAS`, a CUDA toolkit, the search path, or the virtual environment in `venv`.
pub fn find(venv: &Path) -> Option<PathBuf> {
    let named = std::env::var_os(PTXAS_VAR).map(PathBuf::from);
    let toolkits = ["CUDA_HOME", "CUDA_PATH"]
        .into_iter()
        .filter_map(std::env::var_os)
        .map(PathBuf::from);
    let toolkits = toolkits
        .chain([PathBuf::from("/usr/local/cuda")])
        .map(|root| root.join("bin/ptxas"));
    named
        .into_iter()
        .chain(toolkits)
        .chain(which::which("ptxas").ok())
        .chain(in_venv(venv))
        .find(|path| version(path).is_ok())
}

/// [`find`], or else installs [`PYPI_PACKAGE`] into a virtual environment in `venv`.
pub fn find_or_install(venv: &Path) -> Result<PathBuf, Error> {
    if let Some(path) = find(venv) {
        return Ok(path);
    }
    eprintln!("installing ptxas: {}", install_command(venv));
    run::checked(Command::new("python3").args(["-m", "venv"]).arg(venv))?;
    run::checked(Command::new(venv.join("bin/pip")).args(["install", "--quiet", PYPI_PACKAGE]))?;
    find(venv).ok_or_else(|| Error::Ptx(format!("{PYPI_PACKAGE} ships no ptxas")))
}

/// What [`find_or_install`] runs, for people.
pub fn install_command(venv: &Path) -> String {
    format!(
        "python3 -m venv {0} && {0}/bin/pip install '{PYPI_PACKAGE}'",
        venv.display()
    )
}

/// The release line of `ptxas --version`.
pub fn version(ptxas: &Path) -> Result<String, Error> {
    let text = run::checked(Command::new(ptxas).arg("--version"))?;
    let release = text
        .lines()
        .find(|line| line.contains("release"))
        .unwrap_or_default();
    Ok(release.trim().to_owned())
}

/// PyPI packages put the program in `lib/python3.X/site-packages/nvidia/cu13/bin` or `…/cuda_nvcc/bin`.
fn in_venv(venv: &Path) -> Vec<PathBuf> {
    let children = |directory: PathBuf| {
        std::fs::read_dir(directory)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
    };
    children(venv.join("lib"))
        .flat_map(|python| children(python.join("site-packages/nvidia")))
        .map(|package| package.join("bin/ptxas"))
        .filter(|path| path.exists())
        .collect()
}

/// Assembles `ptx` for `arch` and reads what ptxas says of it. The machine code goes to `cubin`.
pub fn assemble(ptxas: &Path, ptx: &Path, arch: &str, cubin: &Path) -> Result<Resources, Error> {
    let mut command = Command::new(ptxas);
    command.args(["--verbose", &format!("--gpu-name={arch}")]);
    let output = run::output(command.arg(ptx).arg("--output-file").arg(cubin))?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let program = format!("ptxas on {}", ptx.display());
        return Err(Error::Failed {
            program,
            status: output.status.to_string(),
            output: text,
        });
    }
    parse_report(&text, arch)
        .ok_or_else(|| Error::Ptx(format!("cannot read ptxas's report:\n{text}")))
}

/// Reads the verbose report about a module with one kernel.
fn parse_report(report: &str, arch: &str) -> Option<Resources> {
    let before = |what: &str| -> Option<u32> {
        let (head, _) = report.split_once(what)?;
        head.split(|c: char| !c.is_ascii_digit())
            .rfind(|word| !word.is_empty())?
            .parse()
            .ok()
    };
    let notes = report
        .lines()
        .filter(|line| line.contains("warning") || line.contains("error") || line.contains("(C"))
        .map(|line| line.trim().to_owned())
        .collect();
    Some(Resources {
        arch: arch.to_owned(),
        registers: before(" registers")?,
        static_shared_bytes: before(" bytes smem").unwrap_or(0),
        stack_bytes: before(" bytes stack frame")?,
        spill_store_bytes: before(" bytes spill stores")?,
        spill_load_bytes: before(" bytes spill loads")?,
        notes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_report() {
        let report = "ptxas info    : 0 bytes gmem\n\
            ptxas info    : Compiling entry function 'k' for 'sm_90'\n\
            ptxas info    : Function properties for k\n    \
            40 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads\n\
            ptxas info    : (C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized\n\
            ptxas info    : Used 168 registers, used 1 barriers, 1024 bytes smem\n";
        let resources = parse_report(report, "sm_90").unwrap();
        assert_eq!(resources.registers, 168);
        assert_eq!(resources.static_shared_bytes, 1024);
        assert_eq!(resources.stack_bytes, 40);
        assert_eq!(resources.spill_store_bytes, 12);
        assert_eq!(resources.spill_load_bytes, 16);
        assert_eq!(resources.notes.len(), 1);
        assert_eq!(parse_report("nothing", "sm_90"), None);
    }
}
