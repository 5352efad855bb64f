use std::ops::Range;

use kernels_gpu::abi::Band;

use super::Problem;

/// Where the rows of one batch entry are, and what its queries see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Index along the operands' batch axis: 0 in a varlen problem.
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
        match &self.cu_seqlens {
            Some(packed) => packed.batch(),
            None => self.q.shape.batch,
        }
    }

    /// Query rows of the longest sequence.
    pub fn seq_q(&self) -> usize {
        match &self.cu_seqlens {
            Some(packed) => packed.longest_q(),
            None => self.q.shape.seq,
        }
    }

    /// Keys of the longest sequence.
    pub fn seq_kv(&self) -> usize {
        match &self.cu_seqlens {
            Some(packed) => packed.longest_kv(),
            None => self.k.shape.seq,
        }
    }

    /// Batch entry number `index`.
    ///
    /// # Panics
    /// If `index` is not below [`batch`](Self::batch).
    pub fn sequence(&self, index: usize) -> Sequence {
        assert!(index < self.batch());
        let (batch, q_rows, kv_rows) = match &self.cu_seqlens {
            Some(packed) => {
                let rows = |sums: &[i32]| sums[index] as usize..sums[index + 1] as usize;
                (0, rows(packed.q()), rows(packed.kv()))
            }
            None => (index, 0..self.q.shape.seq, 0..self.k.shape.seq),
        };
        Sequence {
            batch,
            band: self.mask.band(q_rows.len(), kv_rows.len()),
            q_rows,
            kv_rows,
        }
    }

    /// Every batch entry.
    pub fn sequences(&self) -> impl Iterator<Item = Sequence> + '_ {
        (0..self.batch()).map(|index| self.sequence(index))
    }

    /// Visible (query, key) pairs of one head of every batch entry.
    pub fn visible_pairs(&self) -> u64 {
        match &self.cu_seqlens {
            Some(_) => self.sequences().map(|s| s.visible_pairs()).sum(),
            // All alike.
            None if self.batch() == 0 => 0,
            None => self.batch() as u64 * self.sequence(0).visible_pairs(),
        }
    }

    /// Whether anything is to be computed at all.
    pub fn is_empty(&self) -> bool {
        self.batch() == 0 || self.q.shape.heads == 0 || self.seq_q() == 0
    }
}
