use ferroflash::{BackwardOptions, Dropout, Error, ForwardOptions, Mask};
use ferroflash_fronts::{precision, visible};

use crate::call::Call;
use crate::failure::Failure;

/// A call's attributes, in a form that can be looked up by: floats are their bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attributes {
    softmax_scale: u32,
    softcap: u32,
    left: i64,
    right: i64,
    top_left: bool,
    dropout_p: u32,
    ieee: bool,
    deterministic: bool,
}

impl Attributes {
    /// Those of a call; only a backward pass has `deterministic`.
    pub fn of(call: &Call<'_>, is_backward: bool) -> Result<Self, Failure> {
        Ok(Self {
            softmax_scale: call.attribute::<f32>("softmax_scale")?.to_bits(),
            softcap: call.attribute::<f32>("softcap")?.to_bits(),
            left: call.attribute("left")?,
            right: call.attribute("right")?,
            top_left: call.attribute("top_left")?,
            dropout_p: call.attribute::<f32>("dropout_p")?.to_bits(),
            ieee: call.attribute("ieee")?,
            deterministic: is_backward && call.attribute("deterministic")?,
        })
    }

    /// As options of a forward pass, without arrays.
    pub fn forward(&self) -> Result<ForwardOptions, Error> {
        let softcap = f32::from_bits(self.softcap);
        let dropout_p = f32::from_bits(self.dropout_p);
        // Its state is an array: the operands' check misses it where there is none.
        let dropout = match dropout_p {
            0.0 => None,
            p => Some(Dropout::new(p, 0)?.state_on_device()),
        };
        Ok(ForwardOptions::new()
            .softmax_scale(f32::from_bits(self.softmax_scale))
            .softcap(Some(softcap).filter(|softcap| *softcap != 0.0))
            .mask(self.mask())
            .dropout(dropout)
            .precision(precision(self.ieee)))
    }

    /// As options of the backward pass of `forward`.
    pub fn backward(&self, forward: &ForwardOptions) -> BackwardOptions {
        BackwardOptions::of(forward).deterministic(self.deterministic)
    }

    /// Keys from `left` before to `right` after a query's position, where a negative number is an open side.
    fn mask(&self) -> Mask {
        let side = |keys: i64| (keys >= 0).then(|| u32::try_from(keys).unwrap_or(u32::MAX));
        visible(side(self.left), side(self.right), self.top_left)
    }
}
