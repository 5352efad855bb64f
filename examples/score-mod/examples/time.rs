//! What a score modification costs beside the built-in option that does the same, and what a bias costs.
//!
//! `cargo run --release -p score-mod-example --example time`, on a machine with a GPU. Sustained: calls are queued for a second, and the
//! median of the second half counts. With arguments, only what has one of them in its name.

use std::time::{Duration, Instant};

use ferroflash::backend::cuda::{Cuda, CudaDevice};
use ferroflash::{
    Backend, BackwardOptions, BiasTensor, DType, Error, ForwardOptions, HostTensor, Layout, Mask,
    Memory, Shape, Tensor, Variant, backward, backward_into, forward, forward_into,
};
use score_mod_example::sliding_window;

const HEADS: usize = 16;
const DIM: usize = 128;
const BATCH: usize = 2;
/// Queries and keys of the windows, and of the biases.
const SEQ: usize = 8192;
const SEQ_OF_BIAS: usize = 4096;
/// Keys before a query's own.
const LEFT: usize = 1024;
const CHUNK: usize = 16;

/// Median milliseconds of a call.
fn ms(cuda: &mut Cuda, mut call: impl FnMut(&mut Cuda) -> Result<(), Error>) -> Result<f64, Error> {
    let mut all = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(1) {
        let mut marks = vec![cuda.memory().mark()?];
        for _ in 0..CHUNK {
            call(cuda)?;
            marks.push(cuda.memory().mark()?);
        }
        for pair in marks.windows(2) {
            all.push(cuda.memory().elapsed_ms(&pair[0], &pair[1])?);
        }
    }
    let mut settled = all.split_off(all.len() / 2);
    settled.sort_by(f64::total_cmp);
    Ok(settled[settled.len() / 2])
}

/// A number for each of `count` elements, without a pattern that matters.
fn values(count: usize) -> Vec<f32> {
    let hash = |at: usize| (at as u32).wrapping_mul(0x9e37_79b9) >> 8;
    (0..count)
        .map(|at| hash(at) as f32 / (1 << 23) as f32 - 1.0)
        .collect()
}

fn tensor(shape: Shape) -> Result<HostTensor, Error> {
    let count = shape.batch * shape.heads * shape.seq * shape.dim;
    HostTensor::from_f32(&values(count), shape, Layout::Bshd)?.convert(DType::Bf16, Layout::Bshd)
}

/// Whether the arguments ask for it.
fn is_wanted(what: &str) -> bool {
    let mut parts = std::env::args().skip(1).peekable();
    parts.peek().is_none() || parts.any(|part| what.contains(&part))
}

/// Times both passes of `options`, of whose pairs `pairs` of a head are visible.
fn report(
    cuda: &mut Cuda,
    x: &Tensor<CudaDevice>,
    what: &str,
    pairs: usize,
    options: &ForwardOptions,
    gradients: &[(&str, BackwardOptions)],
) -> Result<(), Error> {
    if !is_wanted(what) {
        return Ok(());
    }
    let tflops = |ms: f64, products: f64| {
        products * 2.0 * (BATCH * HEADS * DIM) as f64 * pairs as f64 / ms / 1e9
    };
    let mut output = forward(cuda, x, x, x, options)?;
    let took = ms(cuda, |cuda| {
        forward_into(cuda, x, x, x, &mut output, options)
    })?;
    println!(
        "{what:44} forward {took:8.3} ms {:7.1} TFLOP/s",
        tflops(took, 2.0)
    );
    for (name, asked) in gradients {
        let mut into = backward(cuda, x, x, x, &output, x, asked)?;
        let took = ms(cuda, |cuda| {
            backward_into(cuda, x, x, x, &output, x, &mut into, asked)
        })?;
        let tflops = tflops(took, 5.0);
        println!("{what:44} {name:7} {took:8.3} ms {tflops:7.1} TFLOP/s");
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    let mut cuda = match CudaDevice::new(0) {
        Ok(device) => Cuda::on(device),
        Err(error) => {
            println!("NOT RUN: {error}");
            return Ok(());
        }
    };
    println!("{}", cuda.device_name());
    let shape = Shape {
        batch: BATCH,
        heads: HEADS,
        seq: SEQ,
        dim: DIM,
    };
    let x = tensor(shape)?.upload(cuda.memory())?;
    let built_in = ForwardOptions::new().mask(Mask::Window {
        left: Some(LEFT as u32),
        right: Some(0),
    });
    let own = ForwardOptions::new().score_mod(sliding_window(LEFT as u32)?);
    let pairs = (0..SEQ).map(|row| row.min(LEFT) + 1).sum();
    for variant in [Variant::Wgmma, Variant::Mma] {
        for (name, options) in [("built in", &built_in), ("by a score modification", &own)] {
            let options = options.clone().force(Some(variant));
            let what = format!("window {LEFT}, {name}, {variant}");
            let backward = [("backward", BackwardOptions::of(&options))];
            report(&mut cuda, &x, &what, pairs, &options, &backward)?;
        }
    }

    let shape = Shape {
        seq: SEQ_OF_BIAS,
        ..shape
    };
    let x = tensor(shape)?.upload(cuda.memory())?;
    let pairs = SEQ_OF_BIAS * SEQ_OF_BIAS;
    let plain = ForwardOptions::new();
    let backward = [("backward", BackwardOptions::of(&plain))];
    report(&mut cuda, &x, "no bias", pairs, &plain, &backward)?;
    for heads in [1, HEADS] {
        let what = format!("bias [1, {heads}, {SEQ_OF_BIAS}, {SEQ_OF_BIAS}], bf16");
        if !is_wanted(&what) {
            continue;
        }
        let of_bias = Shape {
            batch: 1,
            heads,
            seq: SEQ_OF_BIAS,
            dim: SEQ_OF_BIAS,
        };
        let values = values(heads * pairs);
        let bias = HostTensor::from_f32(&values, of_bias, Layout::Bhsd)?;
        let bias = BiasTensor::new(&bias.convert(DType::Bf16, Layout::Bhsd)?)?;
        let options = ForwardOptions::new().bias(bias);
        let backward = BackwardOptions::of(&options);
        let with_gradient = backward.clone().bias_gradient(true);
        let gradients = [("backward", backward), ("and d_bias", with_gradient)];
        report(&mut cuda, &x, &what, pairs, &options, &gradients)?;
    }
    Ok(())
}
