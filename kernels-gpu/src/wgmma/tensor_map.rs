//! What the host encodes into the tensor maps of a launch, and which operands TMA can express.
//!
//! Every operand is a 4-D tensor `[dim, seq, head, batch]`, innermost first, copied in boxes of 64 columns
//! by some rows under the 128-byte swizzle. Its extents are the true ones: TMA reads zeros beyond them and
//! writes nothing there, which pads head_dim and ends the sequences.

use bytemuck::{Pod, Zeroable};

use crate::abi::{ForwardParams, TensorArg};
use crate::config::wgmma::{PANEL_COLS, WARPGROUP_ROWS, WgmmaTile};

/// An encoded `CUtensorMap`, passed to the kernel by value. `cuda_builder` raises the parameter's alignment
/// to the 64 bytes the hardware wants.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct TensorMap(pub [u64; 16]);

/// Position of a launch's tensor maps among the kernel's parameters.
pub mod parameter {
    pub const Q: u32 = 1;
    pub const K: u32 = 2;
    pub const V: u32 = 3;
    pub const O: u32 = 4;
}

/// Dimensions of every tensor map.
pub const RANK: usize = 4;
/// TMA wants addresses and strides in multiples of it.
pub const ALIGN_BYTES: u64 = 16;
/// TMA wants strides below it.
const STRIDE_LIMIT: i64 = 1 << 40;
/// Bytes of an element of every operand.
const ELEMENT_BYTES: i64 = 2;

/// Arguments of `cuTensorMapEncodeTiled` that depend on the operand. The others are the same for all:
/// rank [`RANK`], element strides 1, no interleave, `SWIZZLE_128B`, `L2_128B` promotion, zeros out of bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMapSpec {
    pub address: u64,
    /// Extents in elements.
    pub dims: [u64; RANK],
    /// Strides of dimensions 1.. in bytes.
    pub strides: [u64; RANK - 1],
    /// Extents of a box in elements.
    pub box_dims: [u32; RANK],
}

/// Why TMA cannot address an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inexpressible {
    /// The address is not a multiple of [`ALIGN_BYTES`].
    Address(u64),
    /// The head dimension is not contiguous.
    DimStride(i64),
    /// A stride in elements that is not positive, not a multiple of [`ALIGN_BYTES`], or too large.
    Stride(i64),
    /// A dimension without elements.
    Empty,
    /// A head dimension that is not a multiple of the elements in [`ALIGN_BYTES`].
    Width(u32),
}

/// Which operand, and why.
pub type Refusal = (&'static str, Inexpressible);

/// The tensor maps of a launch, in the order of the kernel's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardMaps {
    pub q: TensorMapSpec,
    pub k: TensorMapSpec,
    pub v: TensorMapSpec,
    pub o: TensorMapSpec,
}

impl ForwardMaps {
    /// The maps for `params` and a kernel of this tile shape. `total_kv` is the number of rows of all sequences of k
    /// and v together, and is read for varlen tiles only.
    pub fn new(params: &ForwardParams, total_kv: u32, tile: &WgmmaTile) -> Result<Self, Refusal> {
        let (batch, seq_q, seq_kv) = if tile.varlen {
            (1, params.total_q, total_kv)
        } else {
            (params.batch, params.seq_q, params.seq_kv)
        };
        let (d, d_v) = (params.head_dim, params.head_dim_v);
        let kv_rows = tile.kv_box_rows();
        let map = |name, arg: &TensorArg, dims: [u32; RANK], rows| {
            spec(arg, dims, rows).map_err(|reason| (name, reason))
        };
        Ok(Self {
            q: map(
                "q",
                &params.q,
                [d, seq_q, params.heads_q, batch],
                WARPGROUP_ROWS,
            )?,
            k: map("k", &params.k, [d, seq_kv, params.heads_kv, batch], kv_rows)?,
            v: map(
                "v",
                &params.v,
                [d_v, seq_kv, params.heads_kv, batch],
                kv_rows,
            )?,
            o: map(
                "o",
                &params.o,
                [d_v, seq_q, params.heads_q, batch],
                WARPGROUP_ROWS,
            )?,
        })
    }
}

/// The map of one operand with extents `[dim, seq, head, batch]`.
fn spec(arg: &TensorArg, dims: [u32; RANK], box_rows: u32) -> Result<TensorMapSpec, Inexpressible> {
    if dims.contains(&0) {
        return Err(Inexpressible::Empty);
    }
    if !(dims[0] as u64 * ELEMENT_BYTES as u64).is_multiple_of(ALIGN_BYTES) {
        return Err(Inexpressible::Width(dims[0]));
    }
    if !arg.address.is_multiple_of(ALIGN_BYTES) {
        return Err(Inexpressible::Address(arg.address));
    }
    if arg.dim_stride != 1 && dims[0] > 1 {
        return Err(Inexpressible::DimStride(arg.dim_stride));
    }
    let mut strides = [0; RANK - 1];
    for (i, stride) in [arg.seq_stride, arg.head_stride, arg.batch_stride]
        .into_iter()
        .enumerate()
    {
        // Nothing is ever that far when there is only one: any lawful stride will do.
        let bytes = if dims[i + 1] == 1 {
            ALIGN_BYTES as i64
        } else {
            stride.saturating_mul(ELEMENT_BYTES)
        };
        if bytes <= 0 || bytes >= STRIDE_LIMIT || !(bytes as u64).is_multiple_of(ALIGN_BYTES) {
            return Err(Inexpressible::Stride(stride));
        }
        strides[i] = bytes as u64;
    }
    Ok(TensorMapSpec {
        address: arg.address,
        dims: dims.map(u64::from),
        strides,
        box_dims: [PANEL_COLS, box_rows, 1, 1],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARG: TensorArg = TensorArg {
        address: 4096,
        batch_stride: 1 << 20,
        head_stride: 96,
        seq_stride: 768,
        dim_stride: 1,
    };

    #[test]
    fn strides_in_bytes_and_true_extents() {
        let map = spec(&ARG, [96, 1000, 8, 3], 64).unwrap();
        assert_eq!(map.dims, [96, 1000, 8, 3]);
        assert_eq!(map.strides, [1536, 192, 2 << 20]);
        assert_eq!(map.box_dims, [64, 64, 1, 1]);
    }

    #[test]
    fn refuses_what_tma_cannot_address() {
        let dims = [96, 1000, 8, 3];
        let with = |change: fn(&mut TensorArg)| {
            let mut arg = ARG;
            change(&mut arg);
            spec(&arg, dims, 64).unwrap_err()
        };
        assert_eq!(with(|arg| arg.address = 4104), Inexpressible::Address(4104));
        assert_eq!(with(|arg| arg.dim_stride = 2), Inexpressible::DimStride(2));
        assert_eq!(
            with(|arg| arg.seq_stride = -768),
            Inexpressible::Stride(-768)
        );
        assert_eq!(with(|arg| arg.head_stride = 0), Inexpressible::Stride(0));
        assert_eq!(
            with(|arg| arg.head_stride = 100),
            Inexpressible::Stride(100)
        );
        assert_eq!(
            with(|arg| arg.batch_stride = 1 << 39),
            Inexpressible::Stride(1 << 39)
        );
        assert_eq!(spec(&ARG, [96, 0, 8, 3], 64), Err(Inexpressible::Empty));
        assert_eq!(
            spec(&ARG, [90, 1000, 8, 3], 64),
            Err(Inexpressible::Width(90))
        );
    }

    #[test]
    fn a_dimension_of_one_needs_no_stride() {
        let arg = TensorArg {
            batch_stride: 0,
            ..ARG
        };
        assert!(spec(&arg, [96, 1000, 8, 1], 64).is_ok());
    }
}
