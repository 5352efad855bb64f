//! Merging attention over parts of the keys into attention over all of them.

use crate::spec::{Layout, Shape, TensorSpec};
use crate::tensor::{allocate, lse_spec};
use crate::{Backend, DType, Error, Memory, Output, Tensor};

/// Merges attention over disjoint parts of the keys: o and lse are those of one call on all keys, up to rounding.
///
/// With `lseᵢ` of part `i`, `lse = ln Σᵢ exp lseᵢ` and `o = Σᵢ exp(lseᵢ − lse) · oᵢ`, computed in f32 on GPUs and in f64 on
/// the CPU, then rounded to the dtypes of o and lse. A row that sees no key of a part takes nothing from it; one that
/// sees none at all is 0 with an lse of −∞. (Split-KV of Flash-Decoding; Ring Attention.)
///
/// On a CUDA device the call waits for the work queued before it, as it copies the parts' addresses there.
///
/// # Arguments
/// * `parts`: at least one output of [`forward`](crate::forward), all for the same q and each for other keys. Every o
///   is of `[batch, heads_q, seq_q, head_dim_v]` and one dtype, in any strides, and has an lse, f32 of
///   `[batch, heads_q, seq_q, 1]` in any strides. Causal and window masks have to be those of the part
///   ([`Mask::Band`](crate::Mask::Band) shifted by its first key).
///
/// The result's o is of the same dtype, contiguous bshd.
///
/// # Errors
/// [`Error::Argument`] on `parts` if there is none, if one has no lse or belongs to another backend, or if they differ
/// in shape or dtype; [`Error::OutOfMemory`] or [`Error::Device`].
pub fn merge<B: Backend + ?Sized>(
    backend: &mut B,
    parts: &[&Output<B::Memory>],
) -> Result<Output<B::Memory>, Error> {
    let Some((first, _)) = parts.split_first() else {
        return Err(wrong_part("there is none", "there must be one at least"));
    };
    let o = first.o.spec();
    let (o_spec, lse_spec) = (
        TensorSpec::contiguous(o.dtype, o.shape, Layout::Bshd)?,
        lse_spec(&o.shape)?,
    );
    check_axes(o.shape)?;
    let memory = backend.memory();
    let of_parts = parts.iter().map(|part| checked(memory, part, &o_spec));
    let of_parts = of_parts.collect::<Result<Vec<_>, _>>()?;
    let merged = Output::new(allocate(memory, o_spec)?, allocate(memory, lse_spec)?);
    if !o_spec.is_empty() {
        let [o, lse] = [&merged.o, merged.lse.as_ref().expect("it was made above")];
        let merge = Merge {
            parts: &of_parts,
            o: MergeTensor::of(memory, o),
            lse: MergeTensor::of(memory, lse),
        };
        // SAFETY: `checked` found that every part has o's axes and lies in this memory; o and lse are new.
        unsafe { backend.merge_raw(&merge)? };
    }
    Ok(merged)
}

/// The operands of a merge, by address.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Merge<'a> {
    pub parts: &'a [MergePart],
    /// The merged o; written.
    pub o: MergeTensor,
    /// The merged lse, contiguous f32 `[batch, heads_q, seq_q]`; written.
    pub lse: MergeTensor,
}

/// One partial result.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct MergePart {
    pub o: MergeTensor,
    pub lse: MergeTensor,
}

/// A tensor by address.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct MergeTensor {
    pub address: u64,
    pub spec: TensorSpec,
}

impl MergeTensor {
    fn of<M: Memory>(memory: &M, tensor: &Tensor<M>) -> Self {
        Self {
            address: tensor.address(memory),
            spec: *tensor.spec(),
        }
    }
}

/// The addresses of a part, if its o has the dtype and shape of `o_spec` and it lies in this memory.
fn checked<M: Memory>(
    memory: &M,
    part: &Output<M>,
    o_spec: &TensorSpec,
) -> Result<MergePart, Error> {
    let Some(lse) = &part.lse else {
        let allowed = "each must have its lse";
        return Err(wrong_part("one of them has no lse", allowed));
    };
    part.o.check_owned(memory, "parts")?;
    lse.check_owned(memory, "parts")?;
    let lse_shape = Shape {
        dim: 1,
        ..o_spec.shape
    };
    let is_like = |tensor: &Tensor<M>, dtype, shape| {
        (tensor.spec().dtype, tensor.spec().shape) == (dtype, shape)
    };
    if is_like(&part.o, o_spec.dtype, o_spec.shape) && is_like(lse, DType::F32, lse_shape) {
        return Ok(MergePart {
            o: MergeTensor::of(memory, &part.o),
            lse: MergeTensor::of(memory, lse),
        });
    }
    let wrong = format!("one is {:?} with an lse of {:?}", part.o.spec(), lse.spec());
    let allowed = "they must be of one shape and dtype, with an f32 lse of a value a row";
    Err(wrong_part(wrong, allowed))
}

/// Returns an error if an axis does not fit the kernels' u32.
fn check_axes(shape: Shape) -> Result<(), Error> {
    let Shape {
        batch,
        heads,
        seq,
        dim,
    } = shape;
    let fits = |axis: usize| u32::try_from(axis).is_ok();
    if [batch, heads, seq, dim].into_iter().all(fits) {
        return Ok(());
    }
    let allowed = "no axis may be longer than 2^32 − 1";
    Err(wrong_part(format!("their shape is {shape:?}"), allowed))
}

fn wrong_part(wrong: impl Into<String>, allowed: &'static str) -> Error {
    Error::argument("parts", wrong, allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cpu, ForwardOptions, HostTensor, Mask, forward};

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
            // Rows see none, some or all keys of a part; the first row sees no key at all.
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
        let mut elsewhere = Cpu::new();
        assert_eq!(
            argument(merge(&mut elsewhere, &[&with]).unwrap_err()),
            "parts"
        );
    }
}
