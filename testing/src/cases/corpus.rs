//! Cases that are kept because of what they make kernels execute: a corpus, as a fuzzer keeps one.

use std::fmt;

use ferroflash::{Capabilities, Error, Problem, Variant};
use serde::{Deserialize, Serialize};

use super::arrangement::Arrangement;
use super::decode::{DecodeSpec, KeyKind};
use super::kind::InputKind;
use super::spec::CaseSpec;

/// A case of any operation that the corpus has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum CorpusCase {
    /// Attention, or its gradients.
    Attention(Box<AttentionCase>),
    /// Attention to a cache.
    Decode(Box<DecodeSpec>),
}

/// A case of attention or its gradients, and what decides which kernels run it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionCase {
    /// The case.
    pub spec: CaseSpec,
    /// Name of the [`Variant`] that runs it.
    pub variant: String,
    /// Shared memory of a block, bytes.
    pub shared_bytes: u32,
    /// Which pass it is.
    pub pass: Pass,
    /// [`BackwardCase::arrangements`](super::BackwardCase::arrangements).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradients: Option<[Arrangement; 3]>,
}

/// A pass of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pass {
    /// Attention.
    Forward,
    /// Its gradients, from the forward pass of whichever family is preferred.
    Backward {
        /// Whether results are to repeat bit for bit.
        deterministic: bool,
        /// Whether there is a workspace, for what is stored between kernels.
        has_workspace: bool,
    },
}

impl Pass {
    /// Every pass.
    pub const ALL: [Self; 5] = [
        Self::Forward,
        Self::backward(false, true),
        Self::backward(false, false),
        Self::backward(true, true),
        Self::backward(true, false),
    ];

    const fn backward(deterministic: bool, has_workspace: bool) -> Self {
        Self::Backward {
            deterministic,
            has_workspace,
        }
    }
}

impl CorpusCase {
    /// The variant that runs it.
    ///
    /// # Panics
    /// If there is none of its name.
    pub fn variant(&self) -> Variant {
        match self {
            Self::Attention(case) => case.variant(),
            Self::Decode(_) => Variant::Decode,
        }
    }

    /// Whether it is of a forward pass.
    pub fn is_forward(&self) -> bool {
        match self {
            Self::Attention(case) => case.pass == Pass::Forward,
            Self::Decode(_) => true,
        }
    }

    /// Shared memory of a block that it is for, bytes; of a cache any.
    pub fn shared_bytes(&self) -> u32 {
        match self {
            Self::Attention(case) => case.shared_bytes,
            Self::Decode(_) => u32::MAX,
        }
    }

    /// Whether its inputs are finite.
    pub fn is_finite(&self) -> bool {
        match self {
            Self::Attention(case) => case.spec.kind != InputKind::NonFinite,
            Self::Decode(spec) => spec.keys != KeyKind::NonFinite,
        }
    }

    /// The problems that it runs on a backend with these capabilities: of a backward pass, that of the forward pass before it too.
    ///
    /// # Errors
    /// [`Error::Argument`] if it is none.
    pub fn problems(&self, here: &Capabilities) -> Result<Vec<Problem>, Error> {
        match self {
            Self::Attention(case) => case.problems(here),
            Self::Decode(spec) => Ok(vec![spec.build()?.problem()?]),
        }
    }
}

impl AttentionCase {
    /// The variant that runs it.
    ///
    /// # Panics
    /// If there is none of its name.
    pub fn variant(&self) -> Variant {
        self.variant
            .parse()
            .unwrap_or_else(|error| panic!("{error}"))
    }

    fn problems(&self, here: &Capabilities) -> Result<Vec<Problem>, Error> {
        match self.pass {
            Pass::Forward => Ok(vec![self.forward()?.problem()?]),
            Pass::Backward { .. } => {
                let case = self.backward()?;
                Ok(vec![case.forward_problem(here)?, case.problem()?])
            }
        }
    }

    /// The case of a forward pass.
    ///
    /// # Errors
    /// [`Error::Argument`] if a buffer would be too large.
    pub fn forward(&self) -> Result<super::Case, Error> {
        let mut case = self.spec.build()?;
        case.options.force = Some(self.variant());
        Ok(case)
    }

    /// The case of a backward pass.
    ///
    /// # Errors
    /// [`Error::Argument`] if a buffer would be too large.
    ///
    /// # Panics
    /// If it is another pass.
    pub fn backward(&self) -> Result<super::BackwardCase, Error> {
        let Pass::Backward {
            deterministic,
            has_workspace,
        } = self.pass
        else {
            panic!("{self} is not of the backward pass");
        };
        let mut case = self.spec.build_backward()?;
        case.forward.options.force = Some(self.variant());
        case.deterministic = deterministic;
        case.workspace_limit_bytes = (!has_workspace).then_some(0);
        case.arrangements = self.gradients;
        Ok(case)
    }
}

impl fmt::Display for CorpusCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attention(case) => case.fmt(f),
            Self::Decode(spec) => write!(f, "decode: {spec}"),
        }
    }
}

impl fmt::Display for AttentionCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kib = self.shared_bytes / 1024;
        write!(f, "{} of {kib} KiB, {:?}, ", self.variant, self.pass)?;
        self.spec.fmt(f)
    }
}
