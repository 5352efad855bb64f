use std::fmt;
use std::str::FromStr;

use kernels_gpu::instances::Family;

use crate::Error;

/// A way to compute attention. Every one gives the same answer within the accuracy bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Variant {
    /// The tiled, multi-threaded f32 loop on the CPU.
    Tiled,
    /// fp32 on a GPU's CUDA cores.
    Simt,
    /// f16 and bf16 by `mma.sync`, on the tensor cores of every GPU since Ampere; and f32's forward pass up to head_dim 128, as sums
    /// of tf32 parts ([`Precision`](crate::Precision)).
    Mma,
    /// f16 and bf16 by TMA and warpgroup matrix multiplication, on Hopper.
    Wgmma,
    /// f16 and bf16 by `mma.sync`, on every GPU since Ampere, where queries are few and keys many, or lie in a cache: blocks share
    /// the keys of a head, and merge what they find ([`decode`](crate::decode())).
    Decode,
}

impl Variant {
    /// Every variant, the most preferred first; [`Decode`](Self::Decode) comes before all others where it is faster.
    pub fn all() -> impl Iterator<Item = Self> {
        let all = [
            Self::Wgmma,
            Self::Mma,
            Self::Decode,
            Self::Simt,
            Self::Tiled,
        ];
        all.into_iter()
    }

    /// Its name in messages and on the command line.
    pub const fn name(self) -> &'static str {
        match (self, self.family()) {
            (Self::Decode, _) => "decode",
            (_, None) => "tiled",
            (_, Some(family)) => family.name(),
        }
    }

    /// Its family of kernels; none on the CPU.
    pub(crate) const fn family(self) -> Option<Family> {
        match self {
            Self::Tiled => None,
            Self::Simt => Some(Family::Simt),
            Self::Mma | Self::Decode => Some(Family::Mma),
            Self::Wgmma => Some(Family::Wgmma),
        }
    }

    /// The variant that runs kernels of `family`, those of [`Decode`](Self::Decode) apart; none for families of helper kernels.
    #[doc(hidden)]
    pub fn of_family(family: Family) -> Option<Self> {
        Self::all()
            .filter(|variant| *variant != Self::Decode)
            .find(|variant| variant.family() == Some(family))
    }

    /// The names of some variants, for a message.
    pub(crate) fn names(variants: impl IntoIterator<Item = Self>) -> String {
        let names: Vec<_> = variants.into_iter().map(Self::name).collect();
        names.join(", ")
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Variant {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = Self::all().find(|variant| variant.name() == text);
        found.ok_or_else(|| {
            Error::argument(
                "force",
                format!("unknown variant `{text}`"),
                format!("one of {}", Self::names(Self::all())),
            )
        })
    }
}
