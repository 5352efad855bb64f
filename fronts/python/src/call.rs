use ferroflash_fronts::problem;
use ferroflash_torch::{Call, Memory, View, exception};
use pyo3::prelude::*;

use crate::operands::Arrays;
use crate::options::Options;

/// Checks a forward pass of `operands` (q, k, v, o), or, with d_o, dq, dk and dv behind these four, a backward pass. Its launches
/// have a workspace from `allocate`, which is None where there are to be none, and o and lse from `results`.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // Python's, by position
pub fn checked(
    py: Python<'_>,
    place: (i32, u64),
    dtype: usize,
    options: PyRef<'_, Options>,
    operands: Vec<View>,
    arrays: Arrays,
    allocate: Py<PyAny>,
    results: Option<(Py<PyAny>, Py<PyAny>)>,
) -> PyResult<Call> {
    let raise = |error| exception(py, error);
    let spec = |operand: &View| operand.spec(dtype, options.layout);
    let specs: Vec<_> = operands.iter().map(spec).collect();
    let asked = options.forward(specs[0].shape.heads, &arrays);
    let asked = asked.map_err(raise)?;
    let problem = match (&specs[..], &arrays.cache) {
        (&[q, k, v, o], Some(cache)) => cache.shared().problem([q, k, v, o], &asked),
        (specs, _) => problem(specs, &asked, |asked| options.backward(asked, &arrays)),
    };
    let memory = Memory {
        workspace: allocate,
        results,
    };
    // SAFETY: Python gives streams of torch, of the device's primary context; torch's streams are never destroyed, and who wraps
    // one of his own (`torch.cuda.ExternalStream`) promises torch the same. A call is launched on tensors that lie alike.
    unsafe { Call::new(py, place, problem.map_err(raise)?, (&arrays).into(), memory) }
}

impl From<&Arrays> for ferroflash_torch::Arrays {
    fn from(of: &Arrays) -> Self {
        Self {
            has: [of.mask.is_some(), of.bias.is_some(), of.documents.is_some()],
            wanted: of.wanted,
        }
    }
}
