//! Where one batch entry's rows are, and what its queries may see.

use cuda_std::global;

use crate::abi::{
    AttentionParams, Band, ForwardParams, LengthsParams, MaskParams, SequenceRows, TensorArg,
};
use crate::tile::black_box;

/// One batch entry of a launch.
#[derive(Clone, Copy)]
pub struct Sequence {
    /// Batch index for the strides of operands: 0 with cu_seqlens.
    pub batch: u32,
    /// First row of q and o.
    pub q_begin: u32,
    /// First row of k and v.
    pub kv_begin: u32,
    pub seq_q: u32,
    pub seq_kv: u32,
    /// From this sequence's top-left corner.
    pub band: Band,
}

impl Sequence {
    /// # Safety
    /// `params` describes live allocations, and `batch` is below `params.batch`.
    #[inline(always)]
    pub unsafe fn new(params: &AttentionParams, batch: u32) -> Self {
        // Hidden from the optimiser, like the band below: kernels that compute this for every tile or block of keys
        // would otherwise keep in registers whether there are cu_seqlens, and which sides of the band are open.
        let params = &AttentionParams {
            lengths: LengthsParams {
                total_q: black_box(params.lengths.total_q),
                ..params.lengths
            },
            ..*params
        };
        // SAFETY: the arrays of lengths have an element, or two, for every sequence.
        let load = |address| unsafe { global::load_u32(address) } as i32;
        Self::of_rows(params, batch, SequenceRows::read(params, batch, load))
    }

    /// The sequence of batch entry `batch`, which has `rows`.
    #[inline(always)]
    pub fn of_rows(params: &AttentionParams, batch: u32, rows: SequenceRows) -> Self {
        let SequenceRows {
            q_begin,
            seq_q,
            kv_begin,
            seq_kv,
        } = rows;
        let has_cu_seqlens = black_box(params.lengths.total_q) != 0;
        let band = Band {
            lower: black_box(params.mask.band.lower as u32) as i32,
            upper: black_box(params.mask.band.upper as u32) as i32,
        };
        let mask = MaskParams::new(band, params.mask.corner());
        Self {
            batch: if has_cu_seqlens { 0 } else { batch },
            q_begin,
            kv_begin,
            seq_q,
            seq_kv,
            band: mask.of_sequence(seq_q, seq_kv),
        }
    }

    /// Whether it has a pair of a query and a key. Where it has none, what arrays say of single queries and keys must not be read.
    #[inline(always)]
    pub fn has_pairs(&self) -> bool {
        self.seq_q > 0 && self.seq_kv > 0
    }

    /// A batch entry of a launch whose sequences are all as long as the operands, and whose band is counted from the
    /// top-left corner.
    #[inline(always)]
    pub fn dense(params: &AttentionParams, batch: u32) -> Self {
        Self {
            batch,
            q_begin: 0,
            kv_begin: 0,
            seq_q: params.seq_q,
            seq_kv: params.seq_kv,
            band: params.mask.band,
        }
    }

    /// Address of row 0, dimension 0 of `head` of q or o, whose elements are `elem_bytes` long.
    #[inline(always)]
    pub fn q_address(&self, operand: &TensorArg, head: u32, elem_bytes: u32) -> u64 {
        self.address(operand, head, self.q_begin, elem_bytes)
    }

    /// Address of row 0, dimension 0 of `head` of k or v, whose elements are `elem_bytes` long.
    #[inline(always)]
    pub fn kv_address(&self, operand: &TensorArg, head: u32, elem_bytes: u32) -> u64 {
        self.address(operand, head, self.kv_begin, elem_bytes)
    }

    #[inline(always)]
    fn address(&self, operand: &TensorArg, head: u32, row: u32, elem_bytes: u32) -> u64 {
        let offset = self.batch as i64 * operand.batch_stride
            + head as i64 * operand.head_stride
            + row as i64 * operand.seq_stride;
        operand
            .address
            .wrapping_add_signed(offset * elem_bytes as i64)
    }

    /// Address of row 0 of `head` of lse.
    #[inline(always)]
    pub fn lse_address(&self, forward: &ForwardParams, head: u32) -> u64 {
        self.row_address(&forward.attention, forward.lse, head)
    }

    /// Address of row 0 of `head` of an array of f32 at `array` that is laid out as lse.
    #[inline(always)]
    pub fn row_address(&self, params: &AttentionParams, array: u64, head: u32) -> u64 {
        let rows = if params.lengths.has_cu_seqlens() {
            params.lengths.total_q
        } else {
            params.seq_q
        };
        let of_head = (self.batch as u64 * params.heads_q as u64 + head as u64) * rows as u64;
        let row = of_head + self.q_begin as u64;
        array + row * size_of::<f32>() as u64
    }
}

/// Head of k and v that query head `head` attends to.
#[inline(always)]
pub fn head_kv(params: &AttentionParams, head: u32) -> u32 {
    // SAFETY: heads_kv divides heads_q, so neither is zero where there is a tile. Without this a division carries a
    // panic branch.
    unsafe { core::hint::assert_unchecked(params.heads_kv != 0) };
    let group_size = params.heads_q / params.heads_kv;
    // SAFETY: as above.
    unsafe { core::hint::assert_unchecked(group_size != 0) };
    head / group_size
}
