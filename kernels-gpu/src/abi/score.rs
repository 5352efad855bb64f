//! Parameters of the score: scale, softcap and bias.

use core::num::NonZeroU32;

use bytemuck::{Pod, PodInOption, Zeroable, ZeroableInOption};

use super::tensor::DeviceAddress;

/// A positive number, so that an `Option` of it has the same size.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Positive(NonZeroU32);

impl Positive {
    /// `value`, if it is a number above 0.
    pub const fn new(value: f32) -> Option<Self> {
        if value > 0.0 {
            Some(Self(NonZeroU32::new(value.to_bits()).expect("it is not 0")))
        } else {
            None
        }
    }

    /// The number.
    #[inline(always)]
    pub const fn get(self) -> f32 {
        f32::from_bits(self.0.get())
    }
}

// SAFETY: it is a `NonZeroU32`, whose `Option` may have any bits, and is `None` where they are zero.
unsafe impl ZeroableInOption for Positive {}
// SAFETY: as above.
unsafe impl PodInOption for Positive {}

/// How `q · k` becomes a score, in this order: scale, softcap, bias.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct ScoreParams {
    /// Multiplies `q · k`.
    pub softmax_scale: f32,
    /// Scores become `softcap · tanh(score / softcap)`.
    pub softcap: Option<Positive>,
    /// f32 slopes `[heads_q]` or `[batch, heads_q]`. Adds `-slope · |i + seq_kv - seq_q - j|`, in nats, to the score of
    /// query `i` and key `j`, after softcap (ALiBi, Press et al. 2022).
    pub alibi_slopes: Option<DeviceAddress>,
    /// Elements between the slopes of two batch entries; 0 if all share one row.
    pub alibi_batch_stride: u64,
}

impl ScoreParams {
    /// The same of scores that have no softcap: no code for one is compiled.
    #[inline(always)]
    pub fn uncapped(&self) -> Self {
        Self {
            softcap: None,
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_positive_numbers_are_positive() {
        for value in [0.0, -0.0, -1.0, f32::NAN, f32::NEG_INFINITY] {
            assert_eq!(Positive::new(value), None, "{value}");
        }
        assert_eq!(Positive::new(30.0).map(Positive::get), Some(30.0));
        assert_eq!(size_of::<Option<Positive>>(), size_of::<f32>());
    }
}
