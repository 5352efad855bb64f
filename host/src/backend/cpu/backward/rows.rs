//! lse and delta of each query row.

use rayon::prelude::*;

use super::super::modifiers::CpuModifiers;
use super::super::pack::Matrix;
use crate::{GradientOperands, Operands, Problem, Sequence};

/// Per query row, the two terms that the gradients of its scores need: lse and delta.
pub(in crate::backend::cpu) struct Rows {
    /// `Σ_c d_o · o − d_lse`, in the order of lse.
    delta: Vec<f32>,
    /// Address of lse.
    lse: u64,
    heads: usize,
    seq: usize,
}

impl Rows {
    /// lse and delta of the rows of `sequences`.
    ///
    /// # Safety
    /// As for [`Backend::launch`](crate::Backend::launch).
    pub unsafe fn new(
        problem: &Problem,
        sequences: &[Sequence],
        operands: &Operands,
        gradients: &GradientOperands,
    ) -> Self {
        let shape = problem.o().shape;
        let (heads, seq) = (shape.heads, shape.seq);
        let mut rows = Self {
            delta: vec![0.0; shape.batch * heads * seq],
            lse: operands.lse.unwrap_or_default(),
            heads,
            seq,
        };
        let delta = Shared(rows.delta.as_mut_ptr());
        let places = sequences.len() * heads;
        (0..places).into_par_iter().for_each(|place| {
            let (sequence, head) = (&sequences[place / heads], place % heads);
            let &Sequence {
                batch, ref q_rows, ..
            } = sequence;
            let d_o_spec = &problem.gradients().expect("a backward pass").d_o;
            let o = Matrix::new(problem.o(), operands.o, batch, head, q_rows.start);
            let d_o = Matrix::new(d_o_spec, gradients.d_o, batch, head, q_rows.start);
            let (mut o_row, mut d_o_row) = (vec![0.0; shape.dim], vec![0.0; shape.dim]);
            for i in 0..q_rows.len() {
                let index = rows.index(batch, head, q_rows.start + i);
                // SAFETY: row i of this sequence and head lies inside o, d_o and d_lse, and no other task has `index`.
                // Where sequences overlap, as wrong lengths on the device may make them, the element gets the value of
                // either row.
                unsafe {
                    o.read_row(i, &mut o_row);
                    d_o.read_row(i, &mut d_o_row);
                    let d_lse = gradients.d_lse.map_or(0.0, |at| read(at, index));
                    delta.write(index, dot(&o_row, &d_o_row) - d_lse);
                }
            }
        });
        rows
    }

    fn index(&self, batch: usize, head: usize, row: usize) -> usize {
        (batch * self.heads + head) * self.seq + row
    }

    /// (lse, delta) of a row. For a row without keys lse is ∞, which makes every probability 0.
    ///
    /// # Safety
    /// The row lies inside o, and lse is live.
    pub unsafe fn get(&self, batch: usize, head: usize, row: usize) -> (f32, f32) {
        let index = self.index(batch, head, row);
        // SAFETY: lse holds an element for every row of every head of o.
        match unsafe { read(self.lse, index) } {
            f32::NEG_INFINITY => (f32::INFINITY, 0.0),
            lse => (lse, self.delta[index]),
        }
    }
}

impl Rows {
    /// Writes the gradients by sinks, `−Σ exp(sink − lse) · delta` over all rows of a head, to the f32 array at `address`.
    ///
    /// # Safety
    /// It has an element for every query head, and nobody else accesses it; lse is live.
    pub unsafe fn write_sink_gradient(
        &self,
        problem: &Problem,
        modifiers: &CpuModifiers,
        address: u64,
    ) {
        let start: *mut f32 = std::ptr::with_exposed_provenance_mut(address as usize);
        let batch = problem.o().shape.batch;
        for head in 0..self.heads {
            let sink = f64::from(modifiers.sink(head).expect("there are sinks"));
            let rows = (0..batch).flat_map(|batch| (0..self.seq).map(move |row| (batch, row)));
            let terms = rows.map(|(batch, row)| {
                // SAFETY: the row lies inside o.
                let (lse, delta) = unsafe { self.get(batch, head, row) };
                (sink - f64::from(lse)).exp() * f64::from(delta)
            });
            // Not −0 where nothing is added.
            let gradient = 0.0 - terms.sum::<f64>();
            // SAFETY: the caller vouches for the element.
            unsafe { *start.add(head) = gradient as f32 };
        }
    }
}

/// # Safety
/// An f32 lies at element `index` from `address` on.
unsafe fn read(address: u64, index: usize) -> f32 {
    let start: *const f32 = std::ptr::with_exposed_provenance(address as usize);
    // SAFETY: the caller's contract is this function's.
    unsafe { *start.add(index) }
}

/// A dot product, summed in f64: delta is subtracted from a sum of similar size.
fn dot(x: &[f32], y: &[f32]) -> f32 {
    let products = x.iter().zip(y).map(|(&x, &y)| f64::from(x) * f64::from(y));
    products.sum::<f64>() as f32
}

/// An array that tasks share; each writes elements of its own.
#[derive(Clone, Copy)]
struct Shared(*mut f32);

// SAFETY: tasks write different elements, and nobody reads before they are done.
unsafe impl Sync for Shared {}

impl Shared {
    /// # Safety
    /// The element exists, and nobody else accesses it.
    unsafe fn write(&self, index: usize, value: f32) {
        // SAFETY: the caller's contract is this function's.
        unsafe { *self.0.add(index) = value };
    }
}
