use ferroflash::{DType, GradientOperands, GradientSpecs, Operands, Plan, Problem, Workspace};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::backends::Place;
use crate::errors::exception;
use crate::operands::{Gradients, Operand, Packed, Slopes};
use crate::options::Options;

/// Queues a forward pass, which writes o and, unless its address is `None`, lse; or with `gradients` a backward pass, which
/// reads these and writes dq, dk, dv and, unless its address is `None`, d_alibi_slopes.
///
/// Nothing is allocated but what `allocate` gives, except the stream's own workspace, which is kept, if `is_capturing` is
/// false. Addresses must be those of live memory of the device that shapes and strides stay inside.
#[pyfunction]
#[pyo3(signature = (device, stream, dtype, options, q, k, v, o, lse, packed, seqused_kv, alibi_slopes, allocate,
                    is_capturing, gradients=None))]
#[allow(clippy::too_many_arguments)] // Python's, by position: objects would cost a call microseconds
pub fn launch(
    py: Python<'_>,
    device: i32,
    stream: u64,
    dtype: usize,
    options: PyRef<'_, Options>,
    q: Bound<'_, PyTuple>,
    k: Bound<'_, PyTuple>,
    v: Bound<'_, PyTuple>,
    o: Bound<'_, PyTuple>,
    lse: Option<u64>,
    packed: Option<Packed>,
    seqused_kv: Option<u64>,
    alibi_slopes: Option<Slopes>,
    allocate: Bound<'_, PyAny>,
    is_capturing: bool,
    gradients: Option<Gradients<'_>>,
) -> PyResult<()> {
    let raise = |error| exception(py, error);
    let dtype = DType::ALL[dtype];
    let take = |name, tensor| Operand::new(name, tensor, dtype, options.layout);
    let (q, k, v, o) = (
        take("q", &q)?,
        take("k", &k)?,
        take("v", &v)?,
        take("o", &o)?,
    );
    let (packed, slopes) = (packed.as_ref(), alibi_slopes.as_ref());
    let asked = options.forward(q.spec.shape.heads, packed, seqused_kv.is_some(), slopes);
    let asked = asked.map_err(raise)?;
    let mut operands = Operands::new(q.address, k.address, v.address, o.address)
        .lse(lse)
        .cu_seqlens(packed.map(|packed| [packed.0, packed.1]))
        .seqused_kv(seqused_kv)
        .alibi_slopes(slopes.map(|slopes| slopes.0));
    let problem = match gradients {
        None => Problem::new(q.spec, k.spec, v.spec, o.spec, &asked),
        Some(Gradients(d_o, d_lse, dq, dk, dv, d_slopes)) => {
            let (d_o, dq) = (take("d_o", &d_o)?, take("dq", &dq)?);
            let (dk, dv) = (take("dk", &dk)?, take("dv", &dv)?);
            let gradients = GradientOperands::new(d_o.address, dq.address, dk.address, dv.address);
            operands = operands.gradients(gradients.d_lse(d_lse).d_alibi_slopes(d_slopes));
            let specs = GradientSpecs {
                o: o.spec,
                d_o: d_o.spec,
                dq: dq.spec,
                dk: dk.spec,
                dv: dv.spec,
            };
            let asked = options.backward(&asked, d_slopes.is_some());
            Problem::backward(q.spec, k.spec, v.spec, specs, &asked)
        }
    };
    let problem = problem.map_err(raise)?;
    let place = Place::new(device, stream).map_err(raise)?;
    let plan = Plan::for_operands(&problem, &place.capabilities(), &operands).map_err(raise)?;
    // Held until the work is queued: what the stream runs later may then have the memory.
    let workspace = workspace(&plan, &allocate, is_capturing)?;
    let operands = operands.workspace(workspace.as_ref().map(|(_, at)| *at));
    // SAFETY: Python's half gives addresses of tensors that it holds, of their own shapes and strides, and allocates what is
    // written; a stream orders whatever else uses them.
    let launched = py.detach(|| unsafe { place.launch(&plan, &operands) });
    launched.map_err(raise)
}

/// A tensor of `allocate(bytes, is_zeroed)` to work in, and where it lies. `None` where none is needed, or the backend's own
/// does: it is there from a call to the next, so that it is zeroed once, but graphs must not share it.
fn workspace<'py>(
    plan: &Plan,
    allocate: &Bound<'py, PyAny>,
    is_capturing: bool,
) -> PyResult<Option<(Bound<'py, PyAny>, Workspace)>> {
    let (bytes, is_zeroed) = (plan.workspace_bytes(), plan.zeroed_workspace_bytes() > 0);
    if bytes == 0 || (is_zeroed && !is_capturing) {
        return Ok(None);
    }
    let tensor = allocate.call1((bytes, is_zeroed))?;
    let address = tensor.call_method0("data_ptr")?.extract()?;
    Ok(Some((tensor, Workspace { address, bytes })))
}
