//! Choosing a kernel, in steps that tests can see: which variants are *eligible* for a problem, and
//! which of them is *preferred*.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Problem};

/// A way to compute attention. Every one gives the same answer within the accuracy bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Variant {
    /// The tiled, multi-threaded f32 loop on the CPU.
    Tiled,
    /// The f32 kernel on CUDA cores; runs on any GPU.
    Simt,
}

/// What a backend can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Capabilities {
    /// The host's own processor.
    Cpu,
    /// A GPU, or a simulation of one.
    Gpu {
        /// Major and minor compute capability; (9, 0) is Hopper.
        compute_capability: (u32, u32),
        /// Largest shared memory of one block, in bytes, with opt-in.
        shared_bytes: u32,
    },
}

impl Variant {
    /// Every variant, the one preferred in general first.
    pub const ALL: [Self; 2] = [Self::Tiled, Self::Simt];

    /// The name `--force` takes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tiled => "tiled",
            Self::Simt => "simt",
        }
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
        let found = Self::ALL.into_iter().find(|variant| variant.name() == text);
        found.ok_or_else(|| {
            Error::argument(
                "force",
                format!("unknown variant `{text}`"),
                format!("one of {}", names(Self::ALL)),
            )
        })
    }
}

/// Why `variant` cannot run `problem` here, or `None` if it can.
pub fn why_not(variant: Variant, problem: &Problem, here: &Capabilities) -> Option<String> {
    let _ = problem;
    match (variant, here) {
        (Variant::Tiled, Capabilities::Cpu) => None,
        (Variant::Tiled, Capabilities::Gpu { .. }) => Some("it runs on the cpu backend".into()),
        (_, Capabilities::Cpu) => Some("it runs on a GPU".into()),
        (Variant::Simt, Capabilities::Gpu { .. }) => Some("no kernel is built in".into()),
    }
}

/// The variants that can run `problem` here, the preferred one first.
pub fn eligible(problem: &Problem, here: &Capabilities) -> Vec<Variant> {
    let mut variants = Vec::from(Variant::ALL);
    variants.retain(|&variant| why_not(variant, problem, here).is_none());
    variants
}

/// The variant that runs `problem` here unless another is forced.
pub fn preferred(problem: &Problem, here: &Capabilities) -> Option<Variant> {
    eligible(problem, here).first().copied()
}

/// The variant that will run: the forced one, else the preferred one.
///
/// # Errors
/// [`Error::Argument`] saying why the forced variant, or every variant, is out of the question.
pub fn select(problem: &Problem, here: &Capabilities) -> Result<Variant, Error> {
    let eligible = eligible(problem, here);
    let allowed = || match eligible.as_slice() {
        [] => "no variant can run it on this backend; another backend might".to_owned(),
        some => format!("one of {}", names(some.iter().copied())),
    };
    if let Some(forced) = problem.force() {
        return match why_not(forced, problem, here) {
            None => Ok(forced),
            Some(reason) => Err(Error::argument(
                "force",
                format!("variant {forced} cannot run this problem here: {reason}"),
                allowed(),
            )),
        };
    }
    eligible.first().copied().ok_or_else(|| {
        let reasons = Variant::ALL.map(|variant| {
            let reason = why_not(variant, problem, here).unwrap_or_default();
            format!("{variant}: {reason}")
        });
        Error::argument(
            "backend",
            format!(
                "no variant can run this problem here ({})",
                reasons.join(", ")
            ),
            "a problem or a backend that a variant supports",
        )
    })
}

fn names(variants: impl IntoIterator<Item = Variant>) -> String {
    let names: Vec<_> = variants.into_iter().map(Variant::name).collect();
    names.join(", ")
}
