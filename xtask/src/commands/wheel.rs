//! `cargo xtask wheel`: the Python package of fronts/python, and its tests.
//!
//! Everything lies in `target/python`: `venv` with what builds and tests the wheel, `cargo` with Rust's outputs, `wheels`.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use xshell::{Shell, cmd};

use xtask::paths;
use xtask::report::{Outcome, Report};

/// Most bytes that the wheel may have: README promises less.
const MOST_BYTES: u64 = 4_000_000;

#[derive(clap::Args)]
pub struct Args {
    /// Link by zig for glibc 2.28, as the wheel that is published is: tagged manylinux_2_28
    #[arg(long)]
    zig: bool,
    /// Also lint and test it, beside a PyTorch and a JAX without CUDA
    #[arg(long, conflicts_with = "zig")]
    test: bool,
    /// Only install what it is built and tested with
    #[arg(long, conflicts_with_all = ["zig", "test"])]
    install: bool,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    if args.test {
        let mut report = Report::default();
        test(&mut report)?;
        return report.finish("wheel");
    }
    let python = Python::new()?;
    if args.install {
        python.install_all()?;
        python.install("jax", &[])?;
        return Ok(());
    }
    python.install("build", &[])?;
    println!("{}", python.build(args.zig)?.display());
    Ok(())
}

/// Builds the wheel, installs it beside a torch and a JAX that need no CUDA, and runs its tests.
///
/// Packages that cannot be had are no failure: the tests are then not run, for that reason.
fn test(report: &mut Report) -> anyhow::Result<()> {
    let python = Python::new()?;
    if let Err(error) = python.install_all() {
        let reason = format!("tests of the Python package: {error:#}");
        report.add(Outcome::NotRun(reason));
        return Ok(());
    }
    // Without it pytest passes over what is for JAX.
    if let Err(error) = python.install("jax", &[]) {
        let reason = format!("tests of ferroflash.jax: {error:#}");
        report.add(Outcome::NotRun(reason));
    }
    let tested = || -> anyhow::Result<()> {
        python.lint()?;
        let wheel = python.build(false)?;
        python.pip(&["--force-reinstall", "--no-deps"], &[wheel])?;
        let program = python.program("python");
        // A process a core: most of a test is Python's.
        Ok(cmd!(python.shell, "{program} -m pytest --numprocesses logical").run()?)
    };
    report.add(match tested() {
        Ok(()) => Outcome::Passed("the Python package: wheel, lints, pytest".to_owned()),
        Err(error) => Outcome::Failed(format!("the Python package: {error:#}")),
    });
    Ok(())
}

/// A virtual environment, and a shell in the package's folder.
struct Python {
    shell: Shell,
    folder: PathBuf,
}

impl Python {
    fn new() -> anyhow::Result<Self> {
        let shell = Shell::new()?;
        shell.change_dir(paths::root().join("fronts/python"));
        let folder = paths::target().join("python");
        shell.create_dir(&folder)?;
        Ok(Self { shell, folder })
    }

    /// A program of the environment.
    fn program(&self, name: &str) -> PathBuf {
        self.folder.join("venv/bin").join(name)
    }

    /// What builds the wheel, and all that its tests need.
    fn install_all(&self) -> anyhow::Result<()> {
        self.install("build", &[])?;
        self.install("test", &[])?;
        if self.install("torch", &["--no-deps"])? {
            let program = self.program("python");
            cmd!(self.shell, "{program} tools/torch_without_cuda.py").run()?;
            self.note_installed("torch")?;
        }
        Ok(())
    }

    /// Installs the packages of a list in tools/, unless it is the list that was installed last; says whether it did.
    fn install(&self, list: &str, options: &[&str]) -> anyhow::Result<bool> {
        if !self.program("pip").exists() {
            let venv = self.folder.join("venv");
            cmd!(self.shell, "python3 -m venv {venv}")
                .run()
                .context("no virtual environment")?;
        }
        let wanted = self.shell.read_file(self.list(list))?;
        let installed = self.shell.read_file(self.note(list));
        if installed.is_ok_and(|installed| installed == wanted) {
            return Ok(false);
        }
        let options = [options, &["--requirement"]].concat();
        self.pip(&options, &[self.list(list)])?;
        // torch is of no use yet: `install_all` notes it.
        if list != "torch" {
            self.note_installed(list)?;
        }
        Ok(true)
    }

    fn list(&self, name: &str) -> PathBuf {
        let file = format!("tools/requirements-{name}.txt");
        self.shell.current_dir().join(file)
    }

    /// Where the list is kept that was installed.
    fn note(&self, list: &str) -> PathBuf {
        self.folder
            .join("venv")
            .join(format!("installed-{list}.txt"))
    }

    fn note_installed(&self, list: &str) -> anyhow::Result<()> {
        Ok(self.shell.copy_file(self.list(list), self.note(list))?)
    }

    fn pip(&self, options: &[&str], what: &[PathBuf]) -> anyhow::Result<()> {
        let pip = self.program("pip");
        let install = cmd!(
            self.shell,
            "{pip} install --quiet --disable-pip-version-check"
        );
        Ok(install.args(options).args(what).run()?)
    }

    /// Formatting and lints of the package's Rust and Python, and what its crates test by themselves.
    fn lint(&self) -> anyhow::Result<()> {
        let (shell, ruff) = (&self.shell, self.program("ruff"));
        cmd!(shell, "{ruff} check").run()?;
        cmd!(shell, "{ruff} format --check").run()?;
        cmd!(shell, "cargo fmt --all --check").run()?;
        cmd!(
            shell,
            "cargo clippy --release --locked --workspace --all-targets -- --deny warnings"
        )
        .run()?;
        cmd!(
            shell,
            "cargo test --release --locked --quiet --package ferroflash-xla"
        )
        .run()?;
        Ok(())
    }

    /// Builds the wheel; returns where it lies.
    fn build(&self, zig: bool) -> anyhow::Result<PathBuf> {
        let shell = &self.shell;
        let wheels = self.folder.join(if zig { "wheels-zig" } else { "wheels" });
        shell.remove_path(&wheels)?;
        let maturin = self.program("maturin");
        let options: &[&str] = match zig {
            true => &["--zig", "--compatibility", "manylinux_2_28"],
            false => &[],
        };
        // `--zig` runs the environment's Python.
        let path = format!(
            "{}:{}",
            self.folder.join("venv/bin").display(),
            shell.var("PATH")?
        );
        let mut build = cmd!(
            shell,
            "{maturin} build --quiet --release --locked --out {wheels} {options...}"
        )
        .env("PATH", path);
        if zig {
            build = build.env("CUDA_LIBRARY_PATH", self.shared_stub()?);
        }
        build.run()?;
        let mut built = shell.read_dir(&wheels)?;
        ensure!(built.len() == 1, "maturin made {} wheels", built.len());
        let wheel = built.remove(0);
        let bytes = wheel.metadata()?.len();
        ensure!(
            bytes <= MOST_BYTES,
            "{} has {bytes} bytes; it may have {MOST_BYTES}",
            wheel.display()
        );
        Ok(wheel)
    }

    /// A folder with an empty libcuda.so to link with, for zig's linker takes no archive in place of a shared library. Nothing
    /// of it is needed when the wheel runs: `cuda_loader` defines the functions.
    fn shared_stub(&self) -> anyhow::Result<PathBuf> {
        let stub = self.folder.join("stub");
        let library = stub.join("lib64/libcuda.so");
        self.shell.create_dir(stub.join("lib64"))?;
        let soname = "-Wl,-soname,libcuda.so.1";
        cmd!(
            self.shell,
            "gcc -shared -x c /dev/null {soname} -o {library}"
        )
        .run()?;
        Ok(stub)
    }
}
