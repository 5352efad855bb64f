//! What host and kernel exchange at a launch: parameter structs passed by value, byte for byte.
//!
//! The offsets are pinned by a test in this file: both sides are compiled by different compilers. `Pod` vouches that
//! there is no padding, so a struct's bytes are its image.

use bytemuck::{Pod, Zeroable};

/// One operand of attention in device memory: a base address and the strides of its logical axes
/// `[batch, head, seq, dim]`, in elements of its dtype.
///
/// Any stride is allowed, zero and negative included; the host has checked that every element the
/// kernel can reach lies inside the allocation.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
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
/// corner (added `seq_kv - seq_q`), except in a varlen launch, where each sequence has its own
/// ([`Band::bottom_right`]). An open side is [`Band::OPEN`] away.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
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

    /// A band given from the top-left corner, moved to the bottom-right one; open sides stay open.
    #[inline(always)]
    pub const fn bottom_right(self, seq_q: u32, seq_kv: u32) -> Self {
        let shift = seq_kv as i32 - seq_q as i32;
        Self {
            lower: if self.lower == -Self::OPEN {
                self.lower
            } else {
                self.lower + shift
            },
            upper: if self.upper == Self::OPEN {
                self.upper
            } else {
                self.upper + shift
            },
        }
    }
}

/// Where a sequence of a varlen launch lies among the packed rows.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct PackedRows {
    /// First row of q, o and lse.
    pub q_begin: u32,
    pub seq_q: u32,
    /// First row of k and v.
    pub kv_begin: u32,
    pub seq_kv: u32,
}

/// Parameters of every forward kernel.
///
/// `o[b, h, i, :] = softmax(score(q[b, h, i, :] · k[b, h', j, :]))ⱼ · v[b, h', j, :]` with
/// `h' = h / (heads_q / heads_kv)`, over the visible keys `j`.
///
/// A *varlen* launch (`total_q` not 0) packs its `batch` sequences one after the other along
/// the rows of q, k, v and o: batch strides are ignored, sequence `b` of q and o has rows
/// `cu_seqlens_q[b] .. cu_seqlens_q[b + 1]`, of k and v `cu_seqlens_kv[b] .. cu_seqlens_kv[b + 1]`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct ForwardParams {
    pub q: TensorArg,
    pub k: TensorArg,
    pub v: TensorArg,
    pub o: TensorArg,
    /// Device address of `lse`, f32 `[batch, heads_q, seq_q]`, contiguous, in nats; varlen `[heads_q, total_q]`.
    pub lse: u64,
    pub batch: u32,
    pub heads_q: u32,
    pub heads_kv: u32,
    /// Rows of a sequence of q; varlen: of the longest.
    pub seq_q: u32,
    /// Rows of a sequence of k and v; varlen: of the longest.
    pub seq_kv: u32,
    pub head_dim: u32,
    pub head_dim_v: u32,
    /// Multiplies `q · k`.
    pub softmax_scale: f32,
    /// Scores become `softcap · tanh(score / softcap)`; `0` leaves them as they are.
    pub softcap: f32,
    pub band: Band,
    /// Rows of all sequences of q together; 0 in a dense launch.
    pub total_q: u32,
    /// Device address of f32 slopes `[heads_q]` or `[batch, heads_q]`, or 0. Adds `-slope · |i + seq_kv - seq_q - j|`,
    /// in nats, to the score of query `i` and key `j`, after softcap (ALiBi, Press et al. 2022).
    pub alibi_slopes: u64,
    /// Elements between the slopes of two batch entries; 0 if all share one row.
    pub alibi_batch_stride: u64,
    /// Device address of i32 `[batch + 1]`, not decreasing, or 0: in a dense launch, and for a kernel that takes the
    /// rows from a list of tiles ([`crate::wgmma::schedule`]).
    pub cu_seqlens_q: u64,
    /// As `cu_seqlens_q`.
    pub cu_seqlens_kv: u64,
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
        assert_eq!(offset_of!(ForwardParams, total_q), 212);
        assert_eq!(offset_of!(ForwardParams, alibi_slopes), 216);
        assert_eq!(offset_of!(ForwardParams, cu_seqlens_kv), 240);
        assert_eq!(size_of::<ForwardParams>(), 248);
    }

    #[test]
    fn bottom_right_moves_finite_sides_only() {
        let causal = Band {
            lower: -Band::OPEN,
            upper: 0,
        };
        assert_eq!(
            causal.bottom_right(7, 3),
            Band {
                lower: -Band::OPEN,
                upper: -4
            }
        );
        assert_eq!(
            Band::FULL.bottom_right(1, Band::OPEN as u32 - 1),
            Band::FULL
        );
        let window = Band {
            lower: -5,
            upper: 2,
        };
        assert_eq!(
            window.bottom_right(3, 7),
            Band {
                lower: -1,
                upper: 6
            }
        );
    }
}
