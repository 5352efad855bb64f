//! Tensors of `attend`'s file that concern single pairs of a query and a key.

use bytemuck::allocation::pod_collect_to_vec;
use ferroflash::{
    BiasTensor, BlockMask, DType, Documents, ForwardOptions, HostTensor, Layout, MaskTensor, Shape,
    Sinks, TensorSpec, TreeMask,
};
use safetensors::Dtype;
use safetensors::tensor::TensorInfo;

use super::file::{File, wrong_dtype};
use crate::arguments::block;
use crate::failure::Failure;

/// How the blocks of a file are cut.
#[derive(clap::Args)]
pub struct BlockArgs {
    /// Queries and keys of a block of block_counts and block_indices
    #[arg(long, value_name = "Q:K", value_parser = block, default_value = "128:128")]
    block_size: (u32, u32),
}

/// The names of tensors in a file.
const MASK: &str = "mask";
const BIAS: &str = "bias";
const SINKS: &str = "sinks";
const TREE_MASK: &str = "tree_mask";
const DOCUMENTS: [&str; 2] = ["doc_q", "doc_kv"];
const BLOCKS: [&str; 2] = ["block_counts", "block_indices"];

/// `options` with the modifiers that are in a file.
pub fn read(
    file: &mut File,
    args: &BlockArgs,
    options: ForwardOptions,
) -> Result<ForwardOptions, Failure> {
    Ok(options
        .mask_tensor(mask(file)?)
        .bias(bias(file)?)
        .sinks(sinks(file)?)
        .tree(tree(file)?)
        .documents(documents(file)?)
        .block_mask(blocks(file, args)?))
}

/// The shape of a tensor of rank 4.
fn rank_4(name: &'static str, info: &TensorInfo) -> Result<[usize; 4], Failure> {
    info.shape.as_slice().try_into().map_err(|_| {
        let wrong = format!(
            "its shape is {:?}, of rank {}",
            info.shape,
            info.shape.len()
        );
        let allowed = "rank 4: [batch or 1, heads_q or 1, seq_q or 1, seq_kv]";
        Failure::refused(name, wrong, allowed)
    })
}

fn mask(file: &mut File) -> Result<Option<MaskTensor>, Failure> {
    let Some(info) = file.info(MASK) else {
        return Ok(None);
    };
    if !matches!(info.dtype, Dtype::U8 | Dtype::BOOL) {
        return Err(wrong_dtype(MASK, info.dtype, "U8 or BOOL"));
    }
    let shape = rank_4(MASK, &info)?;
    Ok(Some(MaskTensor::new(&file.read(&info)?, shape)?))
}

fn bias(file: &mut File) -> Result<Option<BiasTensor>, Failure> {
    let Some(info) = file.info(BIAS) else {
        return Ok(None);
    };
    let dtype = match info.dtype {
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::Bf16,
        other => return Err(wrong_dtype(BIAS, other, "F32, F16 or BF16")),
    };
    let [batch, heads, seq, dim] = rank_4(BIAS, &info)?;
    let shape = Shape {
        batch,
        heads,
        seq,
        dim,
    };
    let spec = TensorSpec::contiguous(dtype, shape, Layout::Bhsd)?;
    let tensor = HostTensor::new(spec, 0, file.read(&info)?)?;
    Ok(Some(BiasTensor::new(&tensor)?))
}

fn sinks(file: &mut File) -> Result<Option<Sinks>, Failure> {
    let Some(info) = file.info(SINKS) else {
        return Ok(None);
    };
    if info.dtype != Dtype::F32 {
        return Err(wrong_dtype(SINKS, info.dtype, "F32"));
    }
    let [_] = info.shape.as_slice() else {
        let wrong = format!("its shape is {:?}", info.shape);
        return Err(Failure::refused(SINKS, wrong, "[heads_q]"));
    };
    let sinks = pod_collect_to_vec::<u8, f32>(&file.read(&info)?);
    Ok(Some(Sinks::per_head(&sinks)?))
}

fn tree(file: &mut File) -> Result<Option<TreeMask>, Failure> {
    let Some(info) = file.info(TREE_MASK) else {
        return Ok(None);
    };
    if ![Dtype::I64, Dtype::U64].contains(&info.dtype) {
        return Err(wrong_dtype(TREE_MASK, info.dtype, "I64 or U64"));
    }
    let words = pod_collect_to_vec::<u8, u64>(&file.read(&info)?);
    match *info.shape.as_slice() {
        [_] => Ok(Some(TreeMask::shared(&words))),
        [_, seq_q] => Ok(Some(TreeMask::per_sequence(&words, seq_q)?)),
        _ => {
            let wrong = format!("its shape is {:?}", info.shape);
            let allowed = "[seq_q] or [batch, seq_q]";
            Err(Failure::refused(TREE_MASK, wrong, allowed))
        }
    }
}

/// Integers of a tensor, and its shape.
fn integers(file: &mut File, name: &'static str) -> Result<(Vec<i32>, Vec<usize>), Failure> {
    let info = file.find(name, "both tensors of the pair, or neither")?;
    if info.dtype != Dtype::I32 {
        return Err(wrong_dtype(name, info.dtype, "I32"));
    }
    let values = pod_collect_to_vec::<u8, i32>(&file.read(&info)?);
    Ok((values, info.shape))
}

/// Whether a file has one of two tensors.
fn has_either(file: &File, names: [&'static str; 2]) -> bool {
    names.iter().any(|name| file.info(name).is_some())
}

fn documents(file: &mut File) -> Result<Option<Documents>, Failure> {
    if !has_either(file, DOCUMENTS) {
        return Ok(None);
    }
    let (of_queries, q) = integers(file, DOCUMENTS[0])?;
    let (of_keys, kv) = integers(file, DOCUMENTS[1])?;
    match (q.len(), kv.len()) {
        (1, 1) => Ok(Some(Documents::new(&of_queries, &of_keys))),
        (2, 2) if q[0] == kv[0] => Ok(Some(Documents::per_batch(&of_queries, &of_keys))),
        _ => {
            let wrong = format!("its shape is {kv:?}, beside {q:?} of doc_q");
            let allowed = "[seq] each, of rows of q and of k, or [batch, seq] each";
            Err(Failure::refused(DOCUMENTS[1], wrong, allowed))
        }
    }
}

fn blocks(file: &mut File, args: &BlockArgs) -> Result<Option<BlockMask>, Failure> {
    if !has_either(file, BLOCKS) {
        return Ok(None);
    }
    let (counts, of_counts) = integers(file, BLOCKS[0])?;
    let (indices, of_indices) = integers(file, BLOCKS[1])?;
    let shape: Result<[usize; 4], _> = of_indices.as_slice().try_into();
    match shape {
        Ok(shape) if shape[..3] == of_counts => {
            let block = [args.block_size.0, args.block_size.1];
            Ok(Some(BlockMask::from_lists(
                &counts, &indices, shape, block,
            )?))
        }
        _ => {
            let wrong =
                format!("its shape is {of_indices:?}, beside {of_counts:?} of block_counts");
            let allowed = "[batch or 1, heads_q or 1, q_blocks, kv_blocks], and block_counts without the last axis";
            Err(Failure::refused(BLOCKS[1], wrong, allowed))
        }
    }
}
