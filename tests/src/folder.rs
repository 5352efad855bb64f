//! A folder to run `ferroflash attend` in.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::command::{self, Outcome};
use crate::files::{self, Dtype, Tensor};

/// A folder with one input file.
pub struct Folder {
    /// The folder, removed when dropped.
    pub dir: TempDir,
}

/// Shape of q in [`tensors`].
pub const Q: [usize; 4] = [2, 5, 4, 16];
/// Shape of k.
pub const K: [usize; 4] = [2, 7, 2, 16];
/// Shape of v.
pub const V: [usize; 4] = [2, 7, 2, 8];

/// q, k and v that fit together, in bshd.
pub fn tensors() -> Vec<Tensor> {
    let shapes = [("q", Q), ("k", K), ("v", V)];
    let tensors = shapes.map(|(name, shape)| Tensor::new(name, Dtype::F32, &shape));
    tensors.to_vec()
}

/// q, k and v of two packed sequences, of 2 and 3 queries and 3 and 4 keys, with their cu_seqlens.
pub fn packed_tensors() -> Vec<Tensor> {
    let shapes = [("q", [5, 4, 16]), ("k", [7, 2, 16]), ("v", [7, 2, 8])];
    let tensors = shapes.map(|(name, shape)| Tensor::new(name, Dtype::F32, &shape));
    let mut tensors = tensors.to_vec();
    tensors.push(Tensor::of_i32s("cu_seqlens_q", &[0, 2, 5]));
    tensors.push(Tensor::of_i32s("cu_seqlens_kv", &[0, 3, 7]));
    tensors
}

impl Folder {
    /// A folder with `tensors` in its input file.
    pub fn with(tensors: &[Tensor]) -> Self {
        let folder = Self {
            dir: TempDir::new().expect("a temporary folder"),
        };
        files::write(&folder.input(), tensors);
        folder
    }

    /// The input file.
    pub fn input(&self) -> PathBuf {
        self.dir.path().join("in.safetensors")
    }

    /// Where [`attend`](Self::attend) writes.
    pub fn output(&self) -> PathBuf {
        self.dir.path().join("out.safetensors")
    }

    /// `ferroflash attend` on the input.
    pub fn attend(&self, arguments: &[&str]) -> Outcome {
        self.attend_to(&self.output(), arguments)
    }

    /// [`attend`](Self::attend) to another output.
    pub fn attend_to(&self, output: &Path, arguments: &[&str]) -> Outcome {
        command::attend(&self.input(), output, arguments)
    }

    /// Asserts that `attend` refuses the input, and returns the argument it names and the rest of the line.
    #[track_caller]
    pub fn refused(&self, arguments: &[&str]) -> (String, String) {
        let outcome = self.attend(arguments);
        let (argument, rest) = outcome.failed(2);
        self.is_untouched();
        (argument.to_owned(), rest.to_owned())
    }

    /// Asserts that nothing but the input is here.
    #[track_caller]
    pub fn is_untouched(&self) {
        let files: Vec<_> = fs::read_dir(self.dir.path())
            .expect("the folder is there")
            .map(|entry| entry.expect("readable").file_name())
            .filter(|name| name != "in.safetensors")
            .collect();
        assert!(files.is_empty(), "left behind: {files:?}");
    }
}
