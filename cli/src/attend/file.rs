//! The input file of `attend`, checked while it is read.

use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::TensorInfo;

use super::tensor_file::{TensorFile, Unusable};
use crate::failure::Failure;
use crate::words::shortened;

/// Limits of a list of a file's names: characters of each, and how many.
const MOST_OF_NAME: usize = 40;
const MOST_NAMES: usize = 20;

/// An input file, with the path that the user gave.
pub struct File {
    path: PathBuf,
    tensors: TensorFile,
}

impl File {
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let input = |wrong: String, allowed: &str| {
            Failure::refused("INPUT", format!("{}: {wrong}", path.display()), allowed)
        };
        let tensors = TensorFile::open(path).map_err(|error| match error {
            Unusable::Io(error) => input(error.to_string(), "a safetensors file to read"),
            Unusable::Content(wrong) => input(
                format!("it is not a whole safetensors file ({wrong})"),
                "a safetensors file with the tensors q, k and v",
            ),
        })?;
        let path = path.to_owned();
        Ok(Self { path, tensors })
    }

    /// Dtype and shape of a tensor, if there is one of this name.
    pub fn info(&self, name: &str) -> Option<TensorInfo> {
        self.tensors.info(name).cloned()
    }

    /// The same of a tensor that is `needed`.
    pub fn find(&self, name: &'static str, needed: &str) -> Result<TensorInfo, Failure> {
        let info = self.tensors.info(name).cloned();
        info.ok_or_else(|| {
            let wrong = format!("the file has no such tensor, only: {}", self.names());
            Failure::refused(name, wrong, needed)
        })
    }

    /// The names of its tensors, shortened, at most [`MOST_NAMES`] of them.
    fn names(&self) -> String {
        let names = self.tensors.names();
        let shown = names.iter().take(MOST_NAMES);
        let shown: Vec<_> = shown.map(|name| shortened(name, MOST_OF_NAME)).collect();
        match names.len() - shown.len() {
            0 => shown.join(", "),
            more => format!("{} and {more} more", shown.join(", ")),
        }
    }

    /// The bytes of a tensor.
    pub fn read(&mut self, info: &TensorInfo) -> Result<Vec<u8>, Failure> {
        self.tensors.read(info).map_err(|error| {
            let wrong = format!("INPUT: {}: {error}", self.path.display());
            Failure::Failed(format!("{wrong}; it has to stay as it is while it is read"))
        })
    }
}

/// The refusal of a tensor whose dtype is not one of those `allowed`.
pub fn wrong_dtype(name: &'static str, dtype: Dtype, allowed: &str) -> Failure {
    Failure::refused(name, format!("its dtype is {dtype:?}"), allowed)
}
