//! PTX in the form that a crate embeds.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write};
use std::num::NonZero;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;

use lzma_rust2::{LzmaOptions, LzmaWriter};

use crate::manifest::write_if_changed;
use crate::{Build, Error, Kernel};

/// The file that lists what is embedded.
const TABLE: &str = "modules.rs";

/// How much time compression may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// For a build that is tried here: a ninth of the text's size.
    Fast,
    /// For a build that is given away: a fifth smaller, in six times the time.
    Small,
}

impl Compression {
    fn options(self) -> LzmaOptions {
        let preset = match self {
            Compression::Fast => 1,
            Compression::Small => 6,
        };
        LzmaOptions {
            // More than the longest module.
            dict_size: 1 << 20,
            // Text has no alignment that would foretell a byte.
            pb: 0,
            ..LzmaOptions::with_preset(preset)
        }
    }

    /// The end of a stream's file name. It tells the two apart, so that a file of one is not taken for the other's.
    fn suffix(self) -> &'static str {
        match self {
            Compression::Fast => "fast.lzma",
            Compression::Small => "lzma",
        }
    }
}

impl Build {
    /// Writes every module into `folder`, compressed, and next to them a Rust file, whose path it returns: see
    /// [`build_script::embed`](crate::build_script::embed). The folder may be moved as a whole.
    ///
    /// # Errors
    /// [`Error::Io`] if a file cannot be read or written.
    pub fn embed(&self, folder: &Path, compression: Compression) -> Result<PathBuf, Error> {
        fs::create_dir_all(folder).map_err(Error::io(folder))?;
        let stream = |kernel: &Kernel| format!("{}.ptx.{}", kernel.entry, compression.suffix());
        let sizes = each_in_parallel(&self.kernels, |kernel| {
            compress(&kernel.ptx, &folder.join(stream(kernel)), compression)
        })?;
        let mut table = format!("static MODULES: [Module; {}] = [\n", self.kernels.len());
        for (kernel, bytes) in self.kernels.iter().zip(sizes) {
            writeln!(
                table,
                "    Module::new({:?}, {bytes}, include_bytes!({:?})),",
                kernel.entry,
                stream(kernel)
            )
            .expect("a string takes all that is written");
        }
        table.push_str("];\n");
        let path = folder.join(TABLE);
        write_if_changed(&path, &table)?;
        Ok(path)
    }
}

/// The results of `work` on each kernel, in their order.
fn each_in_parallel<T: Send>(
    kernels: &[Kernel],
    work: impl Fn(&Kernel) -> Result<T, Error> + Sync,
) -> Result<Vec<T>, Error> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let of_chunk = |chunk: &[Kernel]| chunk.iter().map(&work).collect();
    let of_chunk = &of_chunk;
    thread::scope(|scope| {
        let chunks: Vec<_> = kernels
            .chunks(kernels.len().div_ceil(threads).max(1))
            .map(|chunk| scope.spawn(move || of_chunk(chunk)))
            .collect();
        let results = chunks
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
            .collect::<Result<Vec<Vec<T>>, Error>>()?;
        Ok(results.into_iter().flatten().collect())
    })
}

/// Compresses the file `ptx` into `stream`, unless that was done since it changed; returns the size of `ptx`.
fn compress(ptx: &Path, stream: &Path, compression: Compression) -> Result<usize, Error> {
    let text = fs::read(ptx).map_err(Error::io(ptx))?;
    let age = |path: &Path| fs::metadata(path).and_then(|file| file.modified());
    let is_current = age(stream).is_ok_and(|done| age(ptx).is_ok_and(|changed| changed < done));
    if !is_current {
        lzma(&text, compression)
            .and_then(|bytes| fs::write(stream, bytes))
            .map_err(Error::io(stream))?;
    }
    Ok(text.len())
}

/// `text` as a .lzma file: 13 bytes that say how to read it, and the stream.
fn lzma(text: &[u8], compression: Compression) -> io::Result<Vec<u8>> {
    let size = Some(text.len() as u64);
    let mut writer = LzmaWriter::new_use_header(Vec::new(), &compression.options(), size)?;
    writer.write_all(text)?;
    writer.finish()
}
