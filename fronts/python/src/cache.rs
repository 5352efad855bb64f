use ferroflash_fronts::{NewRows, Place};
use ferroflash_torch::{Cache, View, exception, operand};
use pyo3::prelude::*;

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
