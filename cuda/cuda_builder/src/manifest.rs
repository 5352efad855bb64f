//! The manifest: the kernels of a build, with their resources.

use std::path::{Path, PathBuf};

#[cfg(feature = "manifest")]
use serde::{Deserialize, Serialize};

use crate::Error;

/// Name of the file that describes a build, in the folder of its PTX.
pub const FILE_NAME: &str = "manifest.json";

/// The kernels of a build.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "manifest", derive(Serialize, Deserialize))]
pub struct Build {
    /// The compiler, as `rustc --version` prints it.
    pub compiler: String,
    pub kernels: Vec<Kernel>,
}

/// One kernel in a PTX module of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "manifest", derive(Serialize, Deserialize))]
pub struct Kernel {
    /// Name of the kernel in the module.
    pub entry: String,
    /// Architecture it was compiled for, as rustc and ptxas name it.
    pub arch: String,
    /// Threads in a block.
    pub threads: u32,
    /// Blocks an SM must be able to hold.
    pub min_blocks: u32,
    /// Blocks in a cluster; 1 is no cluster.
    pub cluster: u32,
    /// Dynamic shared memory of a launch, bytes, where whoever wrote the manifest knows it.
    #[cfg_attr(
        feature = "manifest",
        serde(default, skip_serializing_if = "Option::is_none")
    )]
    pub dynamic_shared_bytes: Option<u32>,
    /// The module, in the folder of the manifest.
    pub ptx: PathBuf,
    /// Resources that ptxas reported, one entry per architecture; empty where it was not run.
    #[cfg_attr(
        feature = "manifest",
        serde(default, skip_serializing_if = "Vec::is_empty")
    )]
    pub resources: Vec<Resources>,
}

/// Resources of a kernel as ptxas reports them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "manifest", derive(Serialize, Deserialize))]
pub struct Resources {
    /// Architecture it was assembled for.
    pub arch: String,
    /// Registers of a thread at entry.
    pub registers: u32,
    /// Static shared memory, bytes.
    pub static_shared_bytes: u32,
    /// Local memory of a thread, bytes.
    pub stack_bytes: u32,
    pub spill_store_bytes: u32,
    pub spill_load_bytes: u32,
    /// Warnings and performance notes, whole lines.
    pub notes: Vec<String>,
    /// The main loops, where the machine code was disassembled.
    #[cfg_attr(
        feature = "manifest",
        serde(default, skip_serializing_if = "Option::is_none")
    )]
    pub main_loops: Option<MainLoops>,
}

/// The loops of a kernel's machine code in which its matrix products are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "manifest", derive(Serialize, Deserialize))]
pub struct MainLoops {
    /// The matrix instruction that identifies them: `HGMMA` or `HMMA`.
    pub instruction: String,
    /// Number of these instructions in the loops; 0 if there is no such loop.
    pub count: u32,
    /// Instructions in them that load from or store to local memory.
    pub local_accesses: u32,
    /// Instructions in them that overwrite an operand of a product that the loop keeps in registers.
    #[cfg_attr(feature = "manifest", serde(default))]
    pub overwrites: u32,
}

impl Resources {
    /// Bytes a thread spills, stores and loads together.
    pub fn spilled_bytes(&self) -> u32 {
        self.spill_store_bytes + self.spill_load_bytes
    }

    /// Instructions of the main loops that reach local memory.
    pub fn main_loop_local(&self) -> u32 {
        self.main_loops
            .as_ref()
            .map_or(0, |loops| loops.local_accesses)
    }
}

#[cfg(feature = "manifest")]
impl Build {
    /// Writes the manifest into `directory`. Its age then tells which modules it speaks of.
    pub fn write(&self, directory: &Path) -> Result<(), Error> {
        let text = serde_json::to_string_pretty(self).expect("plain data serialises");
        let path = directory.join(FILE_NAME);
        std::fs::write(&path, text + "\n").map_err(Error::io(path))
    }

    /// Reads the manifest of `directory`.
    pub fn read(directory: &Path) -> Result<Self, Error> {
        let path = directory.join(FILE_NAME);
        let text = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
        serde_json::from_str(&text).map_err(|error| Error::Io {
            path,
            source: error.into(),
        })
    }
}

/// Writes `text` unless the file already holds it, so that builds which depend on the file's age do not run again.
pub(crate) fn write_if_changed(path: &Path, text: &str) -> Result<(), Error> {
    if std::fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    std::fs::write(path, text).map_err(Error::io(path))
}
