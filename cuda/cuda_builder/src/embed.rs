//! PTX in the form that a crate embeds.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZero;
use std::ops::Range;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, process, thread};

use ptx_pack::{Compression, compress, decompress};

use crate::manifest::write_if_changed;
use crate::{Build, Error, Kernel};

/// The file that lists what is embedded.
const TABLE: &str = "modules.rs";

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

    /// File name of the stream: the first and the last kernel, and how many there are.
    fn stream(&self) -> String {
        let entry = |index: usize| &self.kernels[index].0.entry;
        let count = self.kernels.len();
        format!("{}..{}.{count}.ptxpack", entry(0), entry(count - 1))
    }

    /// Writes the kernels' files, compressed, to `stream`.
    fn write(&self, stream: &Path, compression: Compression, kept: &Path) -> Result<(), Error> {
        let mut text = String::with_capacity(self.bytes);
        for (kernel, _) in &self.kernels {
            text += &fs::read_to_string(&kernel.ptx).map_err(Error::io(&kernel.ptx))?;
        }
        let compressed = compressed(&text, compression, kept)?;
        fs::write(stream, compressed).map_err(Error::io(stream))
    }
}

/// `text`, compressed, or what the folder `kept` has of it from another build, which takes most of a minute less of a small one.
fn compressed(text: &str, compression: Compression, kept: &Path) -> Result<Vec<u8>, Error> {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let name = format!("{:016x}.{compression:?}", hasher.finish());
    let path = kept.join(&name);
    // What was compressed in another way, or is of another text with the same hash, does not come out as this text.
    let is_of_text = |bytes: &Vec<u8>| decompress(bytes, text.len()).is_ok_and(|old| old == text);
    if let Some(bytes) = fs::read(&path).ok().filter(is_of_text) {
        return Ok(bytes);
    }
    // Under another name until it is whole: other builds may run at the same time.
    let partial = kept.join(format!("{name}.{}", process::id()));
    let bytes = compress(text, compression).map_err(Error::io(&path))?;
    fs::write(&partial, &bytes)
        .and_then(|()| fs::rename(&partial, &path))
        .map_err(Error::io(&path))?;
    Ok(bytes)
}

impl Build {
    /// Writes every module into `folder`, compressed, and next to them a Rust file, whose path it returns: see
    /// [`build_script::embed`](crate::build_script::embed). The folder may be moved as a whole. What is compressed stays in the folder
    /// `kept` too, and is not compressed again.
    ///
    /// # Errors
    /// [`Error::Io`] if a file cannot be read or written.
    pub fn embed(
        &self,
        folder: &Path,
        compression: Compression,
        kept: &Path,
    ) -> Result<PathBuf, Error> {
        for folder in [folder, kept] {
            fs::create_dir_all(folder).map_err(Error::io(folder))?;
        }
        let packs = Pack::all(&self.kernels)?;
        each_in_parallel(&packs, |pack| {
            pack.write(&folder.join(pack.stream()), compression, kept)
        })?;
        let path = folder.join(TABLE);
        write_if_changed(&path, &table(&packs))?;
        Ok(path)
    }
}

/// The Rust file that lists `packs` and their kernels.
fn table(packs: &[Pack]) -> String {
    let mut streams = String::new();
    let mut modules = String::new();
    for (index, pack) in packs.iter().enumerate() {
        let (bytes, stream) = (pack.bytes, pack.stream());
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
    let next = AtomicUsize::new(0);
    let rest = || {
        let mut packs = std::iter::from_fn(|| packs.get(next.fetch_add(1, Ordering::Relaxed)));
        packs.try_for_each(&work)
    };
    thread::scope(|scope| {
        let started: Vec<_> = (0..threads.min(packs.len()))
            .map(|_| scope.spawn(rest))
            .collect();
        let mut results = started
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        results.try_for_each(|result| result)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_taken_where_it_is_of_the_text() {
        let folder = tempfile::tempdir().unwrap();
        let kept = folder.path();
        let text = ".version 8.1\nadd.f32 %f1, %f2, %f2;\n".repeat(100);
        let fast = compressed(&text, Compression::Fast, kept).unwrap();
        let files: Vec<_> = fs::read_dir(kept).unwrap().collect();
        let [Ok(file)] = &files[..] else {
            panic!("{files:?}");
        };
        // Of the text too, but other bytes.
        let small = compress(&text, Compression::Small).unwrap();
        assert_ne!(small, fast);
        fs::write(file.path(), &small).unwrap();
        assert_eq!(compressed(&text, Compression::Fast, kept).unwrap(), small);
        let of_another = compress(&text.replace('1', "3"), Compression::Fast).unwrap();
        for spoilt in [&of_another[..], b"nothing"] {
            fs::write(file.path(), spoilt).unwrap();
            assert_eq!(compressed(&text, Compression::Fast, kept).unwrap(), fast);
            assert_eq!(fs::read(file.path()).unwrap(), fast);
        }
    }
}
