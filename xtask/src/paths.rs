//! Folders of the workspace.

use std::path::{Path, PathBuf};

/// The workspace's root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is a folder of the workspace")
}

/// The folder of build outputs that are not cargo's.
pub fn target() -> PathBuf {
    root().join("target")
}

/// The folder of PTX modules and their manifest.
pub fn ptx() -> PathBuf {
    target().join("ptx")
}

/// The folder of what is made on the way to PTX, which build scripts share (`.cargo/config.toml`).
pub fn gpu() -> PathBuf {
    target().join("gpu")
}

/// The folder into which tests write what they executed of the kernels.
pub fn coverage() -> PathBuf {
    target().join("coverage")
}

/// The virtual environment that holds NVIDIA's programs if no CUDA toolkit is installed.
pub fn tools_venv() -> PathBuf {
    target().join("nvidia-venv")
}
