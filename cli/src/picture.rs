//! `--svg FILE`.

use std::path::Path;

use crate::failure::Failure;
use crate::output::Output;
use crate::say::say;

/// Writes a picture.
pub fn write(path: &Path, svg: &str) -> Result<(), Failure> {
    Output::create("--svg", path)?.persist(svg.as_bytes())?;
    say!("wrote {}", path.display());
    Ok(())
}
