//! The output file of `attend`.

use std::collections::HashMap;

use ferroflash::{DType, Error, HostTensor, Layout, Shape};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::failure::Failure;
use crate::output::Output;

/// The tensors of the output file.
pub struct Results {
    dtype: DType,
    layout: Layout,
    is_packed: bool,
    tensors: Vec<(&'static str, HostTensor, Vec<usize>)>,
}

impl Results {
    /// None yet, of a file of this dtype and layout.
    pub fn new(dtype: DType, layout: Layout, is_packed: bool) -> Self {
        Self {
            dtype,
            layout,
            is_packed,
            tensors: Vec::new(),
        }
    }

    /// Adds a tensor in the file's dtype and layout.
    pub fn add(&mut self, name: &'static str, tensor: HostTensor) -> Result<(), Error> {
        let tensor = match tensor.spec().dtype == self.dtype {
            true => tensor,
            false => tensor.convert(self.dtype, self.layout)?,
        };
        let dims = self.layout.dims(tensor.spec().shape)[self.axes()].to_vec();
        self.tensors.push((name, tensor, dims));
        Ok(())
    }

    /// Adds lse, which has no axis of components in a file.
    pub fn add_lse(&mut self, lse: HostTensor) {
        let Shape {
            batch, heads, seq, ..
        } = lse.spec().shape;
        let dims = [batch, heads, seq][self.axes()].to_vec();
        self.tensors.push(("lse", lse, dims));
    }

    /// Adds the gradient by a parameter of each head, in f32 and with the axes of the parameters.
    pub fn add_of_heads(&mut self, name: &'static str, tensor: HostTensor, is_batched: bool) {
        let Shape { batch, heads, .. } = tensor.spec().shape;
        let dims = [batch, heads][usize::from(!is_batched)..].to_vec();
        self.tensors.push((name, tensor, dims));
    }

    /// Adds the gradient by a bias, in f32 and of the bias's shape.
    pub fn add_bias(&mut self, tensor: HostTensor) {
        let Shape {
            batch,
            heads,
            seq,
            dim,
        } = tensor.spec().shape;
        self.tensors
            .push(("d_bias", tensor, vec![batch, heads, seq, dim]));
    }

    /// The axes that a file has: packed tensors have none of batch.
    fn axes(&self) -> std::ops::RangeFrom<usize> {
        usize::from(self.is_packed)..
    }

    pub fn write(&self, output: Output) -> Result<(), Failure> {
        let layout = match self.layout {
            Layout::Bshd => "bshd",
            Layout::Bhsd => "bhsd",
        };
        let metadata = HashMap::from([("layout".to_owned(), layout.to_owned())]);
        let views = || self.tensors.iter().map(view);
        output.persist_by(
            |path| safetensors::serialize_to_file(views(), Some(metadata.clone()), path),
            || safetensors::serialize(views(), Some(metadata.clone())),
        )
    }
}

fn view<'a>(
    (name, tensor, dims): &'a (&'static str, HostTensor, Vec<usize>),
) -> (&'static str, TensorView<'a>) {
    let dtype = match tensor.spec().dtype {
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::Bf16 => Dtype::BF16,
        DType::E4m3 => Dtype::F8_E4M3,
    };
    let view = TensorView::new(dtype, dims.clone(), tensor.bytes());
    (*name, view.expect("a dense tensor's bytes fit its shape"))
}
