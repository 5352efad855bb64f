use std::ops::Range;

use kernels_gpu::abi::Band;

use super::lengths::Extent;
use super::{Lengths, Problem};

/// Where the rows of one batch entry are, and what its queries see.
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
    pub fn visible_pairs(&self) -> u64 {
        let last_key = self.seq_kv() as i64 - 1;
        let keys_seen = |i: i64| {
            let first = (i + i64::from(self.band.lower)).max(0);
            let last = (i + i64::from(self.band.upper)).min(last_key);
            (last - first + 1).max(0) as u64
        };
        (0..self.seq_q() as i64).map(keys_seen).sum()
    }
}

impl Problem {
    /// Batch entries: sequences, packed or not.
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

    /// Query rows of the longest sequence, or as many as none exceeds.
    pub fn seq_q(&self) -> usize {
        self.longest()[0]
    }

    /// Keys of the longest sequence, or as many as none exceeds.
    pub fn seq_kv(&self) -> usize {
        self.longest()[1]
    }

    fn longest(&self) -> [usize; 2] {
        let rows = [self.q().shape.seq, self.k().shape.seq];
        match self.lengths() {
            Lengths::Dense => rows,
            Lengths::Packed(packed) => [packed.longest_q(), packed.longest_kv()],
            Lengths::OnDevice(lengths) => match lengths.packed_bounds() {
                // A promise beyond the operands promises nothing.
                Some([_, q, kv]) => [q.min(rows[0]), kv.min(rows[1])],
                None => rows,
            },
            Lengths::Known(known) => known.longest(),
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
        let (q_rows, kv_rows) = match self.lengths() {
            Lengths::Dense => (0..self.q().shape.seq, 0..self.k().shape.seq),
            Lengths::Packed(packed) => {
                let rows = |sums: &[i32]| sums[index] as usize..sums[index + 1] as usize;
                (rows(packed.q()), rows(packed.kv()))
            }
            Lengths::OnDevice(_) => panic!("only the device knows the lengths"),
            Lengths::Known(known) => {
                let Extent { q_rows, kv_rows } = known.sequence(index);
                (q_rows, kv_rows)
            }
        };
        Sequence {
            batch: if self.is_packed() { 0 } else { index },
            band: self.mask().band(q_rows.len(), kv_rows.len()),
            q_rows,
            kv_rows,
        }
    }

    /// Every batch entry.
    pub fn sequences(&self) -> impl Iterator<Item = Sequence> + '_ {
        (0..self.batch()).map(|index| self.sequence(index))
    }

    /// Visible (query, key) pairs of one head of every batch entry.
    ///
    /// # Panics
    /// If only the device knows the lengths.
    pub fn visible_pairs(&self) -> u64 {
        match self.lengths() {
            // All alike.
            Lengths::Dense if self.batch() == 0 => 0,
            Lengths::Dense => self.batch() as u64 * self.sequence(0).visible_pairs(),
            _ => self.sequences().map(|s| s.visible_pairs()).sum(),
        }
    }

    /// Whether anything is to be computed at all.
    pub fn is_empty(&self) -> bool {
        self.batch() == 0 || self.q().shape.heads == 0 || self.seq_q() == 0
    }
}
