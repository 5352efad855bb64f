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
    /// One family of GPU kernels.
    Kernels(Family),
}

impl Variant {
    /// Every variant, the most preferred first.
    pub fn all() -> impl Iterator<Item = Self> {
        // The table lists families from the general to the specialised.
        let kernels = Family::ALL.into_iter().rev().map(Self::Kernels);
        kernels.chain([Self::Tiled])
    }

    /// The name `--force` takes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tiled => "tiled",
            Self::Kernels(family) => family.name(),
        }
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
