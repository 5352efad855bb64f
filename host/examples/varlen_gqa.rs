//! Packed sequences of different lengths (varlen) with grouped heads (GQA), checked against one call a sequence.
//!
//! `cargo run --release -p ferroflash --example varlen_gqa`

use ferroflash::{
    Backend, Cpu, CuSeqlens, Error, ForwardOptions, HostTensor, Layout, Mask, Shape, Tensor,
    TensorSpec, forward,
};

/// Queries and keys of each sequence: the second one continues 30 cached keys, the third has one new token.
const SEQUENCES: [(usize, usize); 3] = [(40, 40), (20, 50), (1, 33)];
const HEADS_Q: usize = 8;
/// Four query heads share each head of k and v.
const HEADS_KV: usize = 2;
const HEAD_DIM: usize = 64;

fn packed(rows: usize, heads: usize) -> Result<HostTensor, Error> {
    let shape = Shape::packed(rows, heads, HEAD_DIM);
    let count = shape.element_count().expect("small");
    let values: Vec<f32> = (0..count)
        .map(|i| ((i * 7919) % 1013) as f32 / 500.0 - 1.0)
        .collect();
    HostTensor::from_f32(&values, shape, Layout::Bshd)
}

/// Rows `first..first + rows` of a packed tensor, as a tensor of their own without a copy.
fn rows(
    cpu: &mut Cpu,
    tensor: &Tensor<<Cpu as Backend>::Memory>,
    first: usize,
    rows: usize,
) -> Result<Tensor<<Cpu as Backend>::Memory>, Error> {
    let whole = *tensor.spec();
    let shape = Shape {
        seq: rows,
        ..whole.shape
    };
    let origin = first * whole.strides.seq as usize;
    tensor.view(cpu.memory(), origin, TensorSpec { shape, ..whole })
}

fn main() -> Result<(), Error> {
    let mut cpu = Cpu::new();
    let lengths = CuSeqlens::from_lengths(SEQUENCES)?;
    let q = packed(lengths.total_q(), HEADS_Q)?.upload(cpu.memory())?;
    let k = packed(lengths.total_kv(), HEADS_KV)?.upload(cpu.memory())?;
    let v = packed(lengths.total_kv(), HEADS_KV)?.upload(cpu.memory())?;

    // Causal is counted from each sequence's bottom-right corner: its last query sees its last key.
    let causal = ForwardOptions::new().mask(Mask::Causal);
    let options = causal.clone().cu_seqlens(lengths.clone());
    let output = forward(&mut cpu, &q, &k, &v, &options)?;
    let o = output.o.download(cpu.memory())?;

    let mut largest: f32 = 0.0;
    for (index, (seq_q, seq_kv)) in SEQUENCES.into_iter().enumerate() {
        let first_q = lengths.q()[index] as usize;
        let first_kv = lengths.kv()[index] as usize;
        let q = rows(&mut cpu, &q, first_q, seq_q)?;
        let [k, v] = [
            rows(&mut cpu, &k, first_kv, seq_kv)?,
            rows(&mut cpu, &v, first_kv, seq_kv)?,
        ];
        let alone = forward(&mut cpu, &q, &k, &v, &causal)?;
        let alone = alone.o.download(cpu.memory())?;
        for head in 0..HEADS_Q {
            for i in 0..seq_q {
                for d in 0..HEAD_DIM {
                    let difference = o.get(0, head, first_q + i, d) - alone.get(0, head, i, d);
                    largest = largest.max(difference.abs());
                }
            }
        }
    }
    assert!(largest < 1e-6, "packed sequences differ by {largest:e}");
    println!(
        "{} packed sequences of {} and {} rows differ by {largest:.1e} at most from one call each",
        lengths.batch(),
        lengths.total_q(),
        lengths.total_kv(),
    );
    Ok(())
}
