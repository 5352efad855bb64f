use ferroflash::{AlibiSlopes, BackwardOptions, BiasTensor, DType, DeviceLengths, Documents};
use ferroflash::{Dropout, Error, ForwardOptions, Layout, Lengths, Mask, MaskTensor};
use ferroflash::{Modifiers, PrefixLengths, Sinks};
use pyo3::prelude::*;

use crate::operands::Arrays;

/// Everything but the tensors: made once, for any number of calls.
///
/// * `softmax_scale`: multiplies q · k; by default 1 / sqrt(head_dim).
/// * `softcap`: scores become softcap · tanh(score / softcap).
/// * `left`, `right`: keys visible before and after a query's own position; `None` leaves a side open.
/// * `top_left`: whether a query's own position is its index, and not counted from the last key back.
/// * `heads_first`: whether operands are given as `[batch, heads, seq, dim]`, and not as `[batch, seq, heads, dim]`.
/// * `deterministic`: whether two backward passes must give the same bits.
/// * `chunk`, `dilation`: keys of a query's own chunk of positions, or at multiples of a distance, alone are visible.
/// * `dropout_p`: how many probabilities are dropped.
#[pyclass(frozen, module = "ferroflash._native")]
pub struct Options {
    /// Without what a call's arrays say.
    options: ForwardOptions,
    pub layout: Layout,
    deterministic: bool,
    dropout_p: f32,
}

#[pymethods]
impl Options {
    #[new]
    #[pyo3(signature = (*, softmax_scale=None, softcap=None, left=None, right=None, top_left=false, heads_first=false,
                        deterministic=false, chunk=None, dilation=None, dropout_p=0.0))]
    #[allow(clippy::too_many_arguments)] // Python's, by name
    fn new(
        softmax_scale: Option<f32>,
        softcap: Option<f32>,
        left: Option<u32>,
        right: Option<u32>,
        top_left: bool,
        heads_first: bool,
        deterministic: bool,
        chunk: Option<u32>,
        dilation: Option<u32>,
        dropout_p: f32,
    ) -> Self {
        let saturated = |side: u32| i32::try_from(side).unwrap_or(i32::MAX);
        let mask = match (left, right, top_left) {
            (None, None, _) => Mask::None,
            (_, _, true) => Mask::Band {
                lower: left.map(|left| -saturated(left)),
                upper: right.map(saturated),
            },
            (None, Some(0), false) => Mask::Causal,
            (_, _, false) => Mask::Window { left, right },
        };
        let options = ForwardOptions::new().softmax_scale(softmax_scale);
        let options = options.softcap(softcap).mask(mask);
        Self {
            options: options.chunk(chunk).dilation(dilation),
            layout: if heads_first {
                Layout::Bhsd
            } else {
                Layout::Bshd
            },
            deterministic,
            dropout_p,
        }
    }
}

impl Options {
    /// Those of a forward pass of `heads` query heads.
    pub fn forward(&self, heads: usize, arrays: &Arrays) -> Result<ForwardOptions, Error> {
        let packed = arrays.packed;
        let packed = packed.map(|(_, _, batch, q, kv)| DeviceLengths::cu_seqlens(batch, q, kv));
        let lengths = match (packed.transpose()?, arrays.seqused_k) {
            (None, None) => Lengths::Dense,
            (None, Some(_)) => DeviceLengths::seqused_kv().into(),
            (Some(packed), None) => packed.into(),
            (Some(packed), Some(_)) => packed.and_seqused_kv().into(),
        };
        let slopes = arrays.alibi_slopes;
        let mut options = self.options.clone().lengths(lengths);
        options.alibi = slopes.map(|(_, batched)| AlibiSlopes::on_device(heads, batched));
        self.modify(&mut options.modifiers, heads, arrays)?;
        Ok(options)
    }

    /// What hides, changes or drops single pairs.
    fn modify(&self, of: &mut Modifiers, heads: usize, arrays: &Arrays) -> Result<(), Error> {
        let mask =
            |axes: &crate::operands::Pairs| MaskTensor::on_device(axes.1.into(), axes.2.into());
        of.mask = arrays.mask.as_ref().map(mask);
        of.bias = arrays.bias.as_ref().map(|(axes, dtype)| {
            BiasTensor::on_device(&axes.spec(DType::ALL[*dtype], Layout::Bhsd))
        });
        of.sinks = arrays.sinks.map(|_| Sinks::on_device(heads));
        let documents = arrays.documents;
        of.documents = documents.map(|(_, _, batched)| Documents::on_device(batched));
        of.prefix = arrays.prefix_len.map(|_| PrefixLengths::on_device());
        if arrays.dropout_state.is_some() {
            of.dropout = Some(Dropout::new(self.dropout_p, 0)?.state_on_device());
        }
        Ok(())
    }

    /// Those of the backward pass of `forward`.
    pub fn backward(&self, forward: &ForwardOptions, arrays: &Arrays) -> BackwardOptions {
        BackwardOptions::of(forward)
            .deterministic(self.deterministic)
            .alibi_gradient(arrays.d_alibi_slopes.is_some())
            .sink_gradient(arrays.d_sinks.is_some())
    }
}
