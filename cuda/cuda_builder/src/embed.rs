//! PTX in the form that a crate embeds.

use std::fs;
use std::num::NonZero;
use std::ops::Range;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;

use ptx_pack::Compression;

use crate::manifest::write_if_changed;
use crate::{Build, Error, Kernel};

/// The file that lists what is embedded.
const TABLE: &str = "modules.rs";

/// The end of a stream's file name. It tells of what it was made and how, so that a file of another is not taken for it.
fn suffix(compression: Compression) -> &'static str {
    match compression {
        Compression::Fast => "fast.ptxpack",
        Compression::Small => "small.ptxpack",
    }
}

/// Most bytes of text that are compressed together, and how far back a repetition may be: kernels of a family share a pack,
/// and reading one takes less than a tenth of a second.
const PACK_BYTES: usize = ptx_pack::WINDOW_BYTES;

/// Kernels that are compressed together.
struct Pack<'a> {
    kernels: Vec<(&'a Kernel, Range<usize>)>,
    bytes: usize,
}

impl<'a> Pack<'a> {
    /// `kernels` in packs, in the order of their names, in which those that are alike are neighbours.
    fn all(kernels: &'a [Kernel]) -> Result<Vec<Self>, Error> {
        let mut kernels: Vec<_> = kernels.iter().collect();
        kernels.sort_by(|a, b| a.entry.cmp(&b.entry));
        let mut packs: Vec<Self> = vec![];
        for kernel in kernels {
            let file = fs::metadata(&kernel.ptx).map_err(Error::io(&kernel.ptx))?;
            let bytes = file.len() as usize;
            match packs.last_mut() {
                Some(last) if last.bytes + bytes <= PACK_BYTES => last.push(kernel, bytes),
                _ => {
                    let place = 0..bytes;
                    let kernels = vec![(kernel, place)];
                    packs.push(Self { kernels, bytes });
                }
            }
        }
        Ok(packs)
    }

    fn push(&mut self, kernel: &'a Kernel, bytes: usize) {
        let end = self.bytes + bytes;
        self.kernels.push((kernel, self.bytes..end));
        self.bytes = end;
    }

    /// File name of the stream: the first and the last kernel, and how many there are. Where others are in a pack of that name,
    /// one of them is newer than the stream.
    fn stream(&self, compression: Compression) -> String {
        let entry = |index: usize| &self.kernels[index].0.entry;
        let (count, suffix) = (self.kernels.len(), suffix(compression));
        format!("{}..{}.{count}.{suffix}", entry(0), entry(count - 1))
    }

    /// Compresses the kernels' files into `stream`, unless that was done since they changed.
    fn compress(&self, stream: &Path, compression: Compression) -> Result<(), Error> {
        let age = |path: &Path| fs::metadata(path).and_then(|file| file.modified());
        let is_current = age(stream).is_ok_and(|done| {
            let is_older = |kernel: &Kernel| age(&kernel.ptx).is_ok_and(|changed| changed < done);
            self.kernels.iter().all(|(kernel, _)| is_older(kernel))
        });
        if is_current {
            return Ok(());
        }
        let mut text = String::with_capacity(self.bytes);
        for (kernel, _) in &self.kernels {
            text += &fs::read_to_string(&kernel.ptx).map_err(Error::io(&kernel.ptx))?;
        }
        ptx_pack::compress(&text, compression)
            .and_then(|bytes| fs::write(stream, bytes))
            .map_err(Error::io(stream))
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
        let packs = Pack::all(&self.kernels)?;
        each_in_parallel(&packs, |pack| {
            pack.compress(&folder.join(pack.stream(compression)), compression)
        })?;
        let path = folder.join(TABLE);
        write_if_changed(&path, &table(&packs, compression))?;
        Ok(path)
    }
}

/// The Rust file that lists `packs` and their kernels.
fn table(packs: &[Pack], compression: Compression) -> String {
    let mut streams = String::new();
    let mut modules = String::new();
    for (index, pack) in packs.iter().enumerate() {
        let (bytes, stream) = (pack.bytes, pack.stream(compression));
        streams += &format!("    Pack::new({bytes}, include_bytes!({stream:?})),\n");
        for (kernel, place) in &pack.kernels {
            let entry = &kernel.entry;
            modules += &format!("    Module::new({entry:?}, &PACKS[{index}], {place:?}),\n");
        }
    }
    let kernels: usize = packs.iter().map(|pack| pack.kernels.len()).sum();
    format!(
        "static PACKS: [Pack; {}] = [\n{streams}];\nstatic MODULES: [Module; {kernels}] = [\n{modules}];\n",
        packs.len()
    )
}

/// `work` on each of `packs`.
fn each_in_parallel(
    packs: &[Pack],
    work: impl Fn(&Pack) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let of_chunk = |chunk: &[Pack]| chunk.iter().try_for_each(&work);
    let of_chunk = &of_chunk;
    thread::scope(|scope| {
        let chunks: Vec<_> = packs
            .chunks(packs.len().div_ceil(threads).max(1))
            .map(|chunk| scope.spawn(move || of_chunk(chunk)))
            .collect();
        let mut results = chunks
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        results.try_for_each(|result| result)
    })
}
