//! PTX in the form that a crate embeds.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use crate::manifest::write_if_changed;
use crate::{Build, Error};

/// The file that lists what is embedded.
const TABLE: &str = "modules.rs";

/// Compression level. Higher levels make modules one part in fifty smaller, in three times the time.
const LEVEL: u8 = 6;

impl Build {
    /// Writes every module into `folder`, compressed, and next to them a Rust file, whose path it returns: see
    /// [`build_script::embed`](crate::build_script::embed). The folder may be moved as a whole.
    ///
    /// # Errors
    /// [`Error::Io`] if a file cannot be read or written.
    pub fn embed(&self, folder: &Path) -> Result<PathBuf, Error> {
        fs::create_dir_all(folder).map_err(Error::io(folder))?;
        let mut table = format!("static MODULES: [Module; {}] = [\n", self.kernels.len());
        for kernel in &self.kernels {
            let deflated = format!("{}.ptx.deflate", kernel.entry);
            let bytes = deflate(&kernel.ptx, &folder.join(&deflated))?;
            writeln!(
                table,
                "    Module::new({:?}, {bytes}, include_bytes!({deflated:?})),",
                kernel.entry
            )
            .expect("a string takes all that is written");
        }
        table.push_str("];\n");
        let path = folder.join(TABLE);
        write_if_changed(&path, &table)?;
        Ok(path)
    }
}

/// Compresses the file `ptx` into `deflated`, unless that was done since it changed; returns the size of `ptx`.
fn deflate(ptx: &Path, deflated: &Path) -> Result<usize, Error> {
    let text = fs::read(ptx).map_err(Error::io(ptx))?;
    let age = |path: &Path| fs::metadata(path).and_then(|file| file.modified());
    let is_current = age(deflated).is_ok_and(|done| age(ptx).is_ok_and(|changed| changed < done));
    if !is_current {
        let stream = miniz_oxide::deflate::compress_to_vec(&text, LEVEL);
        fs::write(deflated, stream).map_err(Error::io(deflated))?;
    }
    Ok(text.len())
}
