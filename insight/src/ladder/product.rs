//! The library's own CPU backend on a head of the ladder.

use super::backward::{BackwardHead, ExactGradients};
use super::exact::Exact;
use super::global::Matrix;
use super::head::Head;
use ferroflash::{
    Backend, BackwardOptions, Cpu, Error, ForwardOptions, HostTensor, Layout, Shape, Tensor,
    backward, forward,
};

/// Largest |o − o64| of [`Cpu`], where `exact` is that of `head`; `None` under dropout, which it does not have.
///
/// # Errors
/// Those of [`forward`].
pub fn largest_error(head: &Head, exact: &Exact) -> Result<Option<f64>, Error> {
    if head.dropout.is_some() {
        return Ok(None);
    }
    let mut cpu = Cpu::new();
    let [q, k, v] = [&head.q, &head.k, &head.v].map(|matrix| upload(&mut cpu, head, matrix));
    let output = forward(&mut cpu, &q?, &k?, &v?, &options(head))?;
    let o = output.o.download(cpu.memory())?.to_f32(Layout::Bhsd);
    Ok(Some(exact.largest_error(&o)))
}

/// Largest error of [`Cpu`]'s dq, dk and dv, as [`largest_error`].
///
/// # Errors
/// Those of [`forward`] and [`backward`].
pub fn largest_gradient_error(
    pass: &BackwardHead,
    exact: &ExactGradients,
) -> Result<Option<f64>, Error> {
    let head = &pass.head;
    if head.dropout.is_some() {
        return Ok(None);
    }
    let mut cpu = Cpu::new();
    let tensors = [&head.q, &head.k, &head.v, &pass.d_o];
    let [q, k, v, d_o] = tensors.map(|matrix| upload(&mut cpu, head, matrix));
    let (q, k, v, options) = (q?, k?, v?, options(head));
    let output = forward(&mut cpu, &q, &k, &v, &options)?;
    let options = BackwardOptions::of(&options);
    let gradients = backward(&mut cpu, &q, &k, &v, &output, &d_o?, &options)?;
    let mut values = |tensor: &Tensor<_>| -> Result<Vec<f32>, Error> {
        Ok(tensor.download(cpu.memory())?.to_f32(Layout::Bhsd))
    };
    let gradients = [
        values(&gradients.dq)?,
        values(&gradients.dk)?,
        values(&gradients.dv)?,
    ];
    Ok(Some(exact.largest_error(&gradients)))
}

fn options(head: &Head) -> ForwardOptions {
    ForwardOptions::new().mask(head.mask).o_layout(Layout::Bhsd)
}

fn upload(
    cpu: &mut Cpu,
    head: &Head,
    matrix: &Matrix,
) -> Result<Tensor<<Cpu as Backend>::Memory>, Error> {
    let shape = Shape {
        batch: 1,
        heads: 1,
        seq: head.seq,
        dim: head.head_dim,
    };
    let values = matrix.clone().into_values();
    HostTensor::from_f32(&values, shape, Layout::Bhsd)?.upload(cpu.memory())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ladder::dropout::Dropout;
    use ferroflash::Mask;

    #[test]
    fn the_library_agrees_with_the_ladder() {
        let mut head = Head::random(70, 24, 3).unwrap();
        head.mask = Mask::Causal;
        let error = largest_error(&head, &Exact::of(&head)).unwrap().unwrap();
        assert!(error < 2e-6, "{error}");
        head.dropout = Some(Dropout::new(0.5, 1).unwrap());
        let error = largest_error(&head, &Exact::of(&head));
        assert_eq!(error.unwrap(), None);
    }
}
