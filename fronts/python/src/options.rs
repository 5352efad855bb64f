use ferroflash::{AlibiSlopes, BackwardOptions, BiasTensor, Documents, Dropout, Error};
use ferroflash::{ForwardOptions, Layout, MaskTensor, PrefixLengths, Sinks};
use ferroflash_fronts::{lengths, precision, visible};
use pyo3::prelude::*;

use crate::operands::Arrays;

/// The scalars of `Arguments` in Python, where they are explained.
#[derive(FromPyObject)]
struct Scalars {
    softmax_scale: Option<f32>,
    softcap: f32,
    left: Option<u32>,
    right: Option<u32>,
    top_left: bool,
    heads_first: bool,
    deterministic: bool,
    chunk: Option<u32>,
    dilation: Option<u32>,
    dropout_p: f32,
    ieee: bool,
}

/// Everything but the tensors, of `Arguments`: made once, for any number of calls.
#[pyclass(frozen, module = "ferroflash._native")]
pub struct Options {
    /// Without what a call's arrays say.
    options: ForwardOptions,
    pub layout: Layout,
    scalars: Scalars,
}

#[pymethods]
impl Options {
    #[new]
    fn new(scalars: Scalars) -> Self {
        Self {
            options: ForwardOptions::new()
                .softmax_scale(scalars.softmax_scale)
                .softcap(Some(scalars.softcap).filter(|softcap| *softcap != 0.0))
                .mask(visible(scalars.left, scalars.right, scalars.top_left))
                .chunk(scalars.chunk)
                .dilation(scalars.dilation)
                .precision(precision(scalars.ieee)),
            layout: match scalars.heads_first {
                true => Layout::Bhsd,
                false => Layout::Bshd,
            },
            scalars,
        }
    }
}

impl Options {
    /// Those of a forward pass of `heads` query heads.
    pub fn forward(&self, heads: usize, arrays: &Arrays) -> Result<ForwardOptions, Error> {
        let lengths = lengths(arrays.packed, arrays.seqused_k)?;
        let mut options = self.options.clone().lengths(lengths);
        let slopes = |is_batched| AlibiSlopes::on_device(heads, is_batched);
        options.alibi = arrays.alibi_slopes.map(slopes);
        // What hides, changes or drops single pairs.
        let of = &mut options.modifiers;
        let mask = arrays.mask.as_ref();
        of.mask = mask.map(|of| MaskTensor::on_device(of.0.into(), of.1.into()));
        let bias = arrays.bias.as_ref();
        let bias = bias.map(|(of, dtype)| of.spec(*dtype, Layout::Bhsd));
        of.bias = bias.as_ref().map(BiasTensor::on_device);
        of.sinks = (arrays.sinks).then(|| Sinks::on_device(heads));
        of.documents = arrays.documents.map(Documents::on_device);
        of.prefix = (arrays.prefix_len).then(PrefixLengths::on_device);
        if arrays.dropout_state {
            of.dropout = Some(Dropout::new(self.scalars.dropout_p, 0)?.state_on_device());
        }
        Ok(options)
    }

    /// Those of the backward pass of `forward`.
    pub fn backward(&self, forward: &ForwardOptions, arrays: &Arrays) -> BackwardOptions {
        let [slopes, bias, sinks] = arrays.wanted;
        BackwardOptions::of(forward)
            .deterministic(self.scalars.deterministic)
            .alibi_gradient(slopes)
            .bias_gradient(bias)
            .sink_gradient(sinks)
    }
}
