//! The library's own CPU backend on a head of the ladder.

use super::attention::Head;
use super::exact::Exact;
use super::global::Matrix;
use ferroflash::{Backend, Cpu, Error, ForwardOptions, HostTensor, Layout, Shape, forward};

/// Largest |o − o64| of [`Cpu`], where `exact` is that of `head`; `None` under dropout, which it does not have.
///
/// # Errors
/// Those of [`forward`].
pub fn largest_error(head: &Head, exact: &Exact) -> Result<Option<f64>, Error> {
    if head.dropout.is_some() {
        return Ok(None);
    }
    let shape = Shape {
        batch: 1,
        heads: 1,
        seq: head.seq,
        dim: head.head_dim,
    };
    let mut cpu = Cpu::new();
    let mut upload = |matrix: &Matrix| {
        let values = matrix.clone().into_values();
        HostTensor::from_f32(&values, shape, Layout::Bhsd)?.upload(cpu.memory())
    };
    let (q, k, v) = (upload(&head.q)?, upload(&head.k)?, upload(&head.v)?);
    let options = ForwardOptions::new().mask(head.mask).o_layout(Layout::Bhsd);
    let output = forward(&mut cpu, &q, &k, &v, &options)?;
    let o = output.o.download(cpu.memory())?.to_f32(Layout::Bhsd);
    Ok(Some(exact.largest_error(&o)))
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
