use std::collections::HashMap;
use std::sync::Mutex;

use ferroflash_fronts::lock;
use pyo3::prelude::*;

use crate::call::{Call, Results};
use crate::view::Tensors;

type Tensor<'a, 'py> = &'a Bound<'py, PyAny>;

/// cu_seqlens_q, cu_seqlens_kv and the bounds on lengths.
type Lengths<'py> = (
    Option<Bound<'py, PyAny>>,
    Option<Bound<'py, PyAny>>,
    usize,
    usize,
);

/// Forward passes of the same scalars that have no tensor but q, k, v and those of lengths, at most so many, by how these lie: Python
/// looks none of them up.
#[pyclass(frozen, module = "ferroflash._native")]
pub struct Calls {
    most: usize,
    by_tensors: Mutex<HashMap<Vec<u8>, Py<Call>>>,
}

#[pymethods]
impl Calls {
    #[new]
    fn new(most: usize) -> Self {
        let by_tensors = Mutex::default();
        Self { most, by_tensors }
    }

    fn __len__(&self) -> usize {
        lock(&self.by_tensors).len()
    }

    /// Keeps a call of such tensors, for those like it. Those that were kept are forgotten where they are too many.
    fn keep(&self, q: Tensor, k: Tensor, v: Tensor, lengths: Lengths, call: Py<Call>) {
        let Some(tensors) = read(q, k, v, &lengths) else {
            return;
        };
        let mut calls = lock(&self.by_tensors);
        if calls.len() >= self.most {
            calls.clear(); // those that are still made come back
        }
        calls.insert(tensors.signature, call);
    }

    /// Queues a call like one that is kept on its device's current stream: o and lse. None where there is none.
    fn forward<'py>(
        &self,
        q: Tensor<'_, 'py>,
        k: Tensor<'_, 'py>,
        v: Tensor<'_, 'py>,
        lengths: Lengths<'py>,
        needs_lse: bool,
    ) -> PyResult<Option<Results<'py>>> {
        let py = q.py();
        let kept = |tensors: Tensors<5>| {
            let call = lock(&self.by_tensors)
                .get(&tensors.signature)?
                .clone_ref(py);
            Some((call, tensors))
        };
        let Some((call, of)) = read(q, k, v, &lengths).and_then(kept) else {
            return Ok(None);
        };
        let [q, k, v, sums_q, sums_kv] = of.addresses;
        let mut arrays = [None; 11];
        arrays[..2].copy_from_slice(&[sums_q, sums_kv]);
        let at = ([q, k, v], arrays);
        call.get()
            .attend(py, of.stream, at, None, None, needs_lse)
            .map(Some)
    }
}

/// How they lie, with the bounds on lengths, and where.
fn read(q: Tensor, k: Tensor, v: Tensor, lengths: &Lengths) -> Option<Tensors<5>> {
    let (sums_q, sums_kv, longest_q, longest_kv) = lengths;
    let mut read = Tensors::read([Some(q), Some(k), Some(v), sums_q.as_ref(), sums_kv.as_ref()])?;
    for longest in [longest_q, longest_kv] {
        read.signature.extend(longest.to_ne_bytes());
    }
    Some(read)
}
