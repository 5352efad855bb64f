//! Attention of one batch of dense tensors, checked against the formula.
//!
//! `cargo run --release -p ferroflash --example plain`

use ferroflash::{Backend, Cpu, Error, ForwardOptions, HostTensor, Layout, Mask, Shape, forward};

const SHAPE: Shape = Shape {
    batch: 2,
    heads: 4,
    seq: 100,
    dim: 64,
};

/// Values between -1 and 1 that look random.
fn values(seed: u32) -> Vec<f32> {
    let count = SHAPE.element_count().expect("small") as u32;
    let mixed = |i: u32| (i ^ seed).wrapping_mul(0x9e37_79b9).rotate_left(13);
    (0..count)
        .map(|i| mixed(i).wrapping_mul(0x85eb_ca6b) as i32 as f32 / i32::MAX as f32)
        .collect()
}

/// `o[batch][head][i]`, component `d`, from the definition: causal, in f64.
fn exact(q: &HostTensor, k: &HostTensor, v: &HostTensor, at: [usize; 4]) -> f64 {
    let [batch, head, i, d] = at;
    let scale = 1.0 / (SHAPE.dim as f64).sqrt();
    let score = |j: usize| -> f64 {
        let product =
            |d: usize| f64::from(q.get(batch, head, i, d)) * f64::from(k.get(batch, head, j, d));
        scale * (0..SHAPE.dim).map(product).sum::<f64>()
    };
    let weights: Vec<f64> = (0..=i).map(|j| score(j).exp()).collect();
    let weighted = weights.iter().enumerate();
    let weighted = weighted.map(|(j, p)| p * f64::from(v.get(batch, head, j, d)));
    weighted.sum::<f64>() / weights.iter().sum::<f64>()
}

fn main() -> Result<(), Error> {
    // `Auto::new()` would take a GPU if there is one; nothing else changes.
    let mut backend = Cpu::new();
    let host = |seed| HostTensor::from_f32(&values(seed), SHAPE, Layout::Bshd);
    let (q, k, v) = (host(1)?, host(2)?, host(3)?);
    let [on_q, on_k, on_v] = [
        q.upload(backend.memory())?,
        k.upload(backend.memory())?,
        v.upload(backend.memory())?,
    ];

    let options = ForwardOptions::new().mask(Mask::Causal).lse(false);
    let output = forward(&mut backend, &on_q, &on_k, &on_v, &options)?;

    let o = output.o.download(backend.memory())?;
    let mut largest: f64 = 0.0;
    for at in [[0, 0, 0, 0], [0, 3, 17, 63], [1, 2, 50, 5], [1, 3, 99, 63]] {
        let [batch, head, i, d] = at;
        let error = f64::from(o.get(batch, head, i, d)) - exact(&q, &k, &v, at);
        largest = largest.max(error.abs());
    }
    assert!(largest < 1e-6, "o is off by {largest:e}");
    println!(
        "{}: o is off by {largest:.1e} at most",
        backend.device_name()
    );
    Ok(())
}
