//! Files that are written whole or not at all.
//!
//! Each is written under another name in the same folder, and renamed when it is whole. Otherwise nothing of it stays:
//! not after an error, and not after a signal or for want of memory either, when no destructor runs.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::NamedTempFile;

use crate::signals;

/// A file under its temporary name, which is removed when this is dropped.
pub struct WholeFile {
    temporary: NamedTempFile,
    path: PathBuf,
}

/// The temporary names in use. A thread that adds or removes one holds the lock until the folder agrees.
static NAMES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn names() -> MutexGuard<'static, Vec<PathBuf>> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes all temporary files. None is made or renamed afterwards, since the program is about to end.
fn abandon() {
    remove(names());
}

/// As [`abandon`], for a thread that may hold the lock itself: removes nothing if the lock is taken.
pub fn abandon_unless_busy() {
    if let Ok(names) = NAMES.try_lock() {
        remove(names);
    }
}

fn remove(names: MutexGuard<Vec<PathBuf>>) {
    for name in names.iter() {
        let _ = fs::remove_file(name);
    }
    // The lock is never released.
    std::mem::forget(names);
}

impl WholeFile {
    /// A new file that is to become `path`, with the mode of an existing file there, which has to be writable.
    pub fn to_become(path: &Path) -> io::Result<Self> {
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        // The mode of any new file, before the user's umask.
        let mut mode = 0o666;
        if path.exists() {
            let there = File::options().write(true).open(path)?;
            mode = there.metadata()?.permissions().mode();
        }
        let permissions = fs::Permissions::from_mode(mode);
        signals::watch(abandon);
        let mut names = names();
        let temporary = tempfile::Builder::new()
            .prefix(".ferroflash-")
            .suffix(".partial")
            .permissions(permissions.clone())
            .tempfile_in(folder)?;
        names.push(temporary.path().to_owned());
        drop(names);
        if path.exists() {
            // Again without the umask, which does not apply to an existing file's mode.
            temporary.as_file().set_permissions(permissions)?;
        }
        let path = path.to_owned();
        Ok(Self { temporary, path })
    }

    /// The temporary name, to which the content is written.
    pub fn temporary_path(&self) -> &Path {
        self.temporary.path()
    }

    /// Renames it to its final name, replacing a file of that name.
    pub fn persist(self) -> io::Result<()> {
        let mut names = names();
        let name = self.temporary.path().to_owned();
        self.temporary.persist(&self.path)?;
        names.retain(|other| *other != name);
        Ok(())
    }
}
