//! Gradients by what pairs share, where there are no pairs: they are 0, whatever memory held before.

use ferroflash::backend::sim::Sim;
use ferroflash::{
    AlibiSlopes, Backend, BackwardOptions, BiasTensor, Cpu, ForwardOptions, HostTensor, Layout,
    Shape, Sinks, backward, backward_into, forward,
};
use ferroflash_tests::gpu::gpu_or_not_run;

const HEADS: usize = 3;

fn filled(shape: Shape, value: f32) -> HostTensor {
    let count = shape.batch * shape.heads * shape.seq * shape.dim;
    HostTensor::from_f32(&vec![value; count], shape, Layout::Bhsd).unwrap()
}

/// Of `batch` entries of `seq_q` queries and `seq_kv` keys, by the one parameter that is asked for; the bias has `bias_rows`.
fn is_zero<B: Backend>(
    backend: &mut B,
    [batch, seq_q, seq_kv]: [usize; 3],
    bias_rows: usize,
    parameter: &str,
) {
    let of = |batch, seq, dim| Shape {
        batch,
        heads: HEADS,
        seq,
        dim,
    };
    let of_rows = |seq| filled(of(batch, seq, 8), 1.0);
    let operands = [seq_q, seq_kv, seq_kv, seq_q].map(of_rows);
    let forward_options = ForwardOptions::new()
        .alibi(AlibiSlopes::per_head(&[0.5; HEADS]).unwrap())
        .sinks(Sinks::per_head(&[1.0; HEADS]).unwrap())
        .bias(BiasTensor::new(&filled(of(1, bias_rows, seq_kv), 2.0)).unwrap());
    let asked = BackwardOptions::of(&forward_options)
        .alibi_gradient(parameter == "slopes")
        .sink_gradient(parameter == "sinks")
        .bias_gradient(parameter == "bias");
    let [q, k, v, d_o] = operands
        .each_ref()
        .map(|x| x.upload(backend.memory()).unwrap());
    let output = forward(backend, &q, &k, &v, &forward_options).unwrap();
    let mut gradients = backward(backend, &q, &k, &v, &output, &d_o, &asked).unwrap();
    let of_parameters = [
        &mut gradients.d_alibi_slopes,
        &mut gradients.d_sinks,
        &mut gradients.d_bias,
    ];
    for gradient in of_parameters.into_iter().flatten() {
        let stale = filled(gradient.spec().shape, f32::NAN);
        *gradient = stale.upload(backend.memory()).unwrap();
    }
    backward_into(backend, &q, &k, &v, &output, &d_o, &mut gradients, &asked).unwrap();
    let written = gradients.d_alibi_slopes.or(gradients.d_sinks);
    let written = written.or(gradients.d_bias).unwrap();
    let values = written.download(backend.memory()).unwrap();
    let values = values.to_f32(Layout::Bhsd);
    assert!(
        values.iter().all(|&value| value == 0.0),
        "{parameter}: {values:?}, of {batch} × {seq_q} × {seq_kv}"
    );
}

fn every_shape<B: Backend>(backend: &mut B) {
    for shape in [[0, 5, 7], [2, 0, 7], [2, 0, 0]] {
        for parameter in ["slopes", "sinks", "bias"] {
            is_zero(backend, shape, 1, parameter);
        }
        // Of one entry, not summed over rows.
        let [_, seq_q, _] = shape;
        is_zero(backend, shape, seq_q, "bias");
    }
}

#[test]
fn gradients_are_zero_without_pairs() {
    every_shape(&mut Cpu::new());
    every_shape(&mut Sim::new());
}

#[test]
fn gradients_are_zero_without_pairs_on_a_gpu() {
    if let Some(mut gpu) = gpu_or_not_run("gradients without pairs") {
        every_shape(&mut gpu);
    }
}
