//! safetensors files, which are checked as they are read.

use std::fs;
use std::path::Path;

use bytemuck::allocation::pod_collect_to_vec;
use ferroflash::{AlibiSlopes, CuSeqlens, DType, HostTensor, Layout, TensorSpec};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use crate::failure::Failure;

/// What `attend` reads.
pub struct Inputs {
    /// Packed if there are `cu_seqlens`.
    pub tensors: [HostTensor; 3],
    pub cu_seqlens: Option<CuSeqlens>,
    pub slopes: Option<AlibiSlopes>,
}

/// The names of [`CuSeqlens`] in a file.
const CU_SEQLENS: [&str; 2] = ["cu_seqlens_q", "cu_seqlens_kv"];
const SLOPES: &str = "alibi_slopes";

/// The tensors q, k and v of a file, its cu_seqlens if it has any, and its slopes, which it has
/// if and only if they are wanted.
pub fn read(path: &Path, layout: Layout, with_slopes: bool) -> Result<Inputs, Failure> {
    let input = |wrong: String, allowed: &str| {
        Failure::refused("INPUT", format!("{}: {wrong}", path.display()), allowed)
    };
    let bytes =
        fs::read(path).map_err(|error| input(error.to_string(), "a safetensors file to read"))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|error| {
        let wrong = format!("it is not a whole safetensors file ({error})");
        input(wrong, "a safetensors file with the tensors q, k and v")
    })?;
    if !with_slopes && file.tensor(SLOPES).is_ok() {
        let wrong = "the file has slopes, and --alibi is not given";
        let allowed = "--alibi to add their biases, or a file without them";
        return Err(Failure::refused(SLOPES, wrong, allowed));
    }
    let is_packed = CU_SEQLENS.iter().any(|name| file.tensor(name).is_ok());
    let operand = |name| operand(&file, name, layout, is_packed);
    Ok(Inputs {
        tensors: [operand("q")?, operand("k")?, operand("v")?],
        cu_seqlens: is_packed.then(|| cu_seqlens(&file)).transpose()?,
        slopes: with_slopes.then(|| slopes(&file)).transpose()?,
    })
}

fn find<'a>(
    file: &SafeTensors<'a>,
    name: &'static str,
    needed: &str,
) -> Result<TensorView<'a>, Failure> {
    file.tensor(name).map_err(|_| {
        let present = file.names().join(", ");
        let wrong = format!("the file has no such tensor, only: {present}");
        Failure::refused(name, wrong, needed)
    })
}

/// One of q, k and v.
fn operand(
    file: &SafeTensors<'_>,
    name: &'static str,
    layout: Layout,
    is_packed: bool,
) -> Result<HostTensor, Failure> {
    let view = find(file, name, "the tensors q, k and v are needed")?;
    let dims = match (view.shape(), is_packed) {
        (&[batch, x, y, dim], false) => [batch, x, y, dim],
        (&[x, y, dim], true) => [1, x, y, dim],
        (dims, _) => {
            let wrong = format!("its shape is {dims:?}, of rank {}", dims.len());
            let allowed = match is_packed {
                false => {
                    "rank 4: [batch, seq, heads, dim] in bshd, [batch, heads, seq, dim] in bhsd; or \
                     rank 3 beside cu_seqlens_q and cu_seqlens_kv"
                }
                true => {
                    "rank 3 beside cu_seqlens: [total, heads, dim] in bshd, [heads, total, dim] in bhsd"
                }
            };
            return Err(Failure::refused(name, wrong, allowed));
        }
    };
    let dtype = match view.dtype() {
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::Bf16,
        other => return Err(wrong_dtype(name, other, "F32, F16 or BF16")),
    };
    let spec = TensorSpec::contiguous(dtype, layout.shape(dims), layout)?;
    Ok(HostTensor::new(spec, 0, view.data().to_vec())?)
}

fn wrong_dtype(name: &'static str, dtype: Dtype, allowed: &str) -> Failure {
    Failure::refused(name, format!("its dtype is {dtype:?}"), allowed)
}

fn cu_seqlens(file: &SafeTensors<'_>) -> Result<CuSeqlens, Failure> {
    let sums = |name| {
        let view = find(
            file,
            name,
            "both cu_seqlens_q and cu_seqlens_kv, or neither",
        )?;
        if view.dtype() != Dtype::I32 {
            return Err(wrong_dtype(name, view.dtype(), "I32"));
        }
        match view.shape() {
            [_] => Ok(pod_collect_to_vec::<u8, i32>(view.data())),
            dims => {
                let wrong = format!("its shape is {dims:?}");
                Err(Failure::refused(name, wrong, "[batch + 1]"))
            }
        }
    };
    let [q, kv] = CU_SEQLENS;
    Ok(CuSeqlens::new(&sums(q)?, &sums(kv)?)?)
}

fn slopes(file: &SafeTensors<'_>) -> Result<AlibiSlopes, Failure> {
    let view = find(file, SLOPES, "the slopes that --alibi asks for")?;
    if view.dtype() != Dtype::F32 {
        return Err(wrong_dtype(SLOPES, view.dtype(), "F32"));
    }
    let slopes = pod_collect_to_vec::<u8, f32>(view.data());
    match view.shape() {
        [_] => Ok(AlibiSlopes::per_head(&slopes)?),
        &[_, heads] => Ok(AlibiSlopes::per_batch(&slopes, heads)?),
        dims => {
            let wrong = format!("its shape is {dims:?}");
            let allowed = "[heads_q] or [batch, heads_q]";
            Err(Failure::refused(SLOPES, wrong, allowed))
        }
    }
}
