//! Where things are.

use std::path::{Path, PathBuf};

/// The workspace's root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is a folder of the workspace")
}

/// Build outputs that are not cargo's.
pub fn target() -> PathBuf {
    root().join("target")
}

/// PTX modules and their manifest.
pub fn ptx() -> PathBuf {
    target().join("ptx")
}

/// The virtual environment that holds NVIDIA's programs where no CUDA toolkit does.
pub fn tools_venv() -> PathBuf {
    target().join("nvidia-venv")
}
