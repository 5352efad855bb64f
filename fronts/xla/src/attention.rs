use ferroflash::{GradientOperands, Operands, Plan, Shape, WORKSPACE_ALIGN_BYTES, Workspace};
use ferroflash_fronts::Place;

use crate::arrays::{self, ARRAYS, Arrays, GRADIENTS, Sizes};
use crate::c_api::{CallFrame, XlaError, data_type};
use crate::call::{Array, Call, Scratch, handle};
use crate::failure::Failure;
use crate::options::Attributes;
use crate::plans::{Kind, plans};
use crate::shapes::{check_rows, spec};

/// The handler of a forward pass on the CPU, which computes before it returns.
///
/// # Safety
/// XLA calls it, with a frame of its own.
pub unsafe extern "C" fn forward_on_cpu(frame: *mut CallFrame) -> *mut XlaError {
    // SAFETY: XLA's promise.
    unsafe { on_cpu(frame, forward) }
}

/// The handler of a forward pass on a GPU, which queues its work.
///
/// # Safety
/// XLA calls it, with a frame of its own.
pub unsafe extern "C" fn forward_on_cuda(frame: *mut CallFrame) -> *mut XlaError {
    // SAFETY: XLA's promise.
    unsafe { on_cuda(frame, forward) }
}

/// The handler of a backward pass on the CPU, which computes before it returns.
///
/// # Safety
/// XLA calls it, with a frame of its own.
pub unsafe extern "C" fn backward_on_cpu(frame: *mut CallFrame) -> *mut XlaError {
    // SAFETY: XLA's promise.
    unsafe { on_cpu(frame, backward) }
}

/// The handler of a backward pass on a GPU, which queues its work.
///
/// # Safety
/// XLA calls it, with a frame of its own.
pub unsafe extern "C" fn backward_on_cuda(frame: *mut CallFrame) -> *mut XlaError {
    // SAFETY: XLA's promise.
    unsafe { on_cuda(frame, backward) }
}

/// A pass of a call by a device, which is negative for the CPU, in a stream of it.
type Pass = fn(&Call<'_>, i32, u64) -> Result<(), Failure>;

/// # Safety
/// As [`handle`].
unsafe fn on_cpu(frame: *mut CallFrame, pass: Pass) -> *mut XlaError {
    // SAFETY: the caller's promise.
    unsafe { handle(frame, |call| pass(call, -1, 0)) }
}

/// # Safety
/// As [`handle`].
unsafe fn on_cuda(frame: *mut CallFrame, pass: Pass) -> *mut XlaError {
    // SAFETY: the caller's promise.
    unsafe {
        handle(frame, |call| {
            pass(call, call.device_ordinal()?, call.stream()?)
        })
    }
}

fn forward(call: &Call<'_>, device: i32, stream: u64) -> Result<(), Failure> {
    let arguments = call.arguments(&[&["q", "k", "v"][..], &call.present(&ARRAYS)?].concat())?;
    let results = call.results(&["o", "lse"])?;
    let ([q, k, v], [o, lse]) = (arguments.of(["q", "k", "v"]), results.of(["o", "lse"]));
    let specs = [("q", q), ("k", k), ("v", v), ("o", o)].map(|(name, array)| spec(name, &array));
    let specs = specs.into_iter().collect::<Result<Vec<_>, _>>()?;
    check_row_values("lse", &lse, specs[0].shape)?;
    let operands = Operands::new(q.address, k.address, v.address, o.address).lse(lse.address);
    let kind = Kind {
        device,
        attributes: Attributes::of(call, false)?,
        arrays: Arrays::of(&arguments, &results, Sizes::of(&specs[0], &specs[1]))?,
        specs,
    };
    run(call, stream, kind, arrays::operands(operands, &arguments))
}

fn backward(call: &Call<'_>, device: i32, stream: u64) -> Result<(), Failure> {
    let names = ["q", "k", "v", "o", "lse", "d_o"];
    let others = [call.present(&["d_lse"])?, call.present(&ARRAYS)?].concat();
    let arguments = call.arguments(&[&names[..], &others].concat())?;
    let names_of_results = [&["dq", "dk", "dv"][..], &call.present(&GRADIENTS)?].concat();
    let results = call.results(&names_of_results)?;
    let [q, k, v, o, lse, d_o] = arguments.of(names);
    let [dq, dk, dv] = results.of(["dq", "dk", "dv"]);
    let names = ["q", "k", "v", "o", "d_o", "dq", "dk", "dv"];
    let arrays = names.into_iter().zip([q, k, v, o, d_o, dq, dk, dv]);
    let specs = arrays.map(|(name, array)| spec(name, &array));
    let specs = specs.collect::<Result<Vec<_>, _>>()?;
    check_row_values("lse", &lse, specs[0].shape)?;
    let d_lse = arguments.get("d_lse");
    if let Some(d_lse) = &d_lse {
        check_row_values("d_lse", d_lse, specs[0].shape)?;
    }
    let gradients = GradientOperands::new(d_o.address, dq.address, dk.address, dv.address)
        .d_lse(d_lse.map(|d_lse| d_lse.address));
    let operands = Operands::new(q.address, k.address, v.address, o.address)
        .lse(lse.address)
        .gradients(arrays::gradients(gradients, &results));
    let kind = Kind {
        device,
        attributes: Attributes::of(call, true)?,
        arrays: Arrays::of(&arguments, &results, Sizes::of(&specs[0], &specs[1]))?,
        specs,
    };
    run(call, stream, kind, arrays::operands(operands, &arguments))
}

/// Refuses an array that is not f32 `[..., heads_q, seq_q]`, with all batch entries.
fn check_row_values(name: &str, array: &Array<'_>, q: Shape) -> Result<(), Failure> {
    check_rows(name, array, data_type::F32, &[q.batch], [q.heads, q.seq]).map(drop)
}

/// Runs a pass of this kind on these operands.
fn run(call: &Call<'_>, stream: u64, kind: Kind, operands: Operands) -> Result<(), Failure> {
    // SAFETY: XLA's stream is of the device's primary context, and lives as long as its client, which lasts until the process
    // ends or the caller throws all arrays away.
    let place = unsafe { Place::new(kind.device, stream) }?;
    let plans = plans(kind, place.capabilities())?;
    let plan = plans.for_operands(&operands)?;
    // Held until the work is queued: what the stream runs later may then have the memory.
    let workspace = workspace(call, plan)?;
    let operands = operands.workspace(workspace.as_ref().map(|(_, workspace)| *workspace));
    // SAFETY: XLA's arrays are dense, live until the work that this call queues in its stream is done, and of the shapes that
    // the plan was made for, which was checked; results are written by nobody else.
    unsafe { place.launch(plan, &operands) }?;
    Ok(())
}

/// Scratch memory of XLA's for a launch; `None` where none is needed, or the stream's own does: it is there from a call to the
/// next, so that it is zeroed once.
///
/// It is no result of the call, whose size JAX would have to know before there is a device to plan for.
fn workspace<'a>(
    call: &Call<'a>,
    plan: &Plan,
) -> Result<Option<(Scratch<'a>, Workspace)>, Failure> {
    let bytes = plan.workspace_bytes();
    if bytes == 0 || plan.zeroed_workspace_bytes() > 0 {
        return Ok(None);
    }
    let scratch = call.scratch(bytes, WORKSPACE_ALIGN_BYTES as usize)?;
    let address = scratch.address;
    Ok(Some((scratch, Workspace { address, bytes })))
}
