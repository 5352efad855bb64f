use ferroflash::Layout;
use ferroflash_fronts::{BlockTable, NewRows, Operand, Place};
use pyo3::prelude::*;

use crate::errors::exception;
use crate::operands::View;

/// A cache beside its k and v: whether these are e4m3, its lengths, the block table of a paged one with its columns and the
/// elements from one row to the next, scales of k and of v, and a tree's words and whether each sequence has its own.
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

fn operand((address, view): &(u64, View), dtype: usize) -> Operand {
    (*address, view.spec(dtype, Layout::Bshd))
}

/// Queues the writing of new rows into a cache. Operands are k, v, k_cache, v_cache, each an address and how it lies; to rotate k,
/// cos and sin, and whether pairs are interleaved; to rotate it too, q and what it becomes. `slots` are an address and the
/// elements of a row.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // Python's, by position
pub fn append(
    py: Python<'_>,
    place: (i32, u64),
    dtype: usize,
    operands: [(u64, View); 4],
    cache: Cache,
    rotary: Option<([(u64, View); 2], bool)>,
    q: Option<[(u64, View); 2]>,
    slots: Option<(u64, usize)>,
) -> PyResult<()> {
    let rows = NewRows {
        operands: operands.each_ref().map(|of| operand(of, dtype)),
        rotary: rotary.map(|(of, pairs)| (of.each_ref().map(|of| operand(of, 0)), pairs)),
        q: q.map(|both| both.each_ref().map(|of| operand(of, dtype))),
        slots,
    };
    let raise = |error| exception(py, error);
    let (problem, addresses) = cache.shared().append(&rows).map_err(raise)?;
    // SAFETY: as for a call's launch.
    let place = unsafe { Place::new(place.0, place.1) }.map_err(raise)?;
    // SAFETY: Python's half gives addresses of tensors that it holds, of these shapes and strides.
    py.detach(|| unsafe { place.append(&problem, &addresses) })
        .map_err(raise)
}
