//! NVIDIA's disassembler.

use std::path::Path;
use std::process::Command;

use crate::{Error, run};

/// The basic blocks of `cubin` and the branches between them, as a graph in Graphviz's language: a node a block, its
/// instructions the node's label.
///
/// # Errors
/// [`Error::Spawn`] or [`Error::Failed`] if nvdisasm cannot read the file.
pub fn control_flow(nvdisasm: &Path, cubin: &Path) -> Result<String, Error> {
    let mut command = Command::new(nvdisasm);
    command.arg("--output-control-flow-graph-with-basic-blocks");
    run::checked(command.arg(cubin))
}
