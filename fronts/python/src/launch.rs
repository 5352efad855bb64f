use ferroflash::{Operands, Plan, Plans, Workspace};
use ferroflash_fronts::{Place, forward_operands, gradient_operands, problem};
use ferroflash_torch::{address, addresses};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::cache::Cache;
use crate::errors::exception;
use crate::operands::{Arrays, View};
use crate::options::Options;

/// A call without its addresses: made and checked once, for any number of launches.
#[pyclass(frozen, module = "ferroflash._native")]
pub struct Call {
    device: i32,
    plans: Plans,
    arrays: Arrays,
}

#[pymethods]
impl Call {
    /// A forward pass of `operands` (q, k, v, o), or, with d_o, dq, dk and dv behind these four, a backward pass.
    #[new]
    fn new(
        py: Python<'_>,
        device: i32,
        stream: u64,
        dtype: usize,
        options: PyRef<'_, Options>,
        operands: Vec<View>,
        arrays: Arrays,
    ) -> PyResult<Self> {
        let raise = |error| exception(py, error);
        let spec = |operand: &View| operand.spec(dtype, options.layout);
        let specs: Vec<_> = operands.iter().map(spec).collect();
        let asked = options.forward(specs[0].shape.heads, &arrays);
        let asked = asked.map_err(raise)?;
        let problem = match (&specs[..], &arrays.cache) {
            (&[q, k, v, o], Some(cache)) => cache.shared().problem([q, k, v, o], &asked),
            (specs, _) => problem(specs, &asked, |asked| options.backward(asked, &arrays)),
        };
        // SAFETY: Python gives a stream of torch, of the device's primary context; torch's streams are never destroyed, and
        // who wraps one of his own (`torch.cuda.ExternalStream`) promises torch the same.
        let place = unsafe { Place::new(device, stream) }.map_err(raise)?;
        let plans = Plans::new(problem.map_err(raise)?, place.capabilities());
        Ok(Self {
            device,
            plans,
            arrays,
        })
    }

    /// Queues it on a stream, on tensors that lie as this call was made for, each of which may be None where it has none: q, k, v,
    /// o and lse, the arrays of `Arguments` up to the last that is there, and of a backward pass d_o, dq, dk, dv, d_lse and the
    /// gradients by `DIFFERENTIABLE`. It writes o and lse, or reads both and writes the gradients.
    ///
    /// Nothing is allocated but what `allocate` gives, except the stream's own workspace, which is kept, if `is_capturing` is
    /// false.
    #[allow(clippy::too_many_arguments)] // Python's, by position: objects would cost a call microseconds
    fn launch(
        &self,
        py: Python<'_>,
        stream: u64,
        is_capturing: bool,
        allocate: &Bound<'_, PyAny>,
        operands: &Bound<'_, PyTuple>,
        arrays: &Bound<'_, PyTuple>,
        cache: Option<Cache>,
        gradients: Option<&Bound<'_, PyTuple>>,
    ) -> PyResult<()> {
        let raise = |error| exception(py, error);
        let operands = self.operands(operands, arrays, cache, gradients)?;
        let plan = self.plans.for_operands(&operands).map_err(raise)?;
        // SAFETY: as above.
        let place = unsafe { Place::new(self.device, stream) }.map_err(raise)?;
        // Held until the work is queued: what the stream runs later may then have the memory.
        let workspace = workspace(plan, allocate, is_capturing)?;
        let operands = operands.workspace(workspace.as_ref().map(|(_, at)| *at));
        // SAFETY: Python's half holds these tensors, which are of the shapes and strides that this call was made for, and
        // allocates what is written; a stream orders whatever else uses them.
        let launched = py.detach(|| unsafe { place.launch(plan, &operands) });
        launched.map_err(raise)
    }
}

impl Call {
    /// All addresses of a launch but that of the workspace.
    fn operands(
        &self,
        operands: &Bound<'_, PyTuple>,
        arrays: &Bound<'_, PyTuple>,
        cache: Option<Cache>,
        gradients: Option<&Bound<'_, PyTuple>>,
    ) -> PyResult<Operands> {
        let of = &self.arrays;
        // Those without elements are none.
        let has = [of.mask.is_some(), of.bias.is_some(), of.documents.is_some()];
        let mut operands = forward_operands(addresses(operands)?, addresses(arrays)?, has);
        if let Some(cache) = cache.map(|cache| cache.shared()) {
            operands.cache = Some(cache.operands());
            operands.modifiers.tree_mask = cache.tree.map(|(address, _)| address);
        }
        let gradients = gradients.map(addresses).transpose()?;
        Ok(operands.gradients(gradients.map(|of| gradient_operands(of, self.arrays.wanted))))
    }
}

/// A tensor of `allocate(bytes, zeroed)` to work in, and where it lies. `None` where none is needed, or the backend's own
/// does: it is there from a call to the next, so that it is zeroed once, but graphs must not share it.
fn workspace<'py>(
    plan: &Plan,
    allocate: &Bound<'py, PyAny>,
    is_capturing: bool,
) -> PyResult<Option<(Bound<'py, PyAny>, Workspace)>> {
    let (bytes, zeroed) = (plan.workspace_bytes(), plan.zeroed_workspace_bytes());
    if bytes == 0 || (zeroed > 0 && !is_capturing) {
        return Ok(None);
    }
    let tensor = allocate.call1((bytes, zeroed))?;
    let address = address(&tensor)?;
    Ok(Some((tensor, Workspace { address, bytes })))
}
