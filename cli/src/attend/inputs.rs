//! What `attend` reads of its input file.

use std::path::Path;

use bytemuck::allocation::pod_collect_to_vec;
use ferroflash::{AlibiSlopes, CuSeqlens, DType, ForwardOptions, HostTensor, Layout, TensorSpec};
use safetensors::Dtype;
use safetensors::tensor::TensorInfo;

use super::cache::{self, CacheArrays};
use super::file::{File, wrong_dtype};
use super::modifiers::{self, BlockArgs};
use crate::failure::Failure;

/// The inputs of `attend`.
pub struct Inputs {
    /// Packed if there are `cu_seqlens`.
    pub tensors: [HostTensor; 3],
    pub cu_seqlens: Option<CuSeqlens>,
    pub slopes: Option<AlibiSlopes>,
    /// The loss's gradient by o.
    pub d_o: Option<HostTensor>,
    /// The options, with the modifiers that the file has.
    pub options: ForwardOptions,
    /// Of a cache, whose pages k and v then are.
    pub cache: Option<CacheArrays>,
}

/// Tensors that a file has if and only if they are asked for.
#[derive(Clone, Copy)]
pub struct Asked {
    pub slopes: bool,
    pub d_o: bool,
}

/// The names of [`CuSeqlens`] in a file.
const CU_SEQLENS: [&str; 2] = ["cu_seqlens_q", "cu_seqlens_kv"];
const SLOPES: &str = "alibi_slopes";
const D_O: &str = "d_o";

/// Reads q, k and v of a file, its cu_seqlens if it has any, and of the other tensors those that are asked for, which must be
/// there exactly then.
pub fn read(
    path: &Path,
    layout: Layout,
    asked: Asked,
    blocks: &BlockArgs,
    options: ForwardOptions,
) -> Result<Inputs, Failure> {
    let mut file = File::open(path)?;
    if !asked.slopes && file.info(SLOPES).is_some() {
        let wrong = "the file has slopes, and --alibi is not given";
        let allowed = "--alibi to add their biases, or a file without them";
        return Err(Failure::refused(SLOPES, wrong, allowed));
    }
    if !asked.d_o && file.info(D_O).is_some() {
        let wrong = "the file has a gradient by o, and --backward is not given";
        let allowed = "--backward to compute dq, dk and dv, or a file without it";
        return Err(Failure::refused(D_O, wrong, allowed));
    }
    let is_packed = CU_SEQLENS.iter().any(|name| file.info(name).is_some());
    // Small tensors first, so that errors in them are found before q, k and v are read.
    let cu_seqlens = is_packed.then(|| cu_seqlens(&mut file)).transpose()?;
    let slopes = asked.slopes.then(|| slopes(&mut file)).transpose()?;
    let cache = cache::read(&mut file, layout)?;
    let options = modifiers::read(&mut file, blocks, options)?;
    let inputs = "the tensors q, k and v are needed";
    let place = Place {
        layout,
        is_packed,
        has_cache: cache.is_some(),
    };
    let [q, k, v] = ["q", "k", "v"].map(|name| operand(&file, name, inputs, place));
    let needed = "the gradient by o that --backward asks for";
    let d_o = || operand(&file, D_O, needed, place);
    let d_o = asked.d_o.then(d_o).transpose()?;
    let mut read =
        |(info, spec)| -> Result<_, Failure> { Ok(HostTensor::new(spec, 0, file.read(&info)?)?) };
    Ok(Inputs {
        tensors: [read(q?)?, read(k?)?, read(v?)?],
        cu_seqlens,
        slopes,
        d_o: d_o.map(read).transpose()?,
        options,
        cache,
    })
}

/// How operands lie in the file.
#[derive(Clone, Copy)]
struct Place {
    layout: Layout,
    is_packed: bool,
    /// Whether k and v are a cache's.
    has_cache: bool,
}

/// One of q, k, v and d_o.
fn operand(
    file: &File,
    name: &'static str,
    needed: &str,
    place: Place,
) -> Result<(TensorInfo, TensorSpec), Failure> {
    let Place {
        layout, is_packed, ..
    } = place;
    let info = file.find(name, needed)?;
    let dims = match (info.shape.as_slice(), is_packed) {
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
    let may_be_e4m3 = place.has_cache && name != "q";
    let dtype = match info.dtype {
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::Bf16,
        Dtype::F8_E4M3 if may_be_e4m3 => DType::E4m3,
        other if may_be_e4m3 => {
            return Err(wrong_dtype(name, other, "F32, F16, BF16 or F8_E4M3"));
        }
        other => return Err(wrong_dtype(name, other, "F32, F16 or BF16")),
    };
    let spec = TensorSpec::contiguous(dtype, layout.shape(dims), layout)?;
    Ok((info, spec))
}

fn cu_seqlens(file: &mut File) -> Result<CuSeqlens, Failure> {
    let mut sums = |name| {
        let needed = "both cu_seqlens_q and cu_seqlens_kv, or neither";
        let info = file.find(name, needed)?;
        if info.dtype != Dtype::I32 {
            return Err(wrong_dtype(name, info.dtype, "I32"));
        }
        match info.shape.as_slice() {
            [_] => Ok(pod_collect_to_vec::<u8, i32>(&file.read(&info)?)),
            dims => {
                let wrong = format!("its shape is {dims:?}");
                Err(Failure::refused(name, wrong, "[batch + 1]"))
            }
        }
    };
    let [q, kv] = CU_SEQLENS;
    Ok(CuSeqlens::new(&sums(q)?, &sums(kv)?)?)
}

fn slopes(file: &mut File) -> Result<AlibiSlopes, Failure> {
    let info = file.find(SLOPES, "the slopes that --alibi asks for")?;
    if info.dtype != Dtype::F32 {
        return Err(wrong_dtype(SLOPES, info.dtype, "F32"));
    }
    let slopes = pod_collect_to_vec::<u8, f32>(&file.read(&info)?);
    match info.shape.as_slice() {
        [_] => Ok(AlibiSlopes::per_head(&slopes)?),
        &[_, heads] => Ok(AlibiSlopes::per_batch(&slopes, heads)?),
        dims => {
            let wrong = format!("its shape is {dims:?}");
            let allowed = "[heads_q] or [batch, heads_q]";
            Err(Failure::refused(SLOPES, wrong, allowed))
        }
    }
}
