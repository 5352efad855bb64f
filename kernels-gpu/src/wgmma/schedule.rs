//! The order in which clusters take tiles.
//!
//! Tiles are numbered so that taking them in order keeps K and V of the running tiles in L2 and leaves short
//! tiles for the end. Each cluster draws the next number from a counter in global memory, which balances
//! better than any fixed split: tiles of a causal mask differ in length, and SMs in speed.

use crate::abi::{Band, ForwardParams};

/// Bytes of K and V that the tiles in flight may share: what stays in the 50 MB L2 beside Q and O.
const L2_BYTES: u64 = 32 << 20;

/// One cluster's tile: rows `super_block · cluster_m ..` of a query head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    pub super_block: u32,
    pub head: u32,
    /// The key/value head it reads.
    pub head_kv: u32,
    pub batch: u32,
}

/// All tiles of a launch.
///
/// Heads are grouped into sections of about equal size; within a section the last rows of every head come
/// first, which under a causal mask are the longest.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    super_blocks: u32,
    heads: u32,
    /// Query heads that share a key/value head.
    group: u32,
    /// `batch · heads_q`.
    sequences: u32,
    /// Sequences of a section; the last one may have fewer.
    section: u32,
    /// Number of tiles.
    pub count: u32,
}

impl Schedule {
    /// The tiles of `params` for clusters of `cluster_m` rows. The host has checked that they can be counted.
    #[inline(always)]
    pub fn new(params: &ForwardParams, cluster_m: u32) -> Self {
        let super_blocks = params.seq_q.div_ceil(cluster_m);
        let sequences = params.batch * params.heads_q;
        let section = if uneven(params) {
            section(params, sequences)
        } else {
            1
        };
        Self {
            super_blocks,
            heads: params.heads_q,
            group: divide(params.heads_q, params.heads_kv).0,
            sequences,
            section,
            count: super_blocks * sequences,
        }
    }

    /// Number of tiles, or `None` if 32 bits do not hold it and every counter value.
    pub fn checked_count(params: &ForwardParams, cluster_m: u32) -> Option<u32> {
        let sequences = params.batch.checked_mul(params.heads_q)?;
        let count = params.seq_q.div_ceil(cluster_m).checked_mul(sequences)?;
        (count <= i32::MAX as u32).then_some(count)
    }

    /// Tile number `index`, below [`Schedule::count`].
    #[inline(always)]
    pub fn get(&self, index: u32) -> Tile {
        let (number, in_section) = divide(index, self.section * self.super_blocks);
        let first = number * self.section;
        let sequences = self.section.min(self.sequences - first);
        let (reversed, sequence) = divide(in_section, sequences);
        let (batch, head) = divide(first + sequence, self.heads);
        Tile {
            super_block: self.super_blocks - 1 - reversed,
            head,
            head_kv: divide(head, self.group).0,
            batch,
        }
    }
}

/// Whether tiles of one head differ much in length: a border on the right but none near on the left.
#[inline(always)]
fn uneven(params: &ForwardParams) -> bool {
    params.band.upper < Band::OPEN && -(params.band.lower as i64) >= params.seq_q as i64
}

/// Sequences of a section: equal sections of at most [`L2_BYTES`] of K and V, whole groups of query heads.
#[inline(always)]
fn section(params: &ForwardParams, sequences: u32) -> u32 {
    let (group, _) = divide(params.heads_q, params.heads_kv);
    let head_bytes = params.seq_kv as u64 * (params.head_dim + params.head_dim_v) as u64 * 2;
    let kv_heads = params.batch * params.heads_kv;
    // In units of 4 KiB, so that 32-bit division does.
    let bytes = (kv_heads as u64 * head_bytes) >> 12;
    let sections = (bytes.div_ceil(L2_BYTES >> 12) as u32).clamp(1, kv_heads);
    divide(kv_heads + sections - 1, sections).0 * group.min(sequences)
}

/// Quotient and remainder by a positive number.
#[inline(always)]
fn divide(dividend: u32, divisor: u32) -> (u32, u32) {
    // SAFETY: there is a tile, so no extent is zero. Without this the division carries a panic branch.
    unsafe { core::hint::assert_unchecked(divisor != 0) };
    (dividend / divisor, dividend % divisor)
}
