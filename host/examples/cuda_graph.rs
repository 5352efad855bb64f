//! An engine's own device pointers and stream, a kept plan, and a CUDA graph of its launch.
//!
//! `cargo run --release -p ferroflash --example cuda_graph`, on a machine with a GPU; elsewhere it says that it did not run.

use std::error::Error;
use std::ptr;

use cust::memory::{CopyDestination, DeviceBuffer};
use cust::sys;
use ferroflash::{
    Backend, Cuda, CudaDevice, DType, ForwardOptions, Layout, Mask, Operands, Plan, Problem, Shape,
    TensorSpec, Workspace,
};

const SHAPE: Shape = Shape {
    batch: 2,
    heads: 4,
    seq: 256,
    dim: 64,
};
const REPLAYS: usize = 3;

fn check(result: sys::CUresult) -> Result<(), String> {
    match result {
        sys::CUresult::CUDA_SUCCESS => Ok(()),
        error => Err(format!("{error:?}")),
    }
}

/// Captures the launches that `work` queues on `stream` as a graph that can be launched repeatedly.
fn capture(
    stream: sys::CUstream,
    work: impl FnOnce() -> Result<(), ferroflash::Error>,
) -> Result<sys::CUgraphExec, Box<dyn Error>> {
    let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_GLOBAL;
    let (mut graph, mut executable) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the stream is live, and the pointers are writable.
    unsafe {
        check(sys::cuStreamBeginCapture_v2(stream, mode))?;
        let queued = work();
        check(sys::cuStreamEndCapture(stream, &mut graph))?;
        queued?;
        check(sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0))?;
        check(sys::cuGraphDestroy(graph))?;
    }
    Ok(executable)
}

/// How the problem is run, found once.
fn plan(backend: &Cuda) -> Result<Plan, ferroflash::Error> {
    let spec = TensorSpec::contiguous(DType::F32, SHAPE, Layout::Bhsd)?;
    let options = ForwardOptions::new().mask(Mask::Causal);
    backend.plan(&Problem::new(spec, spec, spec, spec, &options)?)
}

fn main() -> Result<(), Box<dyn Error>> {
    if let Err(reason) = CudaDevice::count() {
        println!("NOT RUN: {reason}");
        return Ok(());
    }
    // The engine's context, stream and memory.
    let _context = cust::quick_init()?;
    let mut stream = ptr::null_mut();
    let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
    // SAFETY: `stream` is writable, and a context is current.
    check(unsafe { sys::cuStreamCreate(&mut stream, flags) })?;
    let count = SHAPE.element_count().expect("small");
    let input = DeviceBuffer::from_slice(&vec![0.5f32; count])?;
    let o = DeviceBuffer::from_slice(&vec![0f32; count])?;

    // SAFETY: the stream is of this device's primary context, and outlives the backend.
    let device = unsafe { CudaDevice::with_stream(0, stream.cast()) }?;
    let mut backend = Cuda::on(device);
    let plan = plan(&backend)?;
    let workspace = DeviceBuffer::from_slice(&vec![0u8; plan.workspace_bytes().max(16)])?;
    let lse = DeviceBuffer::from_slice(&vec![0f32; count / SHAPE.dim])?;
    let address = |buffer: &DeviceBuffer<f32>| buffer.as_device_ptr().as_raw();
    let operands = Operands::new(
        address(&input),
        address(&input),
        address(&input),
        address(&o),
    )
    .lse(address(&lse))
    .workspace(Workspace {
        address: workspace.as_device_ptr().as_raw(),
        bytes: plan.workspace_bytes(),
    });

    // The first launch compiles the kernel, which cannot be captured.
    // SAFETY: the buffers hold as many elements as the problem reaches, and live until the stream is waited for below.
    unsafe { backend.launch(&plan, &operands) }?;
    // SAFETY: as above.
    let graph = capture(stream, || unsafe { backend.launch(&plan, &operands) })?;
    for _ in 0..REPLAYS {
        // SAFETY: the graph and its operands are live.
        check(unsafe { sys::cuGraphLaunch(graph, stream) })?;
    }
    // SAFETY: the stream is live.
    check(unsafe { sys::cuStreamSynchronize(stream) })?;

    let mut values = vec![0f32; count];
    o.copy_to(&mut values)?;
    // All values of v are equal, and so is every mean of them.
    assert!(values.iter().all(|value| (value - 0.5).abs() < 1e-5));
    println!("{} ran {REPLAYS} times from a graph", plan.kernel_name());

    drop(backend);
    // SAFETY: nothing runs on them any more.
    unsafe {
        check(sys::cuGraphExecDestroy(graph))?;
        check(sys::cuStreamDestroy_v2(stream))?;
    }
    Ok(())
}
