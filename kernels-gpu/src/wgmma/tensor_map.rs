//! Tensor maps that the host encodes for a launch, and the operands that TMA can express.
//!
//! k and v are 4-D tensors `[dim, seq, head, batch]`, innermost first, copied in boxes of 64 columns by some rows
//! under the 128-byte swizzle. q and o are 5-D tensors `[dim, head of group, seq, group, batch]`, whose boxes of 64
//! rows hold as many heads as a pack ([`PackGqa`]). All extents are the true ones: TMA reads zeros beyond them and
//! writes nothing there, which pads head_dim, ends the sequences and fills the last pack of a group.

use bytemuck::{Pod, Zeroable};

use super::pack_gqa::PackGqa;
use crate::abi::{BackwardParams, CachePages, ForwardParams, TensorArg};
use crate::config::wgmma::{ATOM_COLS, WARPGROUP_ROWS, WgmmaConfig};
use crate::units::HALF_BYTES;

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
    /// In place of o, in the backward pass.
    pub const D_O: u32 = 4;
    /// V of a cache, a key at a time: behind the schedule, the workspace, the sinks and the pages.
    pub const V_ROWS: u32 = 9;
}

/// Most dimensions of a tensor map.
pub const MAX_RANK: usize = 5;
/// Addresses and strides must be multiples of this.
pub const ALIGN_BYTES: u64 = 16;
/// Strides must be below this.
const STRIDE_LIMIT: i64 = 1 << 40;

/// Arguments of `cuTensorMapEncodeTiled` that depend on the operand; array elements beyond `rank` are not read. The
/// others are the same for all: element strides 1, no interleave, `SWIZZLE_128B`, `L2_128B` promotion, zeros out of
/// bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorMapSpec {
    pub address: u64,
    pub rank: usize,
    /// Extents in elements.
    pub dims: [u64; MAX_RANK],
    /// Strides of dimensions 1.. in bytes.
    pub strides: [u64; MAX_RANK - 1],
    /// Extents of a box in elements.
    pub box_dims: [u32; MAX_RANK],
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

/// The operand, and why it is unfit.
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
    /// The maps for `forward` and a kernel of this tile shape; of a cache's `pages`, if it reads one.
    pub fn new(
        forward: &ForwardParams,
        config: &WgmmaConfig,
        pack_gqa: PackGqa,
        pages: Option<&CachePages>,
    ) -> Result<Self, Refusal> {
        let params = &forward.attention;
        let lengths = &params.lengths;
        let (batch, seq_q, mut seq_kv) = if lengths.has_cu_seqlens() {
            (1, lengths.total_q, lengths.total_kv)
        } else {
            (params.batch, params.seq_q, params.seq_kv)
        };
        if pages.is_some() {
            seq_kv = params.seq_kv;
        }
        let (d, d_v) = (params.head_dim, params.head_dim_v);
        let queries = |name, arg: &TensorArg, dim| {
            let axes = [
                Axis::new(pack_gqa.group(), arg.head_stride, pack_gqa.heads()),
                Axis::new(seq_q, arg.seq_stride, pack_gqa.query(WARPGROUP_ROWS)),
                Axis::new(
                    params.heads_kv,
                    arg.head_stride.saturating_mul(pack_gqa.group().into()),
                    1,
                ),
                Axis::new(batch, arg.batch_stride, 1),
            ];
            spec(arg, dim, &axes).map_err(|reason| (name, reason))
        };
        // Keys of a batch entry, or of a page, and how many of these there are.
        let (rows, entries, in_box) = match pages {
            None => (seq_kv, batch, config.kv_box_rows()),
            Some(pages) => (pages.page_size(seq_kv), pages.num_pages, pages.box_rows),
        };
        let keys = |name, arg: &TensorArg, dim| {
            let axes = [
                Axis::new(rows, arg.seq_stride, in_box),
                Axis::new(params.heads_kv, arg.head_stride, 1),
                Axis::new(entries, arg.batch_stride, 1),
            ];
            spec(arg, dim, &axes).map_err(|reason| (name, reason))
        };
        Ok(Self {
            q: queries("q", &params.q, d)?,
            k: keys("k", &params.k, d)?,
            v: keys("v", &params.v, d_v)?,
            o: queries("o", &forward.o, d_v)?,
        })
    }
}

impl ForwardMaps {
    /// A map of v whose boxes hold a key.
    pub fn v_rows(&self) -> TensorMapSpec {
        let mut map = self.v;
        map.box_dims[1] = 1;
        map
    }
}

/// The tensor maps of a backward launch, in the order of the kernel's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackwardMaps {
    pub q: TensorMapSpec,
    pub k: TensorMapSpec,
    pub v: TensorMapSpec,
    pub d_o: TensorMapSpec,
}

impl BackwardMaps {
    /// The maps for `backward`, whose boxes are 64 rows of one head.
    ///
    /// Gradients are written without TMA, but are held to the same.
    pub fn new(backward: &BackwardParams) -> Result<Self, Refusal> {
        let params = &backward.attention;
        let lengths = &params.lengths;
        let (batch, seq_q, seq_kv) = if lengths.has_cu_seqlens() {
            (1, lengths.total_q, lengths.total_kv)
        } else {
            (params.batch, params.seq_q, params.seq_kv)
        };
        let rows = |name, arg: &TensorArg, (seq, heads): (u32, u32), dim| {
            let axes = [
                Axis::new(seq, arg.seq_stride, WARPGROUP_ROWS),
                Axis::new(heads, arg.head_stride, 1),
                Axis::new(batch, arg.batch_stride, 1),
            ];
            spec(arg, dim, &axes).map_err(|reason| (name, reason))
        };
        let (d, d_v) = (params.head_dim, params.head_dim_v);
        let (queries, keys) = ((seq_q, params.heads_q), (seq_kv, params.heads_kv));
        rows("dq", &backward.dq, queries, d)?;
        rows("dk", &backward.dk, keys, d)?;
        rows("dv", &backward.dv, keys, d_v)?;
        Ok(Self {
            q: rows("q", &params.q, queries, d)?,
            k: rows("k", &params.k, keys, d)?,
            v: rows("v", &params.v, keys, d_v)?,
            d_o: rows("d_o", &backward.d_o, queries, d_v)?,
        })
    }
}

/// A dimension of an operand other than the innermost.
#[derive(Clone, Copy)]
struct Axis {
    /// Number of elements.
    extent: u32,
    /// Distance between elements, in elements of the operand.
    stride: i64,
    /// Elements of a box along it.
    in_box: u32,
}

impl Axis {
    const fn new(extent: u32, stride: i64, in_box: u32) -> Self {
        Self {
            extent,
            stride,
            in_box,
        }
    }
}

/// The map of one operand with rows of `dim` elements.
fn spec(arg: &TensorArg, dim: u32, axes: &[Axis]) -> Result<TensorMapSpec, Inexpressible> {
    if dim == 0 || axes.iter().any(|axis| axis.extent == 0) {
        return Err(Inexpressible::Empty);
    }
    if !(dim as u64 * u64::from(HALF_BYTES)).is_multiple_of(ALIGN_BYTES) {
        return Err(Inexpressible::Width(dim));
    }
    if !arg.address.is_multiple_of(ALIGN_BYTES) {
        return Err(Inexpressible::Address(arg.address));
    }
    if arg.dim_stride != 1 && dim > 1 {
        return Err(Inexpressible::DimStride(arg.dim_stride));
    }
    let mut map = TensorMapSpec {
        address: arg.address,
        rank: 1 + axes.len(),
        dims: [1; MAX_RANK],
        strides: [ALIGN_BYTES; MAX_RANK - 1],
        box_dims: [1; MAX_RANK],
    };
    map.dims[0] = dim.into();
    map.box_dims[0] = ATOM_COLS;
    for (i, axis) in axes.iter().enumerate() {
        map.dims[i + 1] = axis.extent.into();
        map.box_dims[i + 1] = axis.in_box;
        // Nothing is ever that far when there is only one: any lawful stride will do.
        if axis.extent > 1 {
            let bytes = axis.stride.saturating_mul(i64::from(HALF_BYTES));
            if bytes <= 0 || bytes >= STRIDE_LIMIT || !(bytes as u64).is_multiple_of(ALIGN_BYTES) {
                return Err(Inexpressible::Stride(axis.stride));
            }
            map.strides[i] = bytes as u64;
        }
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::AttentionParams;
    use crate::config::wgmma::{CACHED_HD128, HD128_NOCLUSTER};
    use bytemuck::Zeroable;

    const ARG: TensorArg = TensorArg {
        address: 4096,
        batch_stride: 1 << 20,
        head_stride: 96,
        seq_stride: 768,
        dim_stride: 1,
    };

    /// 8 heads of 1000 rows in each of 3 batch entries, in boxes of 64 rows.
    fn axes(arg: &TensorArg) -> [Axis; 3] {
        [
            Axis::new(1000, arg.seq_stride, 64),
            Axis::new(8, arg.head_stride, 1),
            Axis::new(3, arg.batch_stride, 1),
        ]
    }

    /// `seq_q` queries on 1000 keys in each of 3 batch entries.
    fn forward([heads_q, heads_kv]: [u32; 2], seq_q: u32) -> ForwardParams {
        let attention = AttentionParams {
            q: ARG,
            k: ARG,
            v: ARG,
            batch: 3,
            heads_q,
            heads_kv,
            seq_q,
            seq_kv: 1000,
            head_dim: 96,
            head_dim_v: 96,
            ..AttentionParams::zeroed()
        };
        ForwardParams {
            attention,
            o: ARG,
            lse: 0,
        }
    }

    #[test]
    fn strides_in_bytes_and_true_extents() {
        let map = spec(&ARG, 96, &axes(&ARG)).unwrap();
        assert_eq!(map.rank, 4);
        assert_eq!(map.dims[..4], [96, 1000, 8, 3]);
        assert_eq!(map.strides[..3], [1536, 192, 2 << 20]);
        assert_eq!(map.box_dims[..4], [64, 64, 1, 1]);
    }

    #[test]
    fn a_box_holds_a_pack() {
        let params = forward([10, 2], 7);
        let maps = |pack_gqa| ForwardMaps::new(&params, &HD128_NOCLUSTER, pack_gqa, None).unwrap();
        let shared = maps(PackGqa::fewest_tiles(5, [7].into_iter(), 128));
        for map in [shared.q, shared.o] {
            assert_eq!(map.rank, 5);
            // Five heads, not the eight of a pack: the others are the next group's, which a store must not touch.
            assert_eq!(map.dims, [96, 5, 7, 2, 3]);
            assert_eq!(map.strides, [192, 1536, 5 * 192, 2 << 20]);
            assert_eq!(map.box_dims, [64, 8, 8, 1, 1]);
        }
        let single = maps(PackGqa::none(5));
        assert_eq!(single.q.box_dims, [64, 1, 64, 1, 1]);
        assert_eq!(single.q.dims, shared.q.dims);
        assert_eq!((single.k, single.v), (shared.k, shared.v));
    }

    /// 40 pages of 32 keys.
    #[test]
    fn a_box_lies_in_a_page() {
        let params = forward([8, 8], 100);
        let pages = CachePages {
            num_pages: 40,
            page_shift: 5,
            box_rows: 16,
            ..CachePages::NONE
        };
        let maps = |pages| {
            ForwardMaps::new(&params, &CACHED_HD128, PackGqa::none(1), Some(pages)).unwrap()
        };
        let paged = maps(&pages);
        for map in [paged.k, paged.v] {
            assert_eq!(map.dims[..4], [96, 32, 8, 40]);
            assert_eq!(map.box_dims[..4], [64, 16, 1, 1]);
        }
        let contiguous = maps(&CachePages {
            num_pages: 3,
            page_shift: CachePages::WHOLE_SEQUENCE,
            box_rows: 16,
            ..CachePages::NONE
        });
        assert_eq!(contiguous.k.dims[..4], [96, 1000, 8, 3]);
        assert_eq!(contiguous.q, paged.q);
    }

    #[test]
    fn refuses_what_tma_cannot_address() {
        let with = |change: fn(&mut TensorArg)| {
            let mut arg = ARG;
            change(&mut arg);
            spec(&arg, 96, &axes(&arg)).unwrap_err()
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
        let none = [Axis::new(0, 768, 64)];
        assert_eq!(spec(&ARG, 96, &none), Err(Inexpressible::Empty));
        assert_eq!(spec(&ARG, 90, &axes(&ARG)), Err(Inexpressible::Width(90)));
    }

    #[test]
    fn a_dimension_of_one_needs_no_stride() {
        let one = [Axis::new(1000, ARG.seq_stride, 64), Axis::new(1, 0, 1)];
        assert!(spec(&ARG, 96, &one).is_ok());
    }
}
