use std::ops::Range;

use kernels_gpu::abi::Band;

use super::{Lengths, Problem};

/// Rows of one batch entry, and the keys its queries see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Index along the operands' batch axis: 0 where sequences are packed.
    pub batch: usize,
    /// Its rows of q, o and lse.
    pub q_rows: Range<usize>,
    /// Its rows of k and v.
    pub kv_rows: Range<usize>,
    /// The mask as bounds on `j - i`, aligned to the bottom-right corner.
    pub band: Band,
}

impl Sequence {
    /// Query rows.
    pub fn seq_q(&self) -> usize {
        self.q_rows.len()
    }

    /// Keys.
    pub fn seq_kv(&self) -> usize {
        self.kv_rows.len()
    }

    /// Visible (query, key) pairs of one head.
    pub fn visible_pairs(&self) -> u128 {
        let Band { lower, upper } = self.band;
        if upper < lower {
            return 0;
        }
        self.keys_within(i64::from(upper)) - self.keys_within(i64::from(lower) - 1)
    }

    /// Pairs whose key is at most `bound` positions behind its query: `Σᵢ clamp(i + bound + 1, 0, seq_kv)`.
    fn keys_within(&self, bound: i64) -> u128 {
        let (seq_q, seq_kv) = (self.seq_q() as i64, self.seq_kv() as i64);
        // Rows before `first` see none, rows from `full` on all keys; between them each sees one more than the row before.
        let first = (-bound).clamp(0, seq_q);
        let full = (seq_kv - bound).clamp(first, seq_q);
        let rising = (full - first) as u128;
        let seen_by_first = (first + bound + 1).clamp(0, seq_kv) as u128;
        let triangle = rising * rising.saturating_sub(1) / 2;
        rising * seen_by_first + triangle + (seq_q - full) as u128 * seq_kv as u128
    }
}

/// The rows of sequence `index`, by running sums.
fn rows_of(sums: &[i32], index: usize) -> Range<usize> {
    sums[index] as usize..sums[index + 1] as usize
}

impl Problem {
    /// Number of batch entries: sequences, packed or not.
    pub fn batch(&self) -> usize {
        match self.lengths() {
            Lengths::Dense => self.q().shape.batch,
            Lengths::Packed(packed) => packed.batch(),
            Lengths::OnDevice(lengths) => lengths
                .packed_bounds()
                .map_or(self.q().shape.batch, |[batch, ..]| batch),
            Lengths::Known(known) => known.batch(),
        }
    }

    /// Query rows of the longest sequence, or an upper bound.
    pub fn seq_q(&self) -> usize {
        self.longest()[0]
    }

    /// Keys of the longest sequence, or an upper bound.
    pub fn seq_kv(&self) -> usize {
        self.longest()[1]
    }

    fn longest(&self) -> [usize; 2] {
        let capacity = self.cache_capacity();
        let rows = [self.q().shape.seq, capacity.unwrap_or(self.k().shape.seq)];
        let [q, kv] = match self.lengths() {
            Lengths::Dense => rows,
            Lengths::Packed(packed) => [packed.longest_q(), packed.longest_kv()],
            Lengths::OnDevice(lengths) => match lengths.packed_bounds() {
                // A bound beyond the operands' rows adds nothing.
                Some([_, q, kv]) => [q.min(rows[0]), kv.min(rows[1])],
                None => rows,
            },
            Lengths::Known(known) => known.longest(),
        };
        // A cache has lengths of its own.
        [q, capacity.unwrap_or(kv)]
    }

    /// Rows of q that are sequence `index`'s: of its batch entry, or of all where they are packed.
    ///
    /// # Panics
    /// As [`sequence`](Self::sequence), but for caches.
    pub(crate) fn q_rows(&self, index: usize) -> Range<usize> {
        match self.lengths() {
            Lengths::Dense => 0..self.q().shape.seq,
            Lengths::Packed(packed) => rows_of(packed.q(), index),
            Lengths::Known(known) => known.sequence(index).q_rows,
            Lengths::OnDevice(_) => panic!("only the device knows the lengths"),
        }
    }

    /// Whether sequences are packed along the rows of the operands (varlen).
    pub fn is_packed(&self) -> bool {
        match self.lengths() {
            Lengths::Dense => false,
            Lengths::Packed(_) => true,
            Lengths::OnDevice(lengths) => lengths.is_packed(),
            Lengths::Known(known) => known.is_packed(),
        }
    }

    /// Whether an array in the backend's memory says how many rows of k and v each sequence uses.
    pub(crate) fn has_seqused_kv(&self) -> bool {
        matches!(self.lengths(), Lengths::OnDevice(lengths) if lengths.has_seqused_kv())
    }

    /// Batch entry number `index`.
    ///
    /// # Panics
    /// If `index` is not below [`batch`](Self::batch), or only the device knows the lengths.
    pub fn sequence(&self, index: usize) -> Sequence {
        assert!(index < self.batch());
        assert!(
            self.cache_layout().is_none(),
            "only the device knows the lengths"
        );
        let q_rows = self.q_rows(index);
        let kv_rows = match self.lengths() {
            Lengths::Dense => 0..self.k().shape.seq,
            Lengths::Packed(packed) => rows_of(packed.kv(), index),
            Lengths::OnDevice(_) => panic!("only the device knows the lengths"),
            Lengths::Known(known) => known.sequence(index).kv_rows,
        };
        Sequence {
            batch: if self.is_packed() { 0 } else { index },
            band: self.mask().band(q_rows.len(), kv_rows.len()),
            q_rows,
            kv_rows,
        }
    }

    /// Rows of k and v of batch entry number `index`, those included that `seqused_kv` leaves unused.
    ///
    /// # Panics
    /// As for [`sequence`](Self::sequence).
    pub(crate) fn kv_rows_with_unused(&self, index: usize) -> usize {
        let unused = match self.lengths() {
            Lengths::Known(known) => known.sequence(index).unused_kv,
            _ => 0,
        };
        self.sequence(index).seq_kv() + unused
    }

    /// Every batch entry.
    pub fn sequences(&self) -> impl Iterator<Item = Sequence> + '_ {
        (0..self.batch()).map(|index| self.sequence(index))
    }

    /// Visible (query, key) pairs of one head of every batch entry.
    ///
    /// # Panics
    /// If only the device knows the lengths.
    pub fn visible_pairs(&self) -> u128 {
        match self.lengths() {
            // All sequences have the same lengths.
            Lengths::Dense if self.batch() == 0 => 0,
            Lengths::Dense => self.batch() as u128 * self.sequence(0).visible_pairs(),
            _ => self.sequences().map(|s| s.visible_pairs()).sum(),
        }
    }

    /// Whether anything is to be computed at all.
    pub fn is_empty(&self) -> bool {
        // Keys that no query sees have gradients of 0, which are written.
        let rows = match self.gradients() {
            None => self.seq_q(),
            Some(_) => self.seq_q().max(self.seq_kv()),
        };
        // And slopes, sinks and biases that no pair depends on.
        let parameters = [self.d_alibi_slopes(), self.d_sinks(), self.d_bias()];
        let mut parameters = parameters.into_iter().flatten();
        let writes_zeros = parameters.any(|spec| !spec.is_empty());
        !writes_zeros && (self.batch() == 0 || self.q().shape.heads == 0 || rows == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CuSeqlens, DType, ForwardOptions, Layout, Mask, Shape, TensorSpec};

    fn problem(shape_q: Shape, shape_kv: Shape, options: &ForwardOptions) -> Problem {
        let spec = |shape| TensorSpec::contiguous(DType::F32, shape, Layout::Bshd).unwrap();
        let broadcast = |shape: Shape| {
            let mut spec = spec(Shape { batch: 1, ..shape });
            spec.shape.batch = shape.batch;
            spec.strides.batch = 0;
            spec
        };
        let (q, kv) = (broadcast(shape_q), broadcast(shape_kv));
        Problem::with_dense_output(q, kv, kv, options).unwrap()
    }

    #[test]
    fn pairs_are_those_of_a_count() {
        let sides = [None, Some(0), Some(1), Some(3), Some(9)];
        let windows = sides
            .into_iter()
            .flat_map(|left| sides.map(|right| Mask::Window { left, right }));
        let edges = [None, Some(-9), Some(-2), Some(0), Some(1), Some(4)];
        let bands = edges
            .into_iter()
            .flat_map(|lower| edges.map(|upper| Mask::Band { lower, upper }));
        for mask in windows.chain(bands) {
            for (seq_q, seq_kv) in (0..6).flat_map(|q| (0..6).map(move |kv| (q, kv))) {
                let lengths = CuSeqlens::from_lengths([(seq_q, seq_kv)]).unwrap();
                let options = ForwardOptions::new().mask(mask).cu_seqlens(lengths);
                let shapes = [seq_q, seq_kv].map(|rows| Shape::packed(rows, 1, 1));
                let sequence = problem(shapes[0], shapes[1], &options).sequence(0);
                let sees = |i: usize, j: usize| {
                    let distance = j as i32 - i as i32;
                    sequence.band.lower <= distance && distance <= sequence.band.upper
                };
                let pairs = (0..seq_q).flat_map(|i| (0..seq_kv).map(move |j| (i, j)));
                let count = pairs.filter(|&(i, j)| sees(i, j)).count();
                assert_eq!(
                    sequence.visible_pairs() as usize,
                    count,
                    "{mask:?} {seq_q}x{seq_kv}"
                );
            }
        }
    }

    #[test]
    fn the_largest_problems_do_not_overflow_their_counts() {
        let shape = |seq| Shape {
            batch: 1_000_000,
            heads: 1,
            seq,
            dim: 1,
        };
        let rows = 1 << 24;
        let options = ForwardOptions::new();
        let pairs = 1e6 * f64::from(1 << 24) * f64::from(1 << 24);
        let large = problem(shape(rows), shape(rows), &options);
        assert_eq!(large.visible_pairs() as f64, pairs);
        assert_eq!(large.flops(), 4.0 * pairs);
        let options = options.mask(Mask::Causal);
        let half = problem(shape(rows), shape(rows), &options);
        assert_eq!(
            half.visible_pairs() as f64,
            1e6 * f64::from(1 << 23) * f64::from((1 << 24) + 1)
        );
    }
}
