//! Parameters of the kernel that merges partial results.

use bytemuck::{Pod, Zeroable};

use super::TensorArg;

/// One partial result: attention of all queries to some of the keys.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct MergePart {
    pub o: TensorArg,
    /// f32, in nats; one component a row.
    pub lse: TensorArg,
}

/// Parameters of the merge kernel. With `lseᵢ` of part `i`, `lse = ln Σᵢ exp lseᵢ` and `o = Σᵢ exp(lseᵢ − lse) · oᵢ`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct MergeParams {
    /// Device address of an array of [`MergePart`]s.
    pub parts: u64,
    /// Written.
    pub o: TensorArg,
    /// Written: f32 `[batch, heads, seq]`, contiguous.
    pub lse: u64,
    /// Elements of `parts`.
    pub count: u32,
    /// Axes of o.
    pub batch: u32,
    pub heads: u32,
    pub seq: u32,
    pub dim: u32,
    pub reserved: u32,
}
