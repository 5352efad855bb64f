//! Where the sequences of a launch lie among the rows of its operands.

use bytemuck::{Pod, Zeroable};

use super::tensor::DeviceAddress;

/// How long the sequences of a launch are, beside the `seq_q` and `seq_kv` that none exceeds.
///
/// The arrays lie in device memory. The host may not know what they hold, so kernels clamp what they read: no value in
/// them makes a kernel leave its operands.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct LengthsParams {
    /// Rows of q, and of o, of all sequences together, where those follow one another (cu_seqlens); 0 otherwise.
    pub total_q: u32,
    /// As `total_q`, of k and v.
    pub total_kv: u32,
    /// i32 `[batch + 1]`: sequence `b` has the rows `cu_seqlens_q[b] .. cu_seqlens_q[b + 1]` of q, o and lse, one sequence after the
    /// other. `None` where each sequence is a batch entry of its operands.
    pub cu_seqlens_q: Option<DeviceAddress>,
    /// As `cu_seqlens_q`, of k and v.
    pub cu_seqlens_kv: Option<DeviceAddress>,
    /// i32 `[batch]`: how many of a sequence's rows of k and v are used, from the first on. `None`: all.
    pub seqused_kv: Option<DeviceAddress>,
}

impl LengthsParams {
    /// Whether sequences follow one another along the rows of the operands, which then have no batch axis.
    #[inline(always)]
    pub const fn has_cu_seqlens(&self) -> bool {
        self.total_q != 0
    }

    /// Whether sequences may differ in length (varlen): in what only device memory says, or in `cu_seqlens`.
    pub const fn is_varlen(&self) -> bool {
        self.has_cu_seqlens() || self.seqused_kv.is_some()
    }
}

/// Where the rows of one sequence lie: among the rows of all, or among those of its batch entry.
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
