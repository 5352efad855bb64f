//! Result files that arguments name.

use std::fmt::Display;
use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::whole_file::WholeFile;

/// Destination of a result.
pub struct Output {
    argument: &'static str,
    path: PathBuf,
    place: Place,
}

enum Place {
    File(WholeFile),
    /// A device or a FIFO, which is written to, not replaced.
    Special,
}

/// Largest number of links followed in a chain; Linux has the same limit.
const MOST_LINKS: usize = 40;

impl Output {
    /// Checks that `path`, which `argument` names, can be written. A link is followed: its target is written, whether
    /// or not it exists.
    pub fn create(argument: &'static str, path: &Path) -> Result<Self, Failure> {
        let refused = |wrong: String| {
            let wrong = format!("{}: {wrong}", path.display());
            let allowed = "a file name in an existing, writable folder";
            Failure::refused(argument, wrong, allowed)
        };
        let there = fs::metadata(path).ok();
        if there.as_ref().is_some_and(Metadata::is_dir) {
            return Err(refused("it is a folder".to_owned()));
        }
        if there.is_some_and(|there| !there.is_file()) {
            // Opened by the given path, not a link's target: the link to a pipe in /proc names no file.
            return Ok(Self {
                argument,
                path: path.to_owned(),
                place: Place::Special,
            });
        }
        let path = target(path).ok_or_else(|| refused("too many links".to_owned()))?;
        let file = WholeFile::to_become(&path).map_err(|error| refused(error.to_string()))?;
        Ok(Self {
            argument,
            path,
            place: Place::File(file),
        })
    }

    /// Writes `content`, and renames the file to its final name.
    pub fn persist(self, content: &[u8]) -> Result<(), Failure> {
        self.persist_by(|path| fs::write(path, content), || Ok(content))
    }

    /// As [`persist`](Self::persist): `write` writes a file of the given name, and `content` returns the same bytes.
    pub fn persist_by<E: Display, C: AsRef<[u8]>>(
        self,
        write: impl FnOnce(&Path) -> Result<(), E>,
        content: impl FnOnce() -> Result<C, E>,
    ) -> Result<(), Failure> {
        let Self {
            argument,
            path,
            place,
        } = self;
        let failed = |error: &dyn Display, what: &str| {
            Failure::Failed(format!("{argument}: {}: {error}; {what}", path.display()))
        };
        match place {
            Place::File(file) => {
                let nothing = "nothing was written";
                write(file.temporary_path()).map_err(|error| failed(&error, nothing))?;
                file.persist().map_err(|error| failed(&error, nothing))
            }
            Place::Special => {
                let not_all = "not all of it was written";
                let content = content().map_err(|error| failed(&error, not_all))?;
                write_special(&path, content.as_ref()).map_err(|error| failed(&error, not_all))
            }
        }
    }
}

/// Writes to a device or a FIFO. Not by `fs::write`, whose `O_CREAT` Linux may refuse for a FIFO in a folder that all
/// may write to.
fn write_special(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut special = File::options().write(true).open(path)?;
    special.write_all(content)
}

/// The end of the chain of links that starts at `path`, which need not exist; `None` for a cycle.
fn target(path: &Path) -> Option<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        let Ok(link) = fs::read_link(&path) else {
            return Some(path);
        };
        path = path.parent().unwrap_or(Path::new("")).join(link);
    }
    None
}
