use ferroflash::{Operands, Plan, Plans, Problem, Workspace};
use ferroflash_fronts::{Place, forward_operands, gradient_operands};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::described::Cache;
use crate::exception::exception;
use crate::view::{address, addresses};

/// A call without its addresses: made and checked once, for any number of launches.
#[pyclass(frozen, module = "ferroflash._native")]
pub struct Call {
    device: i32,
    plans: Plans,
    arrays: Arrays,
    memory: Memory,
}

/// What a call's launches depend on of its arrays.
#[derive(Clone, Copy, Debug)]
pub struct Arrays {
    /// Whether a mask, a bias and documents have elements: without any they are none.
    pub has: [bool; 3],
    /// Which gradients a backward pass writes beside dq, dk and dv: by alibi_slopes, bias and sinks.
    pub wanted: [bool; 3],
}

/// Python's functions that a launch has memory from.
pub struct Memory {
    /// What gives it a workspace: so many bytes, of which the first so many are 0.
    pub workspace: Py<PyAny>,
    /// What gives a forward pass o and lse.
    pub results: Option<(Py<PyAny>, Py<PyAny>)>,
}

/// o, and lse where it was asked for.
pub type Results<'py> = (Bound<'py, PyAny>, Option<Bound<'py, PyAny>>);

/// What runs a stream's work, and whether this is being captured into a graph.
struct Queue {
    place: Place,
    is_capturing: bool,
}

#[pymethods]
impl Call {
    /// Queues a forward pass on a stream, on q, k and v that lie as this call was made for, and the arrays of `Arguments` up to the
    /// last that is there, each of which may be None; returns o, which may be given, and lse, if it is needed.
    #[allow(clippy::too_many_arguments)] // Python's, by position: objects would cost a call microseconds
    fn forward<'py>(
        &self,
        py: Python<'py>,
        stream: u64,
        inputs: &Bound<'py, PyTuple>,
        o: Option<Bound<'py, PyAny>>,
        arrays: &Bound<'py, PyTuple>,
        cache: Option<Cache>,
        needs_lse: bool,
    ) -> PyResult<Results<'py>> {
        let at = (addresses(inputs)?, addresses(arrays)?);
        self.attend(py, stream, at, o, cache.as_ref(), needs_lse)
    }

    /// Queues a backward pass of q, k, v, o and lse, and such arrays, which writes gradients: d_o, dq, dk, dv, d_lse and those by
    /// `DIFFERENTIABLE`, of which d_lse and the last may be None.
    fn backward(
        &self,
        py: Python<'_>,
        stream: u64,
        operands: &Bound<'_, PyTuple>,
        arrays: &Bound<'_, PyTuple>,
        gradients: &Bound<'_, PyTuple>,
    ) -> PyResult<()> {
        let gradients = gradient_operands(addresses(gradients)?, self.arrays.wanted);
        let operands = self.operands(addresses(operands)?, addresses(arrays)?, None);
        let operands = operands.gradients(Some(gradients));
        self.launch(py, &self.queue(py, stream)?, operands)
    }
}

impl Call {
    /// One of `problem`, to be launched on `stream` or others of its device.
    ///
    /// # Errors
    /// Those of [`exception`].
    ///
    /// # Safety
    /// `stream` and all that it is launched on are streams of that device's primary context, or 0, and are not destroyed before
    /// the process ends; its tensors then lie as `problem` says.
    pub unsafe fn new(
        py: Python<'_>,
        (device, stream): (i32, u64),
        problem: Problem,
        arrays: Arrays,
        memory: Memory,
    ) -> PyResult<Self> {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new(device, stream) }.map_err(|error| exception(py, error))?;
        Ok(Self {
            device,
            plans: Plans::new(problem, place.capabilities()),
            arrays,
            memory,
        })
    }

    /// A forward pass on q, k and v, and arrays, at these addresses.
    pub(crate) fn attend<'py>(
        &self,
        py: Python<'py>,
        stream: u64,
        ([q, k, v], arrays): ([Option<u64>; 3], [Option<u64>; 11]),
        o: Option<Bound<'py, PyAny>>,
        cache: Option<&Cache>,
        needs_lse: bool,
    ) -> PyResult<Results<'py>> {
        let queue = self.queue(py, stream)?;
        let (new_o, new_lse) = self.memory.results.as_ref().expect("a forward pass");
        let o = o.map_or_else(|| new_o.bind(py).call0(), Ok)?;
        // A graph must not use the backend's own memory, where lse goes otherwise.
        let lse = (needs_lse || queue.is_capturing).then(|| new_lse.bind(py).call0());
        let lse = lse.transpose()?;
        let at_lse = lse.as_ref().map(address).transpose()?;
        let operands = self.operands([q, k, v, Some(address(&o)?), at_lse], arrays, cache);
        self.launch(py, &queue, operands)?;
        Ok((o, lse))
    }

    fn queue(&self, py: Python<'_>, stream: u64) -> PyResult<Queue> {
        let raise = |error| exception(py, error);
        // SAFETY: promised when this was made.
        let place = unsafe { Place::new(self.device, stream) }.map_err(raise)?;
        let is_capturing = place.is_capturing().map_err(raise)?;
        Ok(Queue {
            place,
            is_capturing,
        })
    }

    /// All addresses of a forward pass but that of the workspace.
    fn operands(
        &self,
        operands: [Option<u64>; 5],
        arrays: [Option<u64>; 11],
        cache: Option<&Cache>,
    ) -> Operands {
        let mut operands = forward_operands(operands, arrays, self.arrays.has);
        if let Some(cache) = cache.map(Cache::shared) {
            operands.cache = Some(cache.operands());
            operands.modifiers.tree_mask = cache.tree.map(|(address, _)| address);
        }
        operands
    }

    fn launch(&self, py: Python<'_>, queue: &Queue, operands: Operands) -> PyResult<()> {
        let raise = |error| exception(py, error);
        let plan = self.plans.for_operands(&operands).map_err(raise)?;
        // Held until the work is queued: what the stream runs later may then have the memory.
        let workspace = self.workspace(py, plan, queue.is_capturing)?;
        let operands = operands.workspace(workspace.as_ref().map(|(_, at)| *at));
        // SAFETY: Python's half holds these tensors, which are of the shapes and strides that this call was made for, and
        // allocates what is written; a stream orders whatever else uses them.
        let launched = py.detach(|| unsafe { queue.place.launch(plan, &operands) });
        launched.map_err(raise)
    }

    /// A tensor to work in, and where it lies. `None` where none is needed, or the backend's own does: it is there from a call to
    /// the next, so that it is zeroed once, but graphs must not share it.
    fn workspace<'py>(
        &self,
        py: Python<'py>,
        plan: &Plan,
        is_capturing: bool,
    ) -> PyResult<Option<(Bound<'py, PyAny>, Workspace)>> {
        let (bytes, zeroed) = (plan.workspace_bytes(), plan.zeroed_workspace_bytes());
        if bytes == 0 || (zeroed > 0 && !is_capturing) {
            return Ok(None);
        }
        let tensor = self.memory.workspace.bind(py).call1((bytes, zeroed))?;
        let address = address(&tensor)?;
        Ok(Some((tensor, Workspace { address, bytes })))
    }
}
