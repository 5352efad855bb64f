use ferroflash::{DType, Layout, TensorSpec};
use ferroflash_fronts::{BlockTable, Operand};
use pyo3::prelude::*;

type Axes<T> = (T, T, T, T);

/// A tensor without its address, as Python gives it: `(shape, strides)`, always of rank 4.
#[derive(FromPyObject)]
pub struct View(pub Axes<usize>, pub Axes<i64>);

impl View {
    /// Its spec, with the axes in the order of `layout`.
    pub fn spec(&self, dtype: usize, layout: Layout) -> TensorSpec {
        TensorSpec {
            dtype: DType::ALL[dtype],
            shape: layout.shape(self.0.into()),
            strides: layout.strides(self.1.into()),
        }
    }
}

/// A cache beside its k and v, as Python gives it: whether these are e4m3, its lengths, the block table of a paged one with its
/// columns and the elements from one row to the next, scales of k and of v, and a tree's words and whether each sequence has its own.
#[derive(FromPyObject)]
pub struct Cache(
    bool,
    u64,
    Option<BlockTable>,
    Option<[(u64, View); 2]>,
    Option<(u64, bool)>,
);

impl Cache {
    /// As fronts share it.
    pub fn shared(&self) -> ferroflash_fronts::Cache {
        ferroflash_fronts::Cache {
            is_e4m3: self.0,
            kv_lens: self.1,
            block_table: self.2,
            tree: self.4,
            scales: (self.3.as_ref()).map(|scales| scales.each_ref().map(|of| operand(of, 0))),
        }
    }
}

/// A tensor of `[batch, seq, heads, dim]`: its address, and how it lies there.
pub fn operand((address, view): &(u64, View), dtype: usize) -> Operand {
    (*address, view.spec(dtype, Layout::Bshd))
}
