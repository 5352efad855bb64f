use ferroflash::{AlibiSlopes, BackwardOptions, DeviceLengths, Error};
use ferroflash::{ForwardOptions, Layout, Lengths, Mask};
use pyo3::prelude::*;

use crate::operands::{Packed, Slopes};

/// Everything but the tensors: made once, for any number of calls.
///
/// * `softmax_scale`: multiplies q · k; by default 1 / sqrt(head_dim).
/// * `softcap`: scores become softcap · tanh(score / softcap).
/// * `left`, `right`: keys visible before and after a query's own position; `None` leaves a side open.
/// * `top_left`: whether a query's own position is its index, and not counted from the last key back.
/// * `heads_first`: whether operands are given as `[batch, heads, seq, dim]`, and not as `[batch, seq, heads, dim]`.
/// * `deterministic`: whether two backward passes must give the same bits.
#[pyclass(frozen, module = "ferroflash._native")]
pub struct Options {
    /// Without what a call's arrays say.
    options: ForwardOptions,
    pub layout: Layout,
    deterministic: bool,
}

#[pymethods]
impl Options {
    #[new]
    #[pyo3(signature = (*, softmax_scale=None, softcap=None, left=None, right=None, top_left=false, heads_first=false,
                        deterministic=false))]
    fn new(
        softmax_scale: Option<f32>,
        softcap: Option<f32>,
        left: Option<u32>,
        right: Option<u32>,
        top_left: bool,
        heads_first: bool,
        deterministic: bool,
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
        Self {
            options: ForwardOptions::new()
                .softmax_scale(softmax_scale)
                .softcap(softcap)
                .mask(mask),
            layout: match heads_first {
                true => Layout::Bhsd,
                false => Layout::Bshd,
            },
            deterministic,
        }
    }
}

impl Options {
    /// Those of a forward pass of `heads` query heads.
    pub fn forward(
        &self,
        heads: usize,
        packed: Option<&Packed>,
        has_seqused_kv: bool,
        slopes: Option<&Slopes>,
    ) -> Result<ForwardOptions, Error> {
        let packed = packed.map(|packed| DeviceLengths::cu_seqlens(packed.2, packed.3, packed.4));
        let lengths = match (packed.transpose()?, has_seqused_kv) {
            (None, false) => Lengths::Dense,
            (None, true) => DeviceLengths::seqused_kv().into(),
            (Some(packed), false) => packed.into(),
            (Some(packed), true) => packed.and_seqused_kv().into(),
        };
        let slopes = slopes.map(|slopes| AlibiSlopes::on_device(heads, slopes.1));
        Ok(self.options.clone().alibi(slopes).lengths(lengths))
    }

    /// Those of the backward pass of `forward`.
    pub fn backward(&self, forward: &ForwardOptions, alibi_gradient: bool) -> BackwardOptions {
        BackwardOptions::of(forward)
            .deterministic(self.deterministic)
            .alibi_gradient(alibi_gradient)
    }
}
