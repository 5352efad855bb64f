use ferroflash::{GradientOperands, GradientSpecs, ModifierOperands, Operands, Plan};
use ferroflash::{Problem, Workspace};
use pyo3::prelude::*;

use crate::backends::Place;
use crate::errors::exception;
use crate::operands::{Arrays, Operand};
use crate::options::Options;

/// Queues a forward pass of `operands` (q, k, v, o), which writes o and, unless its address is `None`, lse; or, with d_o, dq, dk
/// and dv behind these four, a backward pass, which reads o and lse and writes dq, dk, dv and what else `arrays` asks for.
///
/// Nothing is allocated but what `allocate` gives, except the stream's own workspace, which is kept, if `is_capturing` is
/// false. Addresses must be those of live memory of the device that shapes and strides stay inside.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // Python's, by position: objects would cost a call microseconds
pub fn launch(
    py: Python<'_>,
    device: i32,
    stream: u64,
    dtype: usize,
    options: PyRef<'_, Options>,
    operands: Vec<Operand>,
    lse: Option<u64>,
    arrays: Option<Arrays>,
    allocate: Bound<'_, PyAny>,
    is_capturing: bool,
) -> PyResult<()> {
    let raise = |error| exception(py, error);
    let arrays = arrays.unwrap_or_default();
    let [q, k, v, o, gradients @ ..] = &operands[..] else {
        panic!("Python's half gives four operands or eight");
    };
    let spec = |operand: &Operand| operand.spec(dtype, options.layout);
    let [q_spec, k_spec, v_spec, o_spec] = [q, k, v, o].map(spec);
    let asked = options.forward(q_spec.shape.heads, &arrays);
    let asked = asked.map_err(raise)?;
    let mut addresses = Operands::new(q.0, k.0, v.0, o.0)
        .lse(lse)
        .cu_seqlens(arrays.packed.map(|(q, kv, ..)| [q, kv]))
        .seqused_kv(arrays.seqused_k)
        .alibi_slopes(arrays.alibi_slopes.map(|(slopes, _)| slopes))
        .modifiers(modifiers(&arrays));
    let problem = match gradients {
        [d_o, dq, dk, dv] => {
            let mut of = GradientOperands::new(d_o.0, dq.0, dk.0, dv.0);
            of.d_lse = arrays.d_lse;
            of.d_alibi_slopes = arrays.d_alibi_slopes;
            of.d_bias = arrays.d_bias;
            of.d_sinks = arrays.d_sinks;
            addresses = addresses.gradients(of);
            let [d_o, dq, dk, dv] = [d_o, dq, dk, dv].map(spec);
            #[rustfmt::skip] // as they are named
            let specs = GradientSpecs { o: o_spec, d_o, dq, dk, dv };
            let asked = options.backward(&asked, &arrays);
            Problem::backward(q_spec, k_spec, v_spec, specs, &asked)
        }
        _ => Problem::new(q_spec, k_spec, v_spec, o_spec, &asked),
    };
    let problem = problem.map_err(raise)?;
    let place = Place::new(device, stream).map_err(raise)?;
    let plan = Plan::for_operands(&problem, &place.capabilities(), &addresses).map_err(raise)?;
    // Held until the work is queued: what the stream runs later may then have the memory.
    let workspace = workspace(&plan, &allocate, is_capturing)?;
    let addresses = addresses.workspace(workspace.as_ref().map(|(_, at)| *at));
    // SAFETY: Python's half gives addresses of tensors that it holds, of their own shapes and strides, and allocates what is
    // written; a stream orders whatever else uses them.
    let launched = py.detach(|| unsafe { place.launch(&plan, &addresses) });
    launched.map_err(raise)
}

/// The addresses of what concerns single pairs.
fn modifiers(arrays: &Arrays) -> ModifierOperands {
    let mut of = ModifierOperands::NONE;
    of.mask = arrays.mask.as_ref().map(|axes| axes.0);
    of.bias = arrays.bias.as_ref().map(|(axes, _)| axes.0);
    of.documents = arrays.documents.map(|(q, kv, _)| [q, kv]);
    of.prefix = arrays.prefix_len;
    of.sinks = arrays.sinks;
    of.dropout_state = arrays.dropout_state;
    of
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
