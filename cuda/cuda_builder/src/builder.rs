//! The builder: from a crate's folder to a folder of PTX.

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;

use crate::manifest::write_if_changed;
use crate::ptx::finish::{LaunchBounds, finish, launch_bounds};
use crate::ptx::lines::{annotate, separate};
use crate::ptx::split::split;
use crate::{Build, Compiler, Error, Kernel, cargo};

/// Compiles a kernel crate to PTX.
#[derive(Clone, Debug)]
pub struct CudaBuilder {
    crate_dir: PathBuf,
    archs: Vec<String>,
    copy_to: Option<PathBuf>,
    target_dir: Option<PathBuf>,
    source_lines: bool,
}

/// What a module's table of source lines is named, in place of `ptx`: see [`CudaBuilder::source_lines`].
pub const LINES_EXTENSION: &str = "lines";

impl CudaBuilder {
    /// A build of the crate in `crate_dir`, which lies in a workspace with a `gpu` profile.
    pub fn new(crate_dir: impl AsRef<Path>) -> Self {
        Self {
            crate_dir: crate_dir.as_ref().to_owned(),
            archs: Vec::new(),
            copy_to: None,
            target_dir: None,
            source_lines: false,
        }
    }

    /// Adds an architecture to compile for, such as `sm_80`. The crate sees it as `cfg(gpu_arch = "sm_80")`.
    pub fn arch(mut self, arch: impl Into<String>) -> Self {
        self.archs.push(arch.into());
        self
    }

    /// The folder to put PTX modules and the manifest in.
    pub fn copy_to(mut self, directory: impl AsRef<Path>) -> Self {
        self.copy_to = Some(directory.as_ref().to_owned());
        self
    }

    /// The folder for cargo's intermediate files; `target/gpu` of the workspace if not given.
    pub fn target_dir(mut self, directory: impl AsRef<Path>) -> Self {
        self.target_dir = Some(directory.as_ref().to_owned());
        self
    }

    /// Whether to write a table of source lines next to each module, `ENTRY.lines`: a line `PTX_LINE PATH:LINE:COLUMN`
    /// wherever the source line of the instructions changes. It takes a profile with line tables. Modules never hold them.
    pub fn source_lines(mut self, wanted: bool) -> Self {
        self.source_lines = wanted;
        self
    }

    /// Compiles with the compiler that [`Compiler::find`] finds, and returns the kernels; installs nothing. A kernel
    /// without `#[launch_bounds]` is refused: the number of registers it may use would be the assembler's guess.
    pub fn build(self) -> Result<Build, Error> {
        let crate_dir = self
            .crate_dir
            .canonicalize()
            .map_err(Error::io(&self.crate_dir))?;
        let target_dir = match self.target_dir {
            Some(directory) => std::path::absolute(&directory).map_err(Error::io(directory))?,
            None => crate_dir.parent().unwrap_or(&crate_dir).join("target/gpu"),
        };
        let output = self.copy_to.unwrap_or_else(|| target_dir.join("ptx"));
        std::fs::create_dir_all(&output).map_err(Error::io(&output))?;

        let compiler = Compiler::find(&crate_dir)?;
        let folders = Folders {
            crate_dir: &crate_dir,
            target_dir: &target_dir,
            output: &output,
            source_lines: self.source_lines,
        };
        let compile = |arch| kernels(&compiler, arch, &folders);
        let compile = &compile;
        // In parallel, as each keeps one core busy for most of a minute.
        let of_archs = thread::scope(|scope| {
            let compiling: Vec<_> = self
                .archs
                .iter()
                .map(|arch| scope.spawn(move || compile(arch)))
                .collect();
            compiling
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
                .collect::<Result<Vec<_>, Error>>()
        })?;
        Ok(Build {
            compiler: compiler.version,
            kernels: of_archs.concat(),
        })
    }
}

/// Where a build reads and writes.
struct Folders<'a> {
    crate_dir: &'a Path,
    target_dir: &'a Path,
    output: &'a Path,
    /// Whether tables of source lines go to `output` too.
    source_lines: bool,
}

/// Compiles the crate for `arch`, and writes a module a kernel to `output`.
fn kernels(compiler: &Compiler, arch: &str, folders: &Folders<'_>) -> Result<Vec<Kernel>, Error> {
    let path = cargo::compile(compiler, folders.crate_dir, arch, folders.target_dir)?;
    let raw = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
    let (annotated, files) = annotate(&raw);
    let bounds = launch_bounds(&annotated)?;
    let modules = split(&finish(&annotated)?)?;
    let kernel = |(entry, text): (String, String)| {
        let Some((_, bounds)) = bounds.iter().find(|(name, _)| *name == entry) else {
            return Err(Error::Ptx(format!(
                "kernel {entry} has no #[launch_bounds]"
            )));
        };
        let LaunchBounds {
            threads,
            min_blocks,
            cluster,
        } = *bounds;
        let ptx = folders.output.join(format!("{entry}.ptx"));
        let (text, lines) = separate(&text, &files);
        write_if_changed(&ptx, &text)?;
        if folders.source_lines {
            write_if_changed(&ptx.with_extension(LINES_EXTENSION), &lines)?;
        }
        Ok(Kernel {
            entry,
            arch: arch.to_owned(),
            threads,
            min_blocks,
            cluster,
            dynamic_shared_bytes: None,
            ptx,
            resources: Vec::new(),
        })
    };
    modules.into_iter().map(kernel).collect()
}
