//! Making and reading safetensors files.

use std::fs;
use std::path::Path;

use safetensors::tensor::TensorView;
pub use safetensors::{Dtype, SafeTensors};

/// A tensor to put into a file.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Its name in the file.
    pub name: &'static str,
    /// Element type.
    pub dtype: Dtype,
    /// Shape in memory order.
    pub shape: Vec<usize>,
    /// Elements.
    pub bytes: Vec<u8>,
}

impl Tensor {
    /// A tensor whose elements differ from each other, in f32, f16 or bf16; zeros in any other type.
    pub fn new(name: &'static str, dtype: Dtype, shape: &[usize]) -> Self {
        let elements: usize = shape.iter().product();
        let salt = name.len() + usize::from(name.as_bytes()[0]);
        let values =
            (0..elements).map(|index| ((index * 37 + salt * 11) % 101) as f32 / 50.0 - 1.0);
        let bytes = match dtype {
            Dtype::F32 => values.flat_map(f32::to_le_bytes).collect(),
            Dtype::F16 => values
                .flat_map(|value| half::f16::from_f32(value).to_le_bytes())
                .collect(),
            Dtype::BF16 => values
                .flat_map(|value| half::bf16::from_f32(value).to_le_bytes())
                .collect(),
            other => vec![0; elements * other.bitsize() / 8],
        };
        Self {
            name,
            dtype,
            shape: shape.to_vec(),
            bytes,
        }
    }
}

impl Tensor {
    /// A tensor of these integers.
    pub fn of_i32s(name: &'static str, values: &[i32]) -> Self {
        Self {
            name,
            dtype: Dtype::I32,
            shape: vec![values.len()],
            bytes: bytemuck::cast_slice(values).to_vec(),
        }
    }

    /// An f32 tensor of these values.
    pub fn of_f32s(name: &'static str, values: &[f32], shape: &[usize]) -> Self {
        Self {
            name,
            dtype: Dtype::F32,
            shape: shape.to_vec(),
            bytes: bytemuck::cast_slice(values).to_vec(),
        }
    }
}

/// Writes a safetensors file.
pub fn write(path: &Path, tensors: &[Tensor]) {
    let views = tensors.iter().map(|tensor| {
        let view = TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes);
        (tensor.name, view.expect("bytes fit the shape"))
    });
    safetensors::serialize_to_file(views, None, path).expect("the file is writable");
}

/// The tensor `name` of a file.
pub fn read(path: &Path, name: &'static str) -> Tensor {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let view = file.tensor(name).expect("the tensor is there");
    Tensor {
        name,
        dtype: view.dtype(),
        shape: view.shape().to_vec(),
        bytes: view.data().to_vec(),
    }
}

/// Elements of an f32 tensor.
pub fn f32s(tensor: &Tensor) -> Vec<f32> {
    assert_eq!(tensor.dtype, Dtype::F32);
    bytemuck::allocation::pod_collect_to_vec(&tensor.bytes)
}

/// The names of a file's tensors.
pub fn names(path: &Path) -> Vec<String> {
    let bytes = fs::read(path).expect("readable");
    let tensors = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let names = tensors.names().into_iter();
    names.map(|name| name.to_string()).collect()
}
