//! Biases on their way to scores: copied to shared memory beside the queries that they are of, by the warp that loads these' terms.
//!
//! ```text
//! a stage    [block_n queries][block_m keys], 16 bits each, swizzled by vec16s (layout/swizzle.rs)
//! ```

use cuda_std::half::{Bf16, F16, Half};
use cuda_std::warp::{WARP_SIZE, lane_id};
use cuda_std::{cp_async, ldmatrix, shared};

use super::pairs::PAIR;
use crate::config::wgmma::WARP_ROWS;
use crate::config::wgmma_backward::WgmmaBackwardConfig;
use crate::layout::fragment::ROW_STEP;
use crate::layout::swizzle::{VEC16_BYTES, VEC16_ELEMS, offset, row_vec16s};
use crate::math::fma;
use crate::modifiers::BiasRows;
use crate::tile::black_box;

/// Rows of a matrix of `ldmatrix`, and the matrices that a load takes: keys beside each other, below each other queries.
const MATRIX_ROWS: u32 = ROW_STEP;
const MATRICES: usize = 4;
/// Queries that a load takes.
const LOAD_QUERIES: u32 = 2 * MATRIX_ROWS;

/// Which biases lie in a stage.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Copied(u32);

impl Copied {
    /// None: if there are some, they are read one by one.
    pub const NO: Self = Self(0);
    const F16: Self = Self(1);
    const BF16: Self = Self(2);

    /// What [`copy`] makes of `biases`.
    #[inline(always)]
    pub fn of(biases: Option<BiasRows>) -> Self {
        match biases {
            None => Self::NO,
            Some(BiasRows { is_f16: true, .. }) => Self::F16,
            Some(_) => Self::BF16,
        }
    }

    /// Leaves it in the word at `smem`.
    ///
    /// # Safety
    /// Nobody else accesses the word until the stage is full.
    #[inline(always)]
    pub unsafe fn store(self, smem: u32) {
        shared::store_bits(smem, self.0);
    }

    /// The word at `smem`.
    ///
    /// # Safety
    /// The stage is full.
    #[inline(always)]
    pub unsafe fn load(smem: u32) -> Self {
        Self(shared::load_bits(smem))
    }
}

/// Starts copying the biases of a block's queries and a tile's keys to `smem`.
///
/// # Safety
/// All 32 lanes reach the same call with the same biases, which are live; nobody accesses the stage.
#[inline(always)]
pub(super) unsafe fn copy(biases: &BiasRows, smem: u32, config: &WgmmaBackwardConfig) {
    let columns = config.block_m() as usize;
    let row_vec16s = row_vec16s(columns) as u32;
    let rows_at_once = WARP_SIZE / row_vec16s;
    let (mut row, vec16) = (lane_id() / row_vec16s, lane_id() % row_vec16s);
    let mut from = biases
        .base
        .wrapping_add_signed(row as i64 * biases.row_bytes)
        .wrapping_add((vec16 * VEC16_BYTES) as u64);
    let step = rows_at_once as i64 * biases.row_bytes;
    while row < config.block_n {
        cp_async::copy16(smem + offset(columns, row, vec16), from);
        from = from.wrapping_add_signed(step);
        row += rows_at_once;
    }
}

/// Turns a thread's products `q · k` into scores in nats: times `scale`, and the biases in the stage at `smem`, which are `copied`, of the
/// queries from the first on and of keys `first_key` and behind, of the tile, the warp's.
///
/// # Safety
/// The stage is full, and some are copied to it; all 32 lanes reach the same call.
#[inline(always)]
pub(super) unsafe fn add<const S_REGS: usize>(
    scores: &mut [f32; S_REGS],
    scale: f32,
    copied: Copied,
    [smem, first_key]: [u32; 2],
    config: &WgmmaBackwardConfig,
) {
    if copied == Copied::F16 {
        add_pairs::<F16, S_REGS>(scores, scale, [smem, first_key], config);
    } else {
        add_pairs::<Bf16, S_REGS>(scores, scale, [smem, first_key], config);
    }
}

/// The same of biases of type `E`.
///
/// # Safety
/// As [`add`].
#[inline(always)]
unsafe fn add_pairs<E: Half, const S_REGS: usize>(
    scores: &mut [f32; S_REGS],
    scale: f32,
    [smem, first_key]: [u32; 2],
    config: &WgmmaBackwardConfig,
) {
    const LOAD_REGS: usize = MATRICES * PAIR;
    const { assert!(WARP_ROWS == 2 * MATRIX_ROWS && S_REGS.is_multiple_of(LOAD_REGS)) };
    let columns = config.block_m() as usize;
    let lane = black_box(lane_id());
    // A lane gives the address of a matrix' row: two matrices lie beside each other, as a warp has twice as many keys.
    let (matrix, row) = (lane / MATRIX_ROWS, lane % MATRIX_ROWS);
    let query = matrix / 2 * MATRIX_ROWS + row;
    let vec16 = first_key / VEC16_ELEMS as u32 + matrix % 2;
    let first = smem + offset(columns, query, vec16);
    for load in 0..S_REGS / LOAD_REGS {
        // Of queries a multiple of 8 further, vec16s lie in the same places of their rows.
        let further = offset(columns, load as u32 * LOAD_QUERIES, 0);
        let words = ldmatrix::load_x4_transposed(first + further);
        for i in 0..MATRICES {
            let biases = E::widen_pair(words[i]);
            for c in 0..PAIR {
                let at = load * LOAD_REGS + i * PAIR + c;
                scores[at] = fma(scores[at], scale, biases[c]);
            }
        }
    }
}
