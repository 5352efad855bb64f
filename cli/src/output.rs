//! Files that arguments name, for results.

use std::fmt::Display;
use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::whole_file::WholeFile;

/// Where results go.
pub struct Output {
    argument: &'static str,
    path: PathBuf,
    place: Place,
}

enum Place {
    File(WholeFile),
    /// A device or a FIFO, which is written and not replaced.
    Special,
}

/// Links that are followed before a chain of them is refused, as Linux does.
const MOST_LINKS: usize = 40;

impl Output {
    /// Checks that `path`, which `argument` names, can be written. A link is followed: what it points to is written,
    /// there or not.
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
            // Not by what a link says: that of a pipe in /proc names no file.
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

    /// Writes `content`, and puts the file in its place.
    pub fn persist(self, content: &[u8]) -> Result<(), Failure> {
        self.persist_by(|path| fs::write(path, content), || Ok(content))
    }

    /// As [`persist`](Self::persist): `write` writes a file of a name, and `content` is what it writes.
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

/// Not `fs::write`, which asks for a new file: Linux lets nobody make one of a FIFO in a folder that all may write to.
fn write_special(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut special = File::options().write(true).open(path)?;
    special.write_all(content)
}

/// What `path` names once links are followed; `None` if they go round in circles. The last one may point to nothing.
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
