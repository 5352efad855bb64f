//! The file that `attend --output` names.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ferroflash::{DType, HostTensor};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use tempfile::NamedTempFile;

use crate::failure::Failure;

/// Where results go.
pub struct Output {
    path: PathBuf,
    place: Place,
}

enum Place {
    /// A file that is put under its name when it is whole: in the same folder, so that renaming it is one step; removed
    /// when dropped. It has the mode of the file it replaces.
    File(NamedTempFile),
    /// A device or a FIFO, which is written and not replaced.
    Special,
}

/// Links that are followed before a chain of them is refused, as Linux does.
const MOST_LINKS: usize = 40;

impl Output {
    /// Checks that `path` can be written. A link is followed: what it points to is written, there or not.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let refused = |wrong: String| {
            let wrong = format!("{}: {wrong}", path.display());
            let allowed = "a file name in an existing, writable folder";
            Failure::refused("--output", wrong, allowed)
        };
        let there = fs::metadata(path).ok();
        if there.as_ref().is_some_and(Metadata::is_dir) {
            return Err(refused("it is a folder".to_owned()));
        }
        if there.is_some_and(|there| !there.is_file()) {
            // Not by what a link says: that of a pipe in /proc names no file.
            return Ok(Self {
                path: path.to_owned(),
                place: Place::Special,
            });
        }
        let path = target(path).ok_or_else(|| refused("too many links".to_owned()))?;
        let file = beside(&path).map_err(|error| refused(error.to_string()))?;
        Ok(Self {
            path,
            place: Place::File(file),
        })
    }

    /// Writes `tensors`, given with their shapes in file order, and puts the file in its place.
    pub fn persist(
        self,
        tensors: &[(&str, &HostTensor, Vec<usize>)],
        metadata: HashMap<String, String>,
    ) -> Result<(), Failure> {
        let failed = |error: &dyn std::fmt::Display, what: &str| {
            let path = self.path.display();
            Failure::Failed(format!("--output: {path}: {error}; {what}"))
        };
        let views = tensors.iter().map(view);
        match self.place {
            Place::File(temporary) => {
                let nothing = "nothing was written";
                safetensors::serialize_to_file(views, Some(metadata), temporary.path())
                    .map_err(|error| failed(&error, nothing))?;
                let placed = temporary.persist(&self.path);
                placed.map_err(|error| failed(&error.error, nothing))?;
            }
            Place::Special => {
                let not_all = "not all of it was written";
                let bytes = safetensors::serialize(views, Some(metadata))
                    .map_err(|error| failed(&error, not_all))?;
                let written = File::options().write(true).open(&self.path);
                written
                    .and_then(|mut special| special.write_all(&bytes))
                    .map_err(|error| failed(&error, not_all))?;
            }
        }
        Ok(())
    }
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

/// A new file in the folder of `path`, with the mode of the file that is there, which has to be writable.
fn beside(path: &Path) -> std::io::Result<NamedTempFile> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    // Like any new file, as far as the user's umask lets it be.
    let mut mode = 0o666;
    if path.exists() {
        let there = File::options().write(true).open(path)?;
        mode = there.metadata()?.permissions().mode();
    }
    let permissions = fs::Permissions::from_mode(mode);
    let temporary = tempfile::Builder::new()
        .prefix(".ferroflash-")
        .suffix(".partial")
        .permissions(permissions.clone())
        .tempfile_in(folder)?;
    if path.exists() {
        // The umask is not asked of a file that is there.
        temporary.as_file().set_permissions(permissions)?;
    }
    Ok(temporary)
}

fn view<'a>(
    (name, tensor, dims): &'a (&str, &HostTensor, Vec<usize>),
) -> (&'a str, TensorView<'a>) {
    let dtype = match tensor.spec().dtype {
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::Bf16 => Dtype::BF16,
    };
    let view = TensorView::new(dtype, dims.clone(), tensor.bytes());
    (*name, view.expect("a dense tensor's bytes fit its shape"))
}
