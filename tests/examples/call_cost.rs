//! Host cost of a call, by part: the driver's launch, a kept plan, a plan of its own.
//!
//! `cargo run --release -p ferroflash-tests --example call_cost`, on a machine with a GPU; elsewhere on a Hopper problem's
//! plan alone.

use std::error::Error;
use std::time::Instant;

use ferroflash::backend::cuda::{Cuda, CudaDevice, KernelLaunch};
use ferroflash::plan::GpuCapabilities;
use ferroflash::{
    Backend, Capabilities, DType, ForwardOptions, HostTensor, Layout, Mask, Memory, Operands, Plan,
    Problem, Shape, TensorSpec, forward_into, forward_planned, forward_planned_into,
};

/// A kernel with one parameter of the size of a forward kernel's, and one with all parameters of a Hopper kernel's.
const NOTHING_PTX: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry one(.param .align 8 .b8 a[264]) { ret; }
";
const SEVEN_PTX: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry seven(.param .align 8 .b8 a[264], .param .align 64 .b8 q[128], .param .align 64 .b8 k[128],
    .param .align 64 .b8 v[128], .param .align 64 .b8 o[128], .param .align 4 .b8 s[40], .param .u64 w) { ret; }
";

const CALLS: usize = 64;
const ROUNDS: usize = 50;

/// Median microseconds per call; [`CALLS`] calls are made before each `wait`.
fn us<T>(state: &mut T, mut call: impl FnMut(&mut T), mut wait: impl FnMut(&mut T)) -> f64 {
    let mut all = Vec::new();
    for _ in 0..ROUNDS {
        for _ in 0..CALLS {
            let begin = Instant::now();
            call(state);
            all.push(begin.elapsed().as_secs_f64() * 1e6);
        }
        wait(state);
    }
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let shape = Shape {
        batch: 1,
        heads: 16,
        seq: 128,
        dim: 128,
    };
    let options = ForwardOptions::new().mask(Mask::Causal);
    let spec = TensorSpec::contiguous(DType::Bf16, shape, Layout::Bshd)?;
    let hopper = Capabilities::Gpu(GpuCapabilities::new((9, 0), 227 << 10, 132));
    let clock = us(&mut (), |()| {}, |()| {});
    println!("reading the clock            {clock:.2} µs, in every figure");
    let make = || Problem::new(spec, spec, spec, spec, &options).expect("valid");
    let problem = make();
    println!(
        "a problem                    {:.2} µs",
        us(&mut (), |()| drop(make()), |()| {})
    );
    let plan = |problem: &Problem| Plan::new(problem, &hopper).expect("eligible");
    println!(
        "its plan                     {:.2} µs",
        us(&mut (), |()| drop(plan(&problem)), |()| {})
    );

    let mut cuda = match CudaDevice::new(0) {
        Ok(device) => Cuda::on(device),
        Err(error) => {
            println!("NOT RUN: {error}");
            return Ok(());
        }
    };
    let wait = |cuda: &mut Cuda| cuda.memory().synchronize().expect("it ran");
    let sizes: [&[usize]; 2] = [&[264], &[264, 128, 128, 128, 128, 40, 8]];
    for (name, ptx, sizes) in [
        ("one", NOTHING_PTX, sizes[0]),
        ("seven", SEVEN_PTX, sizes[1]),
    ] {
        let blobs: Vec<Vec<u8>> = sizes.iter().map(|size| vec![0; *size]).collect();
        let params: Vec<&[u8]> = blobs.iter().map(Vec::as_slice).collect();
        let launch = KernelLaunch {
            name,
            ptx,
            grid: 16,
            block: 384,
            shared_bytes: 0,
            params: &params,
        };
        // SAFETY: the kernel touches nothing; these are its parameters.
        let call =
            |cuda: &mut Cuda| unsafe { cuda.memory().launch_kernel(&launch) }.expect("launched");
        println!(
            "an empty kernel, {name:<5}       {:.2} µs",
            us(&mut cuda, call, wait)
        );
    }
    let ones = vec![1.0; shape.element_count().expect("small")];
    let x = HostTensor::from_f32(&ones, shape, Layout::Bshd)?;
    for dtype in [DType::F32, DType::Bf16] {
        let x = x.convert(dtype, Layout::Bshd)?.upload(cuda.memory())?;
        let spec = *x.spec();
        let plan = cuda.plan(&Problem::new(spec, spec, spec, spec, &options)?)?;
        let mut out = forward_planned(&mut cuda, &plan, &x, &x, &x)?;
        let memory = cuda.memory();
        let input = x.address(memory);
        let lse = out.lse.as_ref().map(|lse| lse.address(memory));
        let operands = Operands::new(input, input, input, out.o.address(memory)).lse(lse);
        let name = dtype.name();
        // SAFETY: the tensors live until the end of the loop's body, which waits.
        let raw = |cuda: &mut Cuda| unsafe { cuda.launch(&plan, &operands) }.expect("launched");
        println!(
            "{name} launch of a kept plan   {:.2} µs",
            us(&mut cuda, raw, wait)
        );
        let planned = |cuda: &mut Cuda| {
            forward_planned_into(cuda, &plan, &x, &x, &x, &mut out).expect("launched");
        };
        println!(
            "{name} forward by a kept plan  {:.2} µs",
            us(&mut cuda, planned, wait)
        );
        let whole = |cuda: &mut Cuda| {
            forward_into(cuda, &x, &x, &x, &mut out, &options).expect("launched");
        };
        println!(
            "{name} forward                 {:.2} µs",
            us(&mut cuda, whole, wait)
        );
    }
    Ok(())
}
