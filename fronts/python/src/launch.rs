use ferroflash::{GradientOperands, ModifierOperands, Operands, Plan, Plans, Workspace};
use ferroflash_fronts::{Place, problem};
use pyo3::prelude::*;

use crate::errors::exception;
use crate::operands::{Arrays, View};
use crate::options::Options;

type Addresses = (u64, u64, u64, u64);

/// A call without its addresses: made and checked once, for any number of launches.
#[pyclass(frozen, module = "ferroflash._native")]
pub struct Call {
    device: i32,
    plans: Plans,
}

#[pymethods]
impl Call {
    /// A forward pass of `operands` (q, k, v, o), or, with d_o, dq, dk and dv behind these four, a backward pass.
    ///
    /// Of `arrays` nothing but the addresses may be another for a launch.
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
        Ok(Self { device, plans })
    }

    /// Queues it on a stream, with the addresses of q, k, v and o, and of a backward pass those of d_o, dq, dk and dv: it writes
    /// o and, unless its address is `None`, lse; or reads both, and writes dq, dk, dv and what else `arrays` asks for.
    ///
    /// Nothing is allocated but what `allocate` gives, except the stream's own workspace, which is kept, if `is_capturing` is
    /// false. Addresses must be those of live memory of the device that shapes and strides stay inside.
    #[allow(clippy::too_many_arguments)] // Python's, by position: objects would cost a call microseconds
    #[pyo3(signature = (stream, operands, lse, allocate, is_capturing, arrays = None, gradients = None))]
    fn launch(
        &self,
        py: Python<'_>,
        stream: u64,
        operands: Addresses,
        lse: Option<u64>,
        allocate: &Bound<'_, PyAny>,
        is_capturing: bool,
        arrays: Option<Arrays>,
        gradients: Option<Addresses>,
    ) -> PyResult<()> {
        let raise = |error| exception(py, error);
        let addresses = addresses(operands, lse, &arrays.unwrap_or_default(), gradients);
        let plan = self.plans.for_operands(&addresses).map_err(raise)?;
        // SAFETY: as above.
        let place = unsafe { Place::new(self.device, stream) }.map_err(raise)?;
        // Held until the work is queued: what the stream runs later may then have the memory.
        let workspace = workspace(plan, allocate, is_capturing)?;
        let addresses = addresses.workspace(workspace.as_ref().map(|(_, at)| *at));
        // SAFETY: Python's half gives addresses of tensors that it holds, of the shapes and strides that this call was made
        // for, and allocates what is written; a stream orders whatever else uses them.
        let launched = py.detach(|| unsafe { place.launch(plan, &addresses) });
        launched.map_err(raise)
    }
}

/// All addresses of a launch but that of the workspace.
fn addresses(
    (q, k, v, o): Addresses,
    lse: Option<u64>,
    arrays: &Arrays,
    gradients: Option<Addresses>,
) -> Operands {
    let mut of = ModifierOperands::NONE;
    of.mask = arrays.mask.as_ref().map(|(at, _)| *at);
    of.bias = arrays.bias.as_ref().map(|(at, ..)| *at);
    of.documents = arrays.documents.map(|(q, kv, _)| [q, kv]);
    of.prefix = arrays.prefix_len;
    of.sinks = arrays.sinks;
    of.dropout_state = arrays.dropout_state;
    Operands::new(q, k, v, o)
        .lse(lse)
        .cu_seqlens(arrays.packed.map(|(q, kv, ..)| [q, kv]))
        .seqused_kv(arrays.seqused_k)
        .cache(arrays.cache.as_ref().map(|cache| cache.shared().operands()))
        .alibi_slopes(arrays.alibi_slopes.map(|(slopes, _)| slopes))
        .modifiers(of)
        .gradients(gradients.map(|(d_o, dq, dk, dv)| {
            GradientOperands::new(d_o, dq, dk, dv)
                .d_lse(arrays.d_lse)
                .d_alibi_slopes(arrays.d_alibi_slopes)
                .d_bias(arrays.d_bias)
                .d_sinks(arrays.d_sinks)
        }))
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
    let address = tensor.call_method0("data_ptr")?.extract()?;
    Ok(Some((tensor, Workspace { address, bytes })))
}
