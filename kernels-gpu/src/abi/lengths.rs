//! Rows of each sequence of a launch in its operands.

use bytemuck::{Pod, Zeroable};

use super::tensor::DeviceAddress;

/// Lengths and positions of a launch's sequences; none is longer than `seq_q` and `seq_kv`.
///
/// The arrays lie in device memory. The host may not know their values, so kernels clamp what they read: no value makes
/// a kernel leave its operands.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct LengthsParams {
    /// Rows of q, and of o, of all sequences together, where sequences are packed (cu_seqlens); 0 otherwise.
    pub total_q: u32,
    /// As `total_q`, of k and v; 0 of a cache.
    pub total_kv: u32,
    /// i32 `[batch + 1]`: sequence `b` has the rows `cu_seqlens_q[b] .. cu_seqlens_q[b + 1]` of q, o and lse. `None`
    /// where each sequence is a batch entry of its operands.
    pub cu_seqlens_q: Option<DeviceAddress>,
    /// As `cu_seqlens_q`, of k and v.
    pub cu_seqlens_kv: Option<DeviceAddress>,
    /// i32 `[batch]`: number of leading rows of k and v that a sequence uses. `None`: all.
    pub seqused_kv: Option<DeviceAddress>,
}

impl LengthsParams {
    /// Whether sequences are packed along the rows of the operands, which then have no batch axis.
    #[inline(always)]
    pub const fn has_cu_seqlens(&self) -> bool {
        self.total_q != 0
    }

    /// Whether sequences may differ in length (varlen): by `cu_seqlens` or `seqused_kv`.
    pub const fn is_varlen(&self) -> bool {
        self.has_cu_seqlens() || self.seqused_kv.is_some()
    }
}

/// Rows of one sequence: among the rows of all, or among those of its batch entry.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct SequenceRows {
    /// First row of q, o and lse.
    pub q_begin: u32,
    pub seq_q: u32,
    /// First row of k and v.
    pub kv_begin: u32,
    pub seq_kv: u32,
}
