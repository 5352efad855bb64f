//! The gradient by ALiBi's slopes, from a sum of each query row.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Problem, Sequence};

/// `Σ dz · distance` of each query row over the keys that it sees, in the order of lse.
pub(in crate::backend::cpu) struct SlopeRows {
    /// Bits of f64. Tasks write rows of their own; where sequences overlap, as wrong lengths on the device may make them, a row
    /// gets the value of either.
    sums: Vec<AtomicU64>,
    heads: usize,
    seq: usize,
}

impl SlopeRows {
    /// Zeros, if `problem` asks for the gradient.
    pub fn new(problem: &Problem) -> Option<Self> {
        problem.d_alibi_slopes()?;
        let shape = problem.o().shape;
        let rows = shape.batch * shape.heads * shape.seq;
        Some(Self {
            sums: (0..rows).map(|_| AtomicU64::default()).collect(),
            heads: shape.heads,
            seq: shape.seq,
        })
    }

    fn row(&self, batch: usize, head: usize, row: usize) -> &AtomicU64 {
        &self.sums[(batch * self.heads + head) * self.seq + row]
    }

    /// Sets the sum of a row of o.
    pub fn set(&self, batch: usize, head: usize, row: usize, sum: f64) {
        self.row(batch, head, row)
            .store(sum.to_bits(), Ordering::Relaxed);
    }

    /// The sum of head `head` of a sequence.
    fn of_head(&self, sequence: &Sequence, head: usize) -> f64 {
        let rows = sequence.q_rows.clone();
        let rows = rows.map(|row| self.row(sequence.batch, head, row));
        rows.map(|sum| f64::from_bits(sum.load(Ordering::Relaxed)))
            .sum()
    }

    /// Writes the gradients by all slopes to the f32 array at `address`.
    ///
    /// # Safety
    /// It has an element for every slope, and nobody else accesses it.
    pub unsafe fn write(&self, problem: &Problem, sequences: &[Sequence], address: u64) {
        let start: *mut f32 = std::ptr::with_exposed_provenance_mut(address as usize);
        let is_batched = problem.alibi().is_some_and(|slopes| slopes.is_batched());
        let rows = if is_batched { sequences.len() } else { 1 };
        for index in 0..rows * self.heads {
            let (row, head) = (index / self.heads, index % self.heads);
            let summed = if is_batched {
                &sequences[row..=row]
            } else {
                sequences
            };
            let sums = summed.iter().map(|sequence| self.of_head(sequence, head));
            // Not −0 where nothing is added.
            let gradient = 0.0 - sums.sum::<f64>();
            // SAFETY: the caller vouches for the element.
            unsafe { *start.add(index) = gradient as f32 };
        }
    }
}
