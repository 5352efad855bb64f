//! Causal attention and its gradients for a model: by the library, and by the formula in f64.

use ferroflash::{
    Backend, BackwardOptions, ForwardOptions, HostTensor, Layout, Mask, Output, Shape, Tensor,
    backward, forward,
};

use ferroflash_testing::matrix::{Matrix, add_scaled, dot};

/// Sequences and heads of q, k and v, which are matrices `[batch · seq, heads · dim]`.
#[derive(Clone, Copy)]
pub struct Heads {
    pub batch: usize,
    pub seq: usize,
    pub heads_q: usize,
    pub heads_kv: usize,
    pub dim: usize,
}

/// A way to compute attention and its gradients.
pub trait Attention {
    /// Tensors of the forward pass that the gradients are computed from.
    type Saved;

    /// o from q, k and v.
    fn forward(&mut self, heads: Heads, qkv: [&Matrix; 3]) -> (Matrix, Self::Saved);

    /// dq, dk and dv from `d_o`, the loss's gradient by o.
    fn backward(&mut self, heads: Heads, saved: Self::Saved, d_o: &Matrix) -> [Matrix; 3];
}

/// The library's attention, in f32 on a backend.
pub struct Library<B>(pub B);

/// q, k and v, and o with lse.
pub struct SavedTensors<B: Backend> {
    qkv: [Tensor<B::Memory>; 3],
    output: Output<B::Memory>,
}

impl<B: Backend> Library<B> {
    fn upload(&mut self, heads: Heads, count: usize, matrix: &Matrix) -> Tensor<B::Memory> {
        let shape = Shape {
            batch: heads.batch,
            heads: count,
            seq: heads.seq,
            dim: heads.dim,
        };
        let values: Vec<f32> = matrix.values.iter().map(|&value| value as f32).collect();
        let tensor =
            HostTensor::from_f32(&values, shape, Layout::Bshd).expect("one value an element");
        tensor.upload(self.0.memory()).expect("small")
    }

    fn download(&mut self, tensor: &Tensor<B::Memory>) -> Matrix {
        let Shape {
            batch,
            heads,
            seq,
            dim,
        } = tensor.spec().shape;
        let host = tensor.download(self.0.memory()).expect("it ran");
        let values = host.to_f32(Layout::Bshd);
        Matrix {
            rows: batch * seq,
            cols: heads * dim,
            values: values.into_iter().map(f64::from).collect(),
        }
    }
}

fn options() -> ForwardOptions {
    ForwardOptions::new().mask(Mask::Causal)
}

impl<B: Backend> Attention for Library<B> {
    type Saved = SavedTensors<B>;

    fn forward(&mut self, heads: Heads, [q, k, v]: [&Matrix; 3]) -> (Matrix, Self::Saved) {
        let q = self.upload(heads, heads.heads_q, q);
        let [k, v] = [k, v].map(|matrix| self.upload(heads, heads.heads_kv, matrix));
        let output = forward(&mut self.0, &q, &k, &v, &options()).expect("it runs");
        let o = self.download(&output.o);
        let qkv = [q, k, v];
        (o, SavedTensors { qkv, output })
    }

    fn backward(&mut self, heads: Heads, saved: Self::Saved, d_o: &Matrix) -> [Matrix; 3] {
        let d_o = self.upload(heads, heads.heads_q, d_o);
        let [q, k, v] = &saved.qkv;
        let options = BackwardOptions::of(&options());
        let gradients = backward(&mut self.0, q, k, v, &saved.output, &d_o, &options);
        let gradients = gradients.expect("it runs");
        [&gradients.dq, &gradients.dk, &gradients.dv].map(|gradient| self.download(gradient))
    }
}

/// The formula in f64, a row of probabilities at a time.
pub struct Exact;

impl Heads {
    /// Every (batch entry, query head, query), and the head of k and v that it attends to.
    fn rows(self) -> impl Iterator<Item = Row> {
        let group = self.heads_q / self.heads_kv;
        (0..self.batch).flat_map(move |batch| {
            (0..self.heads_q).flat_map(move |head| {
                (0..self.seq).map(move |query| Row {
                    heads: self,
                    first: batch * self.seq,
                    query,
                    q: head * self.dim,
                    kv: head / group * self.dim,
                })
            })
        })
    }
}

/// One query of one head.
#[derive(Clone, Copy)]
struct Row {
    heads: Heads,
    /// Matrix row of the sequence's first position.
    first: usize,
    /// Position of the query, which sees no later key.
    query: usize,
    /// First column of the query head, and of its head of k and v.
    q: usize,
    kv: usize,
}

impl Row {
    /// This query's head of q or o.
    fn of_query(self, matrix: &Matrix) -> &[f64] {
        &matrix.row(self.first + self.query)[self.q..][..self.heads.dim]
    }

    /// Key or value number `key` of its sequence, in this query's head of k and v.
    fn of_key(self, matrix: &Matrix, key: usize) -> &[f64] {
        &matrix.row(self.first + key)[self.kv..][..self.heads.dim]
    }

    fn of_query_mut(self, matrix: &mut Matrix) -> &mut [f64] {
        &mut matrix.row_mut(self.first + self.query)[self.q..][..self.heads.dim]
    }

    fn of_key_mut(self, matrix: &mut Matrix, key: usize) -> &mut [f64] {
        &mut matrix.row_mut(self.first + key)[self.kv..][..self.heads.dim]
    }

    fn scale(self) -> f64 {
        1.0 / (self.heads.dim as f64).sqrt()
    }

    /// Probabilities of the keys that the query sees.
    fn probabilities(self, q: &Matrix, k: &Matrix) -> Vec<f64> {
        let score = |key| self.scale() * dot(self.of_query(q), self.of_key(k, key));
        let scores: Vec<f64> = (0..=self.query).map(score).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / sum).collect()
    }
}

impl Attention for Exact {
    type Saved = [Matrix; 3];

    fn forward(&mut self, heads: Heads, [q, k, v]: [&Matrix; 3]) -> (Matrix, Self::Saved) {
        let mut o = Matrix::zeros(q.rows, q.cols);
        for row in heads.rows() {
            for (key, p) in row.probabilities(q, k).into_iter().enumerate() {
                add_scaled(row.of_query_mut(&mut o), p, row.of_key(v, key));
            }
        }
        (o, [q, k, v].map(Matrix::clone))
    }

    fn backward(&mut self, heads: Heads, [q, k, v]: Self::Saved, d_o: &Matrix) -> [Matrix; 3] {
        let [mut dq, mut dk, mut dv] = [&q, &k, &v].map(|x| Matrix::zeros(x.rows, x.cols));
        for row in heads.rows() {
            let p = row.probabilities(&q, &k);
            let of_p = |key| dot(row.of_query(d_o), row.of_key(&v, key));
            let d_p: Vec<f64> = (0..p.len()).map(of_p).collect();
            let mean = dot(&p, &d_p);
            for (key, p) in p.into_iter().enumerate() {
                let d_score = row.scale() * p * (d_p[key] - mean);
                add_scaled(row.of_key_mut(&mut dv, key), p, row.of_query(d_o));
                add_scaled(row.of_query_mut(&mut dq), d_score, row.of_key(&k, key));
                add_scaled(row.of_key_mut(&mut dk, key), d_score, row.of_query(&q));
            }
        }
        [dq, dk, dv]
    }
}
