//! What host and kernel exchange at a launch: parameter structs passed by value, byte for byte.
//!
//! The offsets are pinned by a test in this file: both sides are compiled by different compilers.

/// One operand of attention in device memory: a base address and the strides of its logical axes
/// `[batch, head, seq, dim]`, in elements of its dtype.
///
/// Any stride is allowed, zero and negative included; the host has checked that every element the
/// kernel can reach lies inside the allocation.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorArg {
    /// Device address of element `[0, 0, 0, 0]`.
    pub address: u64,
    pub batch_stride: i64,
    pub head_stride: i64,
    pub seq_stride: i64,
    pub dim_stride: i64,
}

/// Keys a query may see: key `j` is visible to query `i` iff `lower <= j - i <= upper`.
///
/// Causal and window masks are both bands; the host has already aligned them to the bottom-right
/// corner (added `seq_kv - seq_q`). An open side is [`Band::OPEN`] away.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Band {
    pub lower: i32,
    pub upper: i32,
}

impl Band {
    /// Distance that no `j - i` reaches: sequence lengths are below it.
    pub const OPEN: i32 = 1 << 30;
    /// Every key is visible to every query.
    pub const FULL: Self = Self {
        lower: -Self::OPEN,
        upper: Self::OPEN,
    };
}

/// Parameters of every forward kernel.
///
/// `o[b, h, i, :] = softmax(score(q[b, h, i, :] · k[b, h', j, :]))ⱼ · v[b, h', j, :]` with
/// `h' = h / (heads_q / heads_kv)`, over the visible keys `j`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForwardParams {
    pub q: TensorArg,
    pub k: TensorArg,
    pub v: TensorArg,
    pub o: TensorArg,
    /// Device address of `lse`, f32 `[batch, heads_q, seq_q]`, contiguous, in nats.
    pub lse: u64,
    pub batch: u32,
    pub heads_q: u32,
    pub heads_kv: u32,
    pub seq_q: u32,
    pub seq_kv: u32,
    pub head_dim: u32,
    pub head_dim_v: u32,
    /// Multiplies `q · k`.
    pub softmax_scale: f32,
    /// Scores become `softcap · tanh(score / softcap)`; `0` leaves them as they are.
    pub softcap: f32,
    pub band: Band,
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::{offset_of, size_of};

    #[test]
    fn offsets_are_pinned() {
        assert_eq!(size_of::<TensorArg>(), 40);
        assert_eq!(offset_of!(ForwardParams, q), 0);
        assert_eq!(offset_of!(ForwardParams, o), 120);
        assert_eq!(offset_of!(ForwardParams, lse), 160);
        assert_eq!(offset_of!(ForwardParams, batch), 168);
        assert_eq!(offset_of!(ForwardParams, head_dim_v), 192);
        assert_eq!(offset_of!(ForwardParams, softmax_scale), 196);
        assert_eq!(offset_of!(ForwardParams, softcap), 200);
        assert_eq!(offset_of!(ForwardParams, band), 204);
        assert_eq!(size_of::<ForwardParams>(), 216);
    }
}
