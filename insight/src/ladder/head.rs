//! One head, and the steps that the rungs of attention share.

use kernels_gpu::instances::INSTANCES;
use kernels_gpu::tile::block_range::visible_keys;

use super::dropout::Dropout;
use super::global::{Matrix, Tile};
use crate::cost::Tiles;
use ferroflash::{DType, Error, Layout, MAX_HEAD_DIM, Mask, Shape};
use ferroflash_testing::cases;

/// One head.
#[derive(Clone)]
pub struct Head {
    /// `[seq][head_dim]`.
    pub q: Matrix,
    /// `[seq][head_dim]`.
    pub k: Matrix,
    /// `[seq][head_dim]`.
    pub v: Matrix,
    pub seq: usize,
    pub head_dim: usize,
    pub mask: Mask,
    pub dropout: Option<Dropout>,
    /// Tile sizes of FA1 and FA2.
    pub tiles: Tiles,
}

impl Head {
    /// A head with normally distributed q, k and v, and the tiles of the fp32 kernel that would run it.
    ///
    /// # Errors
    /// [`Error::Argument`] for a size of 0 or one beyond what a CPU computes in a minute.
    pub fn random(seq: usize, head_dim: usize, seed: u64) -> Result<Self, Error> {
        /// S has so many elements in each direction at most: three rungs store it, in f32.
        const MAX_SEQ: usize = 1 << 13;
        if !(1..=MAX_HEAD_DIM).contains(&head_dim) {
            return Err(Error::argument(
                "head_dim",
                format!("{head_dim} is out of range"),
                format!("1 to {MAX_HEAD_DIM}"),
            ));
        }
        let most = ((MAX_PRODUCTS / head_dim) as f64).sqrt() as usize;
        let most = most.min(MAX_SEQ);
        if !(1..=most).contains(&seq) {
            return Err(Error::argument(
                "seq",
                format!("{seq} is out of range"),
                format!("1 to {most} on the CPU with a head_dim of {head_dim}"),
            ));
        }
        let shape = Shape {
            batch: 1,
            heads: 1,
            seq,
            dim: head_dim,
        };
        let matrix = |index| -> Result<Matrix, Error> {
            let tensor = cases::normal(DType::F32, shape, Layout::Bhsd, seed ^ index)?;
            Ok(Matrix::new(tensor.to_f32(Layout::Bhsd), head_dim))
        };
        Ok(Self {
            q: matrix(0)?,
            k: matrix(1)?,
            v: matrix(2)?,
            seq,
            head_dim,
            mask: Mask::None,
            dropout: None,
            tiles: kernel_tiles(head_dim),
        })
    }

    /// Whether query `i` sees key `j`.
    pub(super) fn visible(&self, i: usize, j: usize) -> bool {
        let band = self.mask.band(self.seq, self.seq);
        let (first, last) = visible_keys(i as i32, band, self.seq as u32);
        (first..=last).contains(&(j as i32))
    }

    /// `1 / √head_dim`.
    pub fn scale(&self) -> f32 {
        (self.head_dim as f32).sqrt().recip()
    }

    /// Score of query `i` and key `j`, whose rows are given; −∞ if the key is hidden.
    pub(super) fn score(&self, i: usize, j: usize, q: &[f32], k: &[f32]) -> f32 {
        if self.visible(i, j) {
            dot(q, k) * self.scale()
        } else {
            f32::NEG_INFINITY
        }
    }

    /// Dropout factor of entry (`i`, `j`) of P; 1 without dropout.
    pub(super) fn dropout_factor(&self, i: usize, j: usize) -> f32 {
        self.dropout
            .map_or(1.0, |dropout| dropout.factor(i, j) as f32)
    }
}

/// Largest seq² · head_dim: the rungs are written to be read, and together take 13 ns for each of
/// these in a debug build on one core.
const MAX_PRODUCTS: usize = 1 << 32;

/// FA1 keeps as many keys on the chip as FA2 here, to compare their loops and nothing else.
fn kernel_tiles(head_dim: usize) -> Tiles {
    let of_f32 = INSTANCES.iter().filter(|row| row.dtype == DType::F32);
    let wide_enough = of_f32.filter(|row| row.head_dim as usize >= head_dim);
    let kernel = wide_enough.min_by_key(|row| row.head_dim);
    let kernel = kernel.expect("fp32 kernels take every head_dim");
    Tiles {
        fa1_block_n: u64::from(kernel.block_n),
        block_m: u64::from(kernel.block_m),
        block_n: u64::from(kernel.block_n),
    }
}

/// `a · b`.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The maximum to subtract: 0 as long as no key was visible, so that no ∞ − ∞ arises.
pub(super) fn finite(max: f32) -> f32 {
    if max == f32::NEG_INFINITY { 0.0 } else { max }
}

/// `o ← o · rescale + weight · v`.
pub(super) fn accumulate(o: &mut [f32], rescale: f32, weight: f32, v: &[f32]) {
    for (o, v) in o.iter_mut().zip(v) {
        *o = *o * rescale + weight * v;
    }
}

/// Output and log-sum-exp in memory, and the other matrices that a rung keeps there.
pub struct Run {
    pub o: Matrix,
    /// Log-sum-exp, in nats.
    pub lse: Matrix,
    /// S and P, where they are stored.
    pub scores: Vec<Matrix>,
    /// Row statistics other than lse that are stored.
    pub stats: Vec<Matrix>,
}

/// The rows of q, or of k and v, in blocks of `block`.
pub(super) fn blocks(seq: usize, block: u64) -> impl Iterator<Item = std::ops::Range<usize>> {
    let block = block as usize;
    (0..seq)
        .step_by(block)
        .map(move |begin| begin..(begin + block).min(seq))
}

/// Scores of a block of queries and a block of keys.
pub(super) fn score_tile(
    head: &Head,
    rows: &std::ops::Range<usize>,
    keys: &std::ops::Range<usize>,
    q: &Tile,
    k: &Tile,
) -> Tile {
    let mut s = Tile::filled(0.0, rows.len(), keys.len());
    for i in 0..rows.len() {
        for j in 0..keys.len() {
            s.row_mut(i)[j] = head.score(rows.start + i, keys.start + j, q.row(i), k.row(j));
        }
    }
    s
}
