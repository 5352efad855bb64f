//! A two-layer transformer that predicts the next character, with gradients by hand, all in f64 except attention.

use ferroflash_testing::matrix::{Matrix, add_scaled, dot};
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, StandardNormal};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::attention::{Attention, Heads};

pub const LAYERS: usize = 2;
const WIDTH: usize = 32;
const HIDDEN: usize = 64;
/// Query heads, which share heads of k and v (GQA).
const HEADS_Q: usize = 4;
const HEADS_KV: usize = 2;
const HEAD_DIM: usize = 16;

/// A matrix of weights, its gradient, and Adam's two moments.
struct Weights {
    value: Matrix,
    gradient: Matrix,
    moments: [Vec<f64>; 2],
}

impl Weights {
    fn new(rows: usize, cols: usize, size: f64, rng: &mut impl Rng) -> Self {
        let mut value = Matrix::zeros(rows, cols);
        for value in &mut value.values {
            let normal: f64 = StandardNormal.sample(rng);
            *value = size * normal;
        }
        let moments = [0, 1].map(|_| vec![0.0; rows * cols]);
        let gradient = Matrix::zeros(rows, cols);
        Self {
            value,
            gradient,
            moments,
        }
    }

    /// `x · W`.
    fn apply(&self, x: &Matrix) -> Matrix {
        x.times(&self.value)
    }

    /// From `d_y`, the gradient by `x · W`, accumulates the gradient by W and returns that by x.
    fn pull_back(&mut self, x: &Matrix, d_y: &Matrix) -> Matrix {
        self.gradient.add(&x.transposed_times(d_y));
        d_y.times_transposed(&self.value)
    }

    /// Adam (Kingma and Ba 2015, algorithm 1); `step` counts from 1. The gradient is 0 afterwards.
    fn update(&mut self, rate: f64, step: i32) {
        const BETAS: [f64; 2] = [0.9, 0.99];
        let [first, second] = &mut self.moments;
        let [unbias_first, unbias_second] = BETAS.map(|beta| 1.0 - beta.powi(step));
        for (i, gradient) in self.gradient.values.iter_mut().enumerate() {
            first[i] += (1.0 - BETAS[0]) * (*gradient - first[i]);
            second[i] += (1.0 - BETAS[1]) * (*gradient * *gradient - second[i]);
            let size = (second[i] / unbias_second).sqrt() + 1e-8;
            self.value.values[i] -= rate * first[i] / unbias_first / size;
            *gradient = 0.0;
        }
    }
}

/// `x / rms(x)` for every row.
fn rms_norm(x: &Matrix) -> Matrix {
    let mut y = x.clone();
    for row in 0..x.rows {
        let scale = inverse_rms(x.row(row));
        y.row_mut(row).iter_mut().for_each(|value| *value *= scale);
    }
    y
}

fn inverse_rms(row: &[f64]) -> f64 {
    1.0 / (dot(row, row) / row.len() as f64 + 1e-6).sqrt()
}

/// The gradient by x, from that by the output of [`rms_norm`].
fn rms_norm_backward(x: &Matrix, d_y: &Matrix) -> Matrix {
    let mut d_x = Matrix::zeros(x.rows, x.cols);
    for row in 0..x.rows {
        let (x, d_y) = (x.row(row), d_y.row(row));
        let scale = inverse_rms(x);
        let along = scale.powi(3) * dot(x, d_y) / x.len() as f64;
        add_scaled(d_x.row_mut(row), scale, d_y);
        add_scaled(d_x.row_mut(row), -along, x);
    }
    d_x
}

/// `x + Wo · attention(norm x)`, then `x + W2 · relu(W1 · norm x)`.
struct Layer {
    qkv: [Weights; 3],
    out: Weights,
    up: Weights,
    down: Weights,
}

/// Intermediate results from which a layer's gradients are computed.
struct SavedLayer<S> {
    x: Matrix,
    normed: Matrix,
    attention: S,
    o: Matrix,
    middle: Matrix,
    middle_normed: Matrix,
    hidden: Matrix,
}

impl Layer {
    fn new(rng: &mut impl Rng) -> Self {
        let size = |inputs: usize| 1.0 / (inputs as f64).sqrt();
        let mut weights = |rows, cols| Weights::new(rows, cols, size(rows), rng);
        Self {
            qkv: [HEADS_Q, HEADS_KV, HEADS_KV].map(|heads| weights(WIDTH, heads * HEAD_DIM)),
            out: weights(HEADS_Q * HEAD_DIM, WIDTH),
            up: weights(WIDTH, HIDDEN),
            down: weights(HIDDEN, WIDTH),
        }
    }

    fn forward<A: Attention>(
        &self,
        attention: &mut A,
        heads: Heads,
        x: Matrix,
    ) -> (Matrix, SavedLayer<A::Saved>) {
        let normed = rms_norm(&x);
        let [q, k, v] = self.qkv.each_ref().map(|weights| weights.apply(&normed));
        let (o, saved) = attention.forward(heads, [&q, &k, &v]);
        let mut middle = self.out.apply(&o);
        middle.add(&x);
        let middle_normed = rms_norm(&middle);
        let mut hidden = self.up.apply(&middle_normed);
        hidden.values.iter_mut().for_each(|x| *x = x.max(0.0));
        let mut y = self.down.apply(&hidden);
        y.add(&middle);
        let saved = SavedLayer {
            x,
            normed,
            attention: saved,
            o,
            middle,
            middle_normed,
            hidden,
        };
        (y, saved)
    }

    /// Accumulates the weights' gradients; returns the gradient by x, from `d_y`, that by the layer's output.
    fn backward<A: Attention>(
        &mut self,
        attention: &mut A,
        heads: Heads,
        saved: SavedLayer<A::Saved>,
        d_y: Matrix,
    ) -> Matrix {
        let mut d_hidden = self.down.pull_back(&saved.hidden, &d_y);
        for (d_hidden, hidden) in d_hidden.values.iter_mut().zip(&saved.hidden.values) {
            if *hidden == 0.0 {
                *d_hidden = 0.0;
            }
        }
        let d_normed = self.up.pull_back(&saved.middle_normed, &d_hidden);
        let mut d_middle = rms_norm_backward(&saved.middle, &d_normed);
        d_middle.add(&d_y);

        let d_o = self.out.pull_back(&saved.o, &d_middle);
        let gradients = attention.backward(heads, saved.attention, &d_o);
        let mut d_normed = Matrix::zeros(saved.x.rows, WIDTH);
        for (weights, gradient) in self.qkv.iter_mut().zip(&gradients) {
            d_normed.add(&weights.pull_back(&saved.normed, gradient));
        }
        let mut d_x = rms_norm_backward(&saved.x, &d_normed);
        d_x.add(&d_middle);
        d_x
    }
}

/// The transformer.
pub struct Model {
    embedding: Weights,
    positions: Weights,
    layers: [Layer; LAYERS],
    out: Weights,
}

impl Model {
    /// A model for `characters` characters and sequences of `seq`; the same weights for the same arguments.
    pub fn new(characters: usize, seq: usize) -> Self {
        let rng = &mut Xoshiro256PlusPlus::seed_from_u64(7);
        Self {
            embedding: Weights::new(characters, WIDTH, 0.5, rng),
            positions: Weights::new(seq, WIDTH, 0.5, rng),
            layers: std::array::from_fn(|_| Layer::new(rng)),
            out: Weights::new(WIDTH, characters, 0.1, rng),
        }
    }

    /// The mean loss, in nats, of predicting each next character of `batch`, whose sequences are one longer than the
    /// model's; accumulates its gradients.
    pub fn learn<A: Attention>(&mut self, attention: &mut A, batch: &[&[usize]]) -> f64 {
        let seq = batch[0].len() - 1;
        let heads = Heads {
            batch: batch.len(),
            seq,
            heads_q: HEADS_Q,
            heads_kv: HEADS_KV,
            dim: HEAD_DIM,
        };
        let rows = || batch.iter().flat_map(|text| text.windows(2).enumerate());
        let mut x = Matrix::zeros(batch.len() * seq, WIDTH);
        for (row, (position, characters)) in rows().enumerate() {
            let x = x.row_mut(row);
            add_scaled(x, 1.0, self.embedding.value.row(characters[0]));
            add_scaled(x, 1.0, self.positions.value.row(position));
        }
        let mut saved = Vec::new();
        for layer in &self.layers {
            let (y, of_layer) = layer.forward(attention, heads, x);
            x = y;
            saved.push(of_layer);
        }
        let normed = rms_norm(&x);
        let logits = self.out.apply(&normed);
        let (loss, d_logits) = cross_entropy(&logits, rows().map(|(_, characters)| characters[1]));

        let mut d_x = rms_norm_backward(&x, &self.out.pull_back(&normed, &d_logits));
        for (layer, saved) in self.layers.iter_mut().zip(saved).rev() {
            d_x = layer.backward(attention, heads, saved, d_x);
        }
        for (row, (position, characters)) in rows().enumerate() {
            let d_x = d_x.row(row);
            add_scaled(self.embedding.gradient.row_mut(characters[0]), 1.0, d_x);
            add_scaled(self.positions.gradient.row_mut(position), 1.0, d_x);
        }
        loss
    }

    /// Updates all weights by the accumulated gradients; `step` counts from 1.
    pub fn update(&mut self, rate: f64, step: i32) {
        let layers = self.layers.iter_mut().flat_map(|layer| {
            let others = [&mut layer.out, &mut layer.up, &mut layer.down];
            layer.qkv.iter_mut().chain(others)
        });
        let ends = [&mut self.embedding, &mut self.positions, &mut self.out];
        layers
            .chain(ends)
            .for_each(|weights| weights.update(rate, step));
    }
}

/// The mean of `−ln softmax(logits)[target]` over rows, and its gradient.
fn cross_entropy(logits: &Matrix, targets: impl Iterator<Item = usize>) -> (f64, Matrix) {
    let mut gradient = logits.clone();
    let mut loss = 0.0;
    for (row, target) in targets.enumerate() {
        let row = gradient.row_mut(row);
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|logit| (logit - max).exp()).sum();
        loss -= row[target] - max - sum.ln();
        row.iter_mut()
            .for_each(|logit| *logit = (*logit - max).exp() / sum);
        row[target] -= 1.0;
        row.iter_mut()
            .for_each(|gradient| *gradient /= logits.rows as f64);
    }
    (loss / logits.rows as f64, gradient)
}
