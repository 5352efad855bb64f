//! candle's tensors as the library's operands.

use candle::{DType, Layout, Result, StorageRef, Tensor, bail};
use ferroflash::{Strides, TensorSpec};

use crate::place::{Address, Place};

/// One of q, k and v: its memory, and how it lies there.
pub type Operand<'a, P> = (&'a <P as Place>::Memory, &'a Layout);

/// The dtype of q, k and v.
pub fn same_dtype([q, k, v]: [DType; 3]) -> Result<DType> {
    for (name, dtype) in [("k", k), ("v", v)] {
        if dtype != q {
            bail!("{name}: its dtype is {dtype:?}; it must be {q:?}, that of q");
        }
    }
    Ok(q)
}

/// The spec of a tensor `[batch, seq, heads, dim]`, or of packed rows `[total, heads, dim]`, which are those of one batch entry.
pub fn spec(dtype: DType, layout: &Layout) -> Result<TensorSpec> {
    let dtype = match dtype {
        DType::F32 => ferroflash::DType::F32,
        DType::F16 => ferroflash::DType::F16,
        DType::BF16 => ferroflash::DType::Bf16,
        other => bail!("q: its dtype is {other:?}; it must be F32, F16 or BF16"),
    };
    let (dims, strides) = match (layout.dims(), layout.stride()) {
        (&[total, heads, dim], &[s, h, d]) => ([1, total, heads, dim], [0, s, h, d]),
        (&[batch, seq, heads, dim], &[b, s, h, d]) => ([batch, seq, heads, dim], [b, s, h, d]),
        (dims, _) => bail!("a tensor has {} axes; it must have 3 or 4", dims.len()),
    };
    let [batch, seq, head, dim] = strides.map(|stride| stride as i64);
    Ok(TensorSpec {
        dtype,
        shape: ferroflash::Layout::Bshd.shape(dims),
        strides: Strides {
            batch,
            head,
            seq,
            dim,
        },
    })
}

pub type Guard<'a> = Option<(StorageRef<'a>, &'a Layout)>;

/// Holds tensors' memory for reading.
pub fn guards<const N: usize>(tensors: [Option<&Tensor>; N]) -> [Guard<'_>; N] {
    tensors.map(|tensor| tensor.map(Tensor::storage_and_layout))
}

/// Where tensors lie that are held.
pub fn addresses<'a, P: Place, const N: usize>(
    place: &'a P,
    held: &'a [Guard<'_>; N],
) -> Result<[Option<Address<'a>>; N]> {
    let mut found = [const { None }; N];
    for (address, held) in found.iter_mut().zip(held) {
        if let Some((storage, layout)) = held {
            let Some(memory) = P::of(storage) else {
                bail!(
                    "seqlens_q, seqlens_k, block_table or alibi_slopes is on another device than q"
                )
            };
            *address = Some(place.read(memory, layout.start_offset())?);
        }
    }
    Ok(found)
}
