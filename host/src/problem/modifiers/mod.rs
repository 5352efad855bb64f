//! What changes, hides or drops single pairs of a query and a key, beyond score and band.
//!
//! | file | holds |
//! |---|---|
//! | `array` | an array that broadcasts over pairs |
//! | `mask` | masks: a tensor, blocks of pairs, documents, a prefix |
//! | `terms` | a bias, sinks |
//! | `tree` | trees of drafts |
//! | `dropout` | dropout, and the mask that it makes |
//! | `score_mod` | a score modification of the caller's own |

mod array;
mod dropout;
mod mask;
mod score_mod;
mod terms;
mod tree;

pub(crate) use array::{Array, PairArray};
pub use dropout::Dropout;
pub use mask::{BlockMask, Documents, MaskTensor, PrefixLengths};
pub use score_mod::{BoundScoreMod, ScoreModification};
pub use terms::{BiasTensor, Sinks};
pub use tree::TreeMask;

use super::{Problem, SEQ_LIMIT};
use crate::Error;

/// Options that concern single pairs: all are absent by default, and compose.
///
/// A query sees a key if the [`Mask`](crate::Mask) or the prefix shows it, and mask tensor, blocks, documents, chunks and
/// dilation all do not hide it. Kernels for problems with such options are others than those for problems without.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Modifiers {
    /// Bytes, 0 for pairs that are hidden.
    pub mask: Option<MaskTensor>,
    /// Whole blocks of pairs that are hidden.
    pub blocks: Option<BlockMask>,
    /// A query sees keys of its own document.
    pub documents: Option<Documents>,
    /// The first keys of a sequence that every query sees, the mask notwithstanding (prefix language models).
    pub prefix: Option<PrefixLengths>,
    /// A query sees keys of its own chunk of so many positions; above 0. Positions are those of keys: the last query stands at
    /// the last key.
    pub chunk: Option<u32>,
    /// A query sees keys whose distance from its position is a multiple of this; above 0.
    pub dilation: Option<u32>,
    /// Added to scores, after softcap and ALiBi.
    pub bias: Option<BiasTensor>,
    /// Scores in the denominators of the softmax that have no key.
    pub sinks: Option<Sinks>,
    /// Which of the newest keys of a cache each query sees.
    pub tree: Option<TreeMask>,
    /// Probabilities that are dropped.
    pub dropout: Option<Dropout>,
    /// What the caller's own functions make of scores, after the bias, and which pairs they hide.
    pub score_mod: Option<ScoreModification>,
}

impl Modifiers {
    /// Whether there are none.
    pub fn is_none(&self) -> bool {
        self.sinks.is_none() && self.tree.is_none() && self.are_of_caches()
    }

    /// Whether there are none but those that attention to a cache may have: sinks and a tree.
    pub(crate) fn are_of_caches(&self) -> bool {
        let Self {
            mask: _,
            blocks: _,
            documents: _,
            prefix: _,
            chunk: _,
            dilation: _,
            bias,
            sinks: _,
            tree: _,
            dropout,
            score_mod,
        } = self;
        let change = bias.is_some() || score_mod.is_some();
        !self.hide() && !change && dropout.is_none()
    }

    /// Whether one shows or hides pairs.
    pub(crate) fn hide(&self) -> bool {
        let Self {
            mask,
            blocks,
            documents,
            prefix,
            chunk,
            dilation,
            bias: _,
            sinks: _,
            tree: _,
            dropout: _,
            score_mod,
        } = self;
        score_mod.as_ref().is_some_and(|own| own.hides().any())
            || mask.is_some()
            || blocks.is_some()
            || documents.is_some()
            || prefix.is_some()
            || chunk.is_some()
            || dilation.is_some()
    }

    /// Whether batch entries, and heads, may see different pairs, apart from their lengths.
    pub(crate) fn hidden_by(&self) -> [bool; 2] {
        let masks = self.mask.as_ref().map(|mask| &mask.0);
        let blocks = self.blocks.as_ref().map(|blocks| &blocks.states);
        let arrays = masks.into_iter().chain(blocks);
        let [mut batch, mut heads] = [false; 2];
        for array in arrays {
            batch |= array.shape[0] > 1;
            heads |= array.shape[1] > 1;
        }
        batch |= self.documents.as_ref().is_some_and(Documents::is_batched);
        batch |= self.prefix.as_ref().is_some_and(PrefixLengths::is_batched);
        if let Some(score_mod) = &self.score_mod {
            let [by_batch, by_head] = score_mod.hides().by();
            batch |= by_batch;
            heads |= by_head;
        }
        [batch, heads]
    }

    /// Refuses what does not fit `problem`.
    pub(super) fn check(&self, problem: &Problem) -> Result<(), Error> {
        let pairs = [
            problem.batch(),
            problem.q().shape.heads,
            problem.seq_q(),
            problem.seq_kv(),
        ];
        if let Some(mask) = &self.mask {
            mask.0.check("mask", pairs)?;
        }
        if let Some(bias) = &self.bias {
            bias.0.check("bias", pairs)?;
            if bias.dtype() == crate::DType::E4m3 {
                let allowed = "f32, f16 or bf16";
                return Err(Error::argument("bias", "its dtype is e4m3", allowed));
            }
        }
        if let Some(blocks) = &self.blocks {
            blocks.check(pairs)?;
        }
        if let Some(documents) = &self.documents {
            documents.check(problem)?;
        }
        if let Some(prefix) = &self.prefix {
            prefix.check(problem.batch())?;
        }
        for (argument, size) in [("chunk", self.chunk), ("dilation", self.dilation)] {
            if let Some(size) = size.filter(|size| !(1..SEQ_LIMIT as u32).contains(size)) {
                let allowed = format!("it must be above 0 and below {SEQ_LIMIT}");
                return Err(Error::argument(argument, format!("it is {size}"), allowed));
            }
        }
        if let Some(sinks) = &self.sinks {
            sinks.check(problem.q().shape.heads)?;
        }
        if let Some(tree) = &self.tree {
            tree.check(problem)?;
        }
        if let Some(score_mod) = &self.score_mod {
            score_mod.check()?;
        }
        Ok(())
    }
}
