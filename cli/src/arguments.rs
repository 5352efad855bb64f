//! Arguments that several subcommands take.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use ferroflash::{DType, Layout, Mask, Precision, Variant};
use ferroflash_testing::cases::InputKind;

use crate::failure::Failure;

/// Why a value is refused; `usage` prints it after the argument's name.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub wrong: String,
    pub allowed: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.wrong, self.allowed)
    }
}

impl std::error::Error for Refusal {}

fn number<T: FromStr>(text: &str, allowed: &str) -> Result<T, Refusal> {
    text.parse().map_err(|_| Refusal {
        wrong: format!("`{text}` is not valid"),
        allowed: allowed.to_owned(),
    })
}

/// A count: 0 or more.
pub fn count(text: &str) -> Result<usize, Refusal> {
    number(text, "a whole number, 0 or more")
}

/// A count of 1 or more.
pub fn positive(text: &str) -> Result<usize, Refusal> {
    number::<NonZeroUsize>(text, "a whole number, 1 or more").map(NonZeroUsize::get)
}

/// A count that fits a u32.
pub fn small(text: &str) -> Result<u32, Refusal> {
    number(text, "a whole number, 0 or more")
}

/// A seed.
pub fn seed(text: &str) -> Result<u64, Refusal> {
    number(text, "a whole number, 0 or more")
}

/// seq_q and seq_kv of a packed sequence: one number for both, or two.
pub fn lengths(text: &str) -> Result<(usize, usize), Refusal> {
    let allowed = "N or Q:K for each sequence, whole numbers, 0 or more";
    let (seq_q, seq_kv) = text.split_once(':').unwrap_or((text, text));
    match (seq_q.parse(), seq_kv.parse()) {
        (Ok(seq_q), Ok(seq_kv)) => Ok((seq_q, seq_kv)),
        _ => number(text, allowed).map(|n| (n, n)),
    }
}

/// A number, and how often it is there: N or N:C.
pub fn repeated(text: &str) -> Result<(usize, usize), Refusal> {
    let allowed = "N, or N:C for C of them, whole numbers, C 1 or more";
    let (value, count) = text.split_once(':').unwrap_or((text, "1"));
    match (value.parse(), positive(count)) {
        (Ok(value), Ok(count)) => Ok((value, count)),
        _ => Err(Refusal {
            wrong: format!("`{text}` is not valid"),
            allowed: allowed.to_owned(),
        }),
    }
}

/// Queries and keys of a block: one number for both, or two.
pub fn block(text: &str) -> Result<(u32, u32), Refusal> {
    let allowed = "N or Q:K, whole numbers, 1 or more";
    let (queries, keys) = text.split_once(':').unwrap_or((text, text));
    match (queries.parse(), keys.parse()) {
        (Ok(queries), Ok(keys)) if queries > 0 && keys > 0 => Ok((queries, keys)),
        _ => Err(Refusal {
            wrong: format!("`{text}` is not valid"),
            allowed: allowed.to_owned(),
        }),
    }
}

fn window_side(text: &str) -> Result<u32, Refusal> {
    number(text, "a whole number of keys, 0 or more")
}

/// A number.
pub fn real(text: &str) -> Result<f32, Refusal> {
    number(text, "a number")
}

fn variant(text: &str) -> Result<Variant, Refusal> {
    text.parse().map_err(|error| match error {
        ferroflash::Error::Argument { wrong, allowed, .. } => Refusal { wrong, allowed },
        other => Refusal {
            wrong: other.to_string(),
            allowed: String::new(),
        },
    })
}

/// Where to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BackendName {
    /// cuda where a driver and a device answer, else cpu
    Auto,
    /// The first NVIDIA GPU
    Cuda,
    /// The GPU kernels in a simulator on the CPU
    Sim,
    /// A tiled, multi-threaded loop on the CPU
    Cpu,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DTypeName {
    F32,
    F16,
    Bf16,
}

impl From<DTypeName> for DType {
    fn from(name: DTypeName) -> Self {
        match name {
            DTypeName::F32 => Self::F32,
            DTypeName::F16 => Self::F16,
            DTypeName::Bf16 => Self::Bf16,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LayoutName {
    /// [batch, seq, heads, dim]
    Bshd,
    /// [batch, heads, seq, dim]
    Bhsd,
}

impl From<LayoutName> for Layout {
    fn from(name: LayoutName) -> Self {
        match name {
            LayoutName::Bshd => Self::Bshd,
            LayoutName::Bhsd => Self::Bhsd,
        }
    }
}

/// Contents of the inputs, by the library's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputName(pub InputKind);

impl InputName {
    const ALL: [Self; InputKind::ALL.len()] = {
        let mut all = [Self(InputKind::Random); InputKind::ALL.len()];
        let mut i = 0;
        while i < all.len() {
            all[i] = Self(InputKind::ALL[i]);
            i += 1;
        }
        all
    };
}

impl ValueEnum for InputName {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.name()))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MaskName {
    /// Every key, or those of the window
    None,
    /// Keys up to the query's own position, aligned to the last key
    Causal,
    /// Keys up to the query's own number, as PyTorch's is_causal
    CausalTopLeft,
}

/// How closely f32 products follow f32's own arithmetic.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PrecisionName {
    /// Within f32's error bound: tensor cores may multiply numbers as sums of tf32 parts
    Bounded,
    /// Every product and sum rounded as f32's
    Ieee,
}

impl From<PrecisionName> for Precision {
    fn from(name: PrecisionName) -> Self {
        match name {
            PrecisionName::Bounded => Self::Bounded,
            PrecisionName::Ieee => Self::Ieee,
        }
    }
}

#[derive(clap::Args)]
pub struct ForwardArgs {
    /// Which keys a query sees
    #[arg(long, value_enum, default_value_t = MaskName::None)]
    mask: MaskName,
    /// Keys a query sees before its own position [default: all]
    #[arg(long, value_name = "N", value_parser = window_side, allow_hyphen_values = true)]
    window_left: Option<u32>,
    /// Keys a query sees after its own position [default: all]
    #[arg(long, value_name = "N", value_parser = window_side, allow_hyphen_values = true)]
    window_right: Option<u32>,
    /// Multiplies q · k [default: 1 / sqrt(head_dim)]
    #[arg(long, value_name = "X", value_parser = real, allow_hyphen_values = true)]
    softmax_scale: Option<f32>,
    /// Scores become X · tanh(score / X)
    #[arg(long, value_name = "X", value_parser = real, allow_hyphen_values = true)]
    softcap: Option<f32>,
    /// Run this variant instead of the preferred one
    #[arg(long, value_name = "VARIANT", value_parser = variant)]
    force: Option<Variant>,
    /// How closely f32 products follow f32's own arithmetic
    #[arg(long, value_enum, default_value_t = PrecisionName::Bounded)]
    precision: PrecisionName,
}

impl ForwardArgs {
    /// The library's options.
    ///
    /// A window side narrows a causal mask: `--mask causal --window-left N` is causal attention over a sliding window.
    pub fn options(&self) -> Result<ferroflash::ForwardOptions, Failure> {
        let mask = match (self.mask, self.window_left, self.window_right) {
            (MaskName::None, None, None) => Mask::None,
            (MaskName::None, left, right) => Mask::Window { left, right },
            (MaskName::Causal, None, None) => Mask::Causal,
            (MaskName::Causal, left, None | Some(0)) => Mask::Window {
                left,
                right: Some(0),
            },
            (MaskName::CausalTopLeft, None, None) => Mask::CAUSAL_TOP_LEFT,
            (MaskName::CausalTopLeft, ..) => {
                return Err(Failure::refused(
                    "--mask",
                    "causal-top-left beside a window, which is aligned to the last key",
                    "causal, or no window",
                ));
            }
            (MaskName::Causal, _, Some(right)) => {
                return Err(Failure::refused(
                    "--window-right",
                    format!("{right} keys after the query contradict --mask causal"),
                    "0, or leave one of them out",
                ));
            }
        };
        Ok(ferroflash::ForwardOptions::new()
            .mask(mask)
            .softmax_scale(self.softmax_scale)
            .softcap(self.softcap)
            .force(self.force)
            .precision(self.precision.into()))
    }
}

/// A pass through attention.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Pass {
    /// o and lse from q, k and v
    Fwd,
    /// dq, dk and dv from those, and the loss's gradient by o
    Bwd,
}
