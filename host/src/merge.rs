//! Attention over all keys from attention over parts of them.

use crate::spec::{Layout, Shape, TensorSpec};
use crate::{Backend, Capabilities, DType, Error, HostTensor, Output};

/// The attention of queries to all keys, from that to disjoint parts of the keys: o and lse as one call on all of them
/// would give, up to rounding.
///
/// With `lseᵢ` of part `i`, `lse = ln Σᵢ exp lseᵢ` and `o = Σᵢ exp(lseᵢ − lse) · oᵢ`, computed in f64 and rounded once. A
/// row that sees no key of a part takes nothing from it; one that sees none at all is 0 with an lse of −∞. (Split-KV of
/// Flash-Decoding; Ring Attention.)
///
/// # Arguments
/// * `parts`: what [`forward`](crate::forward) gave for the same q and other keys. Every o is of
///   `[batch, heads_q, seq_q, head_dim_v]` and one dtype, in any strides, and has an lse. Causal and window masks have to be
///   those of the part ([`Mask::Band`](crate::Mask::Band) shifted by its first key).
///
/// The result's o is of the same dtype, contiguous bshd.
///
/// # Errors
/// [`Error::Argument`] on `parts` if there is none, one has no lse, or they differ in shape or dtype; on `backend` if it is
/// not the CPU's: no kernel merges on a GPU yet. There, download the parts and take [`merge_host`].
pub fn merge<B: Backend + ?Sized>(
    backend: &mut B,
    parts: &[&Output<B::Memory>],
) -> Result<Output<B::Memory>, Error> {
    if backend.capabilities() != Capabilities::Cpu {
        return Err(Error::argument(
            "backend",
            format!("no kernel merges on {} yet", backend.name()),
            "it must be the CPU's; merge_host takes downloaded parts",
        ));
    }
    let memory = backend.memory();
    let mut downloaded = Vec::with_capacity(parts.len());
    for part in parts {
        let Some(lse) = &part.lse else {
            return Err(wrong_part(
                "one of them has no lse",
                "each must have its lse",
            ));
        };
        downloaded.push((part.o.download(memory)?, lse.download(memory)?));
    }
    let parts: Vec<_> = downloaded.iter().map(|(o, lse)| (o, lse)).collect();
    let (o, lse) = merge_host(&parts)?;
    Ok(Output::new(o.upload(memory)?, lse.upload(memory)?))
}

/// [`merge`] of parts, o and lse each, that have been downloaded from any backend.
///
/// # Errors
/// [`Error::Argument`] on `parts` if there is none or they differ in shape or dtype; [`Error::OutOfMemory`].
pub fn merge_host(parts: &[(&HostTensor, &HostTensor)]) -> Result<(HostTensor, HostTensor), Error> {
    let Some(((first, _), _)) = parts.split_first() else {
        return Err(wrong_part("there is none", "there must be one at least"));
    };
    let (shape, dtype) = (first.spec().shape, first.spec().dtype);
    let lse_shape = Shape { dim: 1, ..shape };
    for (o, lse) in parts {
        let is_alike = o.spec().shape == shape && o.spec().dtype == dtype;
        if !is_alike || lse.spec().shape != lse_shape || lse.spec().dtype != DType::F32 {
            let wrong = format!("one is {:?} with an lse of {:?}", o.spec(), lse.spec());
            let allowed = "they must be of one shape and dtype, with an f32 lse of a value a row";
            return Err(wrong_part(wrong, allowed));
        }
    }
    let dense = |dtype, shape, layout| {
        let spec = TensorSpec::contiguous(dtype, shape, layout)?;
        let bytes = shape.element_count().unwrap_or(0) * dtype.bytes();
        HostTensor::new(spec, 0, crate::host_tensor::host_zeros(bytes)?)
    };
    let mut o = dense(dtype, shape, Layout::Bshd)?;
    let mut lse = dense(DType::F32, lse_shape, Layout::Bhsd)?;
    for batch in 0..shape.batch {
        for head in 0..shape.heads {
            for seq in 0..shape.seq {
                let row = Row { batch, head, seq };
                row.merge(parts, &mut o, &mut lse);
            }
        }
    }
    Ok((o, lse))
}

fn wrong_part(wrong: impl Into<String>, allowed: &'static str) -> Error {
    Error::argument("parts", wrong, allowed)
}

/// One row of o and lse.
struct Row {
    batch: usize,
    head: usize,
    seq: usize,
}

impl Row {
    fn merge(
        &self,
        parts: &[(&HostTensor, &HostTensor)],
        o: &mut HostTensor,
        lse: &mut HostTensor,
    ) {
        let &Self { batch, head, seq } = self;
        let of = |lse: &HostTensor| f64::from(lse.get(batch, head, seq, 0));
        // What saw no key has no weight, whatever its o holds.
        let seen = || parts.iter().filter(|(_, lse)| of(lse) != f64::NEG_INFINITY);
        let max = seen()
            .map(|(_, lse)| of(lse))
            .fold(f64::NEG_INFINITY, f64::max);
        let weight = |lse: &HostTensor| (of(lse) - max).exp();
        let sum: f64 = seen().map(|(_, lse)| weight(lse)).sum();
        if sum == 0.0 {
            lse.set(batch, head, seq, 0, f32::NEG_INFINITY);
            return;
        }
        lse.set(batch, head, seq, 0, (max + sum.ln()) as f32);
        for dim in 0..o.spec().shape.dim {
            let part = |(o, lse): &(&HostTensor, &HostTensor)| {
                weight(lse) * f64::from(o.get(batch, head, seq, dim))
            };
            let merged = seen().map(part).sum::<f64>() / sum;
            o.set(batch, head, seq, dim, merged as f32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cpu, ForwardOptions, Mask, Sim, Tensor, forward};

    const SHAPE: Shape = Shape {
        batch: 2,
        heads: 2,
        seq: 5,
        dim: 4,
    };
    const KEYS: usize = 9;

    fn tensor<B: Backend>(backend: &mut B, shape: Shape, dtype: DType) -> Tensor<B::Memory> {
        let count = shape.element_count().unwrap();
        let values: Vec<f32> = (0..count)
            .map(|i| (i * 37 % 23) as f32 / 8.0 - 1.0)
            .collect();
        let tensor = HostTensor::from_f32(&values, shape, Layout::Bshd).unwrap();
        let tensor = tensor.convert(dtype, Layout::Bshd).unwrap();
        tensor.upload(backend.memory()).unwrap()
    }

    /// Keys `first..end` of a tensor.
    fn keys(
        cpu: &mut Cpu,
        x: &Tensor<crate::backend::cpu::CpuMemory>,
        first: usize,
        end: usize,
    ) -> Tensor<crate::backend::cpu::CpuMemory> {
        let mut spec = *x.spec();
        spec.shape.seq = end - first;
        let origin = first * spec.strides.seq as usize;
        x.view(cpu.memory(), origin, spec).unwrap()
    }

    #[test]
    fn parts_of_the_keys_make_the_whole() {
        for (dtype, allowed) in [(DType::F32, 1e-6), (DType::F16, 2e-3), (DType::Bf16, 2e-2)] {
            let mut cpu = Cpu::new();
            let q = tensor(&mut cpu, SHAPE, dtype);
            let kv = tensor(&mut cpu, Shape { seq: KEYS, ..SHAPE }, dtype);
            // Rows see from none of a part to all of it; the first row sees no key at all.
            let mask = |first: usize| Mask::Band {
                lower: None,
                upper: Some(-1 - first as i32),
            };
            let whole = forward(&mut cpu, &q, &kv, &kv, &ForwardOptions::new().mask(mask(0)));
            let whole = whole.unwrap();
            let mut parts = Vec::new();
            for (first, end) in [(0, 2), (2, 3), (3, KEYS), (4, 4)] {
                let part = keys(&mut cpu, &kv, first, end);
                let options = ForwardOptions::new().mask(mask(first));
                parts.push(forward(&mut cpu, &q, &part, &part, &options).unwrap());
            }
            let parts: Vec<_> = parts.iter().collect();
            let merged = merge(&mut cpu, &parts).unwrap();
            let mut values = |output: &Output<_>| {
                let (o, lse) = (&output.o, output.lse.as_ref().unwrap());
                let [o, lse] = [o, lse].map(|tensor| tensor.download(cpu.memory()).unwrap());
                (o.to_f32(Layout::Bshd), lse.to_f32(Layout::Bshd))
            };
            let ((o, lse), (exact_o, exact_lse)) = (values(&merged), values(&whole));
            assert_eq!(lse[0], f32::NEG_INFINITY);
            assert_eq!(o[..4], [0.0; 4]);
            for (value, exact) in o.iter().zip(&exact_o) {
                assert!(
                    (value - exact).abs() <= allowed,
                    "{dtype:?}: {value} for {exact}"
                );
            }
            for (value, exact) in lse.iter().zip(&exact_lse) {
                let is_right = value == exact || (value - exact).abs() < 1e-5;
                assert!(is_right, "{dtype:?}: lse {value} for {exact}");
            }
        }
    }

    #[test]
    fn what_cannot_be_merged_is_named() {
        let argument = |refused: Error| match refused {
            Error::Argument { argument, .. } => argument.into_owned(),
            other => panic!("{other}"),
        };
        let mut cpu = Cpu::new();
        let x = tensor(&mut cpu, SHAPE, DType::F32);
        let y = tensor(&mut cpu, SHAPE, DType::F16);
        let options = ForwardOptions::new();
        let with = forward(&mut cpu, &x, &x, &x, &options).unwrap();
        let other = forward(&mut cpu, &y, &y, &y, &options).unwrap();
        let without = forward(&mut cpu, &x, &x, &x, &options.clone().lse(false)).unwrap();
        assert_eq!(argument(merge(&mut cpu, &[]).unwrap_err()), "parts");
        for parts in [[&with, &without], [&with, &other]] {
            assert_eq!(argument(merge(&mut cpu, &parts).unwrap_err()), "parts");
        }
        let mut sim = Sim::new();
        let x = tensor(&mut sim, SHAPE, DType::F32);
        let part = forward(&mut sim, &x, &x, &x, &options).unwrap();
        assert_eq!(argument(merge(&mut sim, &[&part]).unwrap_err()), "backend");
        let lse = part.lse.as_ref().unwrap().download(sim.memory()).unwrap();
        let o = part.o.download(sim.memory()).unwrap();
        let (merged, _) = merge_host(&[(&o, &lse)]).unwrap();
        assert_eq!(merged.to_f32(Layout::Bshd), o.to_f32(Layout::Bshd));
    }
}
