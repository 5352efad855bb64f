//! `--svg FILE`.

use std::fs;
use std::path::Path;

use crate::failure::Failure;
use crate::say::say;

/// Writes a picture.
pub fn write(path: &Path, svg: &str) -> Result<(), Failure> {
    fs::write(path, svg).map_err(|error| {
        Failure::refused(
            "--svg",
            format!("{}: {error}", path.display()),
            "a file name in an existing, writable folder",
        )
    })?;
    say!("wrote {}", path.display());
    Ok(())
}
