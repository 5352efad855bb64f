//! safetensors files: inputs are checked as they are read, outputs appear whole or not at all.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ferroflash::{DType, HostTensor, Layout, TensorSpec};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use tempfile::NamedTempFile;

use crate::failure::Failure;

/// The tensors of a file, `names` in order.
pub fn read<const COUNT: usize>(
    path: &Path,
    names: [&'static str; COUNT],
    layout: Layout,
) -> Result<[HostTensor; COUNT], Failure> {
    let input = |wrong: String, allowed: &str| {
        Failure::refused("INPUT", format!("{}: {wrong}", path.display()), allowed)
    };
    let bytes =
        fs::read(path).map_err(|error| input(error.to_string(), "a safetensors file to read"))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|error| {
        let wrong = format!("it is not a whole safetensors file ({error})");
        input(wrong, "a safetensors file with the tensors q, k and v")
    })?;
    let tensors = names.map(|name| tensor(&file, name, layout));
    // `[Result; N]` has no collect: the first failure is taken out, then none is left.
    let mut taken = Vec::with_capacity(COUNT);
    for tensor in tensors {
        taken.push(tensor?);
    }
    Ok(taken.try_into().expect("as many tensors as names"))
}

fn tensor(
    file: &SafeTensors<'_>,
    name: &'static str,
    layout: Layout,
) -> Result<HostTensor, Failure> {
    let view = file.tensor(name).map_err(|_| {
        let present = file.names().join(", ");
        Failure::refused(
            name,
            format!("the file has no such tensor, only: {present}"),
            "the tensors q, k and v are needed",
        )
    })?;
    let dims: [usize; 4] = view.shape().try_into().map_err(|_| {
        Failure::refused(
            name,
            format!(
                "its shape is {:?}, of rank {}",
                view.shape(),
                view.shape().len()
            ),
            "rank 4: [batch, seq, heads, dim] in bshd, [batch, heads, seq, dim] in bhsd",
        )
    })?;
    let dtype = match view.dtype() {
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::Bf16,
        other => {
            return Err(Failure::refused(
                name,
                format!("its dtype is {other:?}"),
                "F32, F16 or BF16",
            ));
        }
    };
    let spec = TensorSpec::contiguous(dtype, layout.shape(dims), layout)?;
    Ok(HostTensor::new(spec, 0, view.data().to_vec())?)
}

/// A file that does not exist under its name before [`persist`](Output::persist).
pub struct Output {
    path: PathBuf,
    /// In the same folder, so that renaming it is one step; removed when dropped.
    temporary: NamedTempFile,
}

impl Output {
    /// Checks that `path` can be written.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let refused = |wrong: String| {
            let wrong = format!("{}: {wrong}", path.display());
            Failure::refused(
                "--output",
                wrong,
                "a file name in an existing, writable folder",
            )
        };
        if path.is_dir() {
            return Err(refused("it is a folder".to_owned()));
        }
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let temporary = tempfile::Builder::new()
            .prefix(".ferroflash-")
            .suffix(".partial")
            // Readable like any new file, as far as the user's umask lets it be.
            .permissions(fs::Permissions::from_mode(0o666))
            .tempfile_in(folder)
            .map_err(|error| refused(error.to_string()))?;
        Ok(Self {
            path: path.to_owned(),
            temporary,
        })
    }

    /// Writes `tensors`, given with their shapes in file order, and puts the file in its place.
    pub fn persist(
        self,
        tensors: &[(&str, &HostTensor, Vec<usize>)],
        metadata: HashMap<String, String>,
    ) -> Result<(), Failure> {
        let failed = |error: String| {
            Failure::Failed(format!(
                "--output: {}: {error}; nothing was written",
                self.path.display()
            ))
        };
        let views: Vec<_> = tensors
            .iter()
            .map(|(name, tensor, dims)| {
                let dtype = match tensor.spec().dtype {
                    DType::F32 => Dtype::F32,
                    DType::F16 => Dtype::F16,
                    DType::Bf16 => Dtype::BF16,
                };
                let view = TensorView::new(dtype, dims.clone(), tensor.bytes());
                (*name, view.expect("a dense tensor's bytes fit its shape"))
            })
            .collect();
        safetensors::serialize_to_file(views, Some(metadata), self.temporary.path())
            .map_err(|error| failed(error.to_string()))?;
        self.temporary.persist(&self.path).map_err(|error| {
            Failure::Failed(format!(
                "--output: {}: {}; nothing was written",
                self.path.display(),
                error.error
            ))
        })?;
        Ok(())
    }
}
