use super::array::Array;
use crate::{Error, Problem};

/// A tree of drafts: which of a sequence's newest keys each of its queries sees, in attention to a cache (tree attention, as
/// speculative decoding verifies several continuations at once).
///
/// The last `seq_q` keys of a sequence are its drafts, one for each query. Query `i` sees the keys before the drafts, and draft `j` if
/// bit `j` of its word is set; of these, like any query, those that the [`Mask`](crate::Mask) shows. Positions, of windows and ALiBi
/// too, are those of keys: a query stands at its own draft, however deep in the tree that is.
#[derive(Clone, Debug, PartialEq)]
pub struct TreeMask {
    pub(crate) words: Array,
    seq_q: usize,
    /// Sequences that have words of their own; `None`: one tree is for all.
    batch: Option<usize>,
}

impl TreeMask {
    /// Most drafts of a tree: a word has a bit for each.
    pub const MOST_DRAFTS: usize = u64::BITS as usize;

    /// One tree for all sequences, of a word for each query.
    pub fn shared(words: &[u64]) -> Self {
        Self {
            words: Array::new(words),
            seq_q: words.len(),
            batch: None,
        }
    }

    /// A tree of `seq_q` drafts for each sequence: words `[batch, seq_q]`.
    ///
    /// # Errors
    /// [`Error::Argument`] on `tree_mask` unless there are as many for each sequence.
    pub fn per_sequence(words: &[u64], seq_q: usize) -> Result<Self, Error> {
        if words.len().checked_rem(seq_q) != Some(0) {
            let wrong = format!("it has {} words", words.len());
            let allowed = format!("{seq_q} for each sequence");
            return Err(Error::argument("tree_mask", wrong, allowed));
        }
        Ok(Self {
            words: Array::new(words),
            seq_q,
            batch: Some(words.len() / seq_q),
        })
    }

    /// Words in the backend's memory, u64 `[seq_q]`, or `[batch, seq_q]` if there is a `batch`, whose address is given with each launch
    /// ([`ModifierOperands::tree_mask`](crate::ModifierOperands::tree_mask)).
    pub fn on_device(seq_q: usize, batch: Option<usize>) -> Self {
        Self {
            words: Array::ON_DEVICE,
            seq_q,
            batch,
        }
    }

    /// The word of a query of a sequence.
    ///
    /// # Panics
    /// If there is none, or only the device has it.
    pub fn get(&self, sequence: usize, query: usize) -> u64 {
        self.words.get(self.index(sequence, query))
    }

    /// Where the word of a query of a sequence is.
    pub(crate) fn index(&self, sequence: usize, query: usize) -> usize {
        sequence * self.stride() + query
    }

    /// Words from one sequence's to the next one's.
    pub(crate) fn stride(&self) -> usize {
        self.batch.map_or(0, |_| self.seq_q)
    }

    pub(super) fn check(&self, problem: &Problem) -> Result<(), Error> {
        let refused =
            |wrong: String, allowed: String| Err(Error::argument("tree_mask", wrong, allowed));
        if problem.cache_layout().is_none() || problem.is_packed() {
            let wrong =
                "no problem but attention to a cache has one, of as many queries for each sequence";
            return refused(wrong.to_owned(), "no tree".to_owned());
        }
        if self.seq_q != problem.seq_q() || self.seq_q > Self::MOST_DRAFTS {
            let wrong = format!("it is for {} queries", self.seq_q);
            let allowed = format!(
                "{}, the seq_q of q, and at most {}",
                problem.seq_q(),
                Self::MOST_DRAFTS
            );
            return refused(wrong, allowed);
        }
        match self.batch {
            Some(batch) if batch != problem.batch() => {
                let wrong = format!("it is for {batch} sequences");
                refused(wrong, format!("{}, the batch of q", problem.batch()))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CacheLayout, DType, ForwardOptions, Layout, Shape, TensorSpec};

    fn spec(batch: usize, seq: usize) -> TensorSpec {
        let shape = Shape {
            batch,
            heads: 2,
            seq,
            dim: 8,
        };
        TensorSpec::contiguous(DType::Bf16, shape, Layout::Bshd).unwrap()
    }

    fn refusal(tree: TreeMask, seq_q: usize) -> String {
        let (q, k) = (spec(3, seq_q), spec(3, 200));
        let options = ForwardOptions::new().tree(tree);
        let refused = Problem::decode(q, k, k, q, CacheLayout::Contiguous, &options);
        refused.map_or_else(|error| error.to_string(), |_| String::new())
    }

    #[test]
    fn trees_that_do_not_fit_are_named() {
        assert_eq!(refusal(TreeMask::shared(&[1, 3]), 2), "");
        assert_eq!(refusal(TreeMask::on_device(64, Some(3)), 64), "");
        assert_eq!(refusal(TreeMask::per_sequence(&[1; 6], 2).unwrap(), 2), "");
        for (tree, seq_q) in [
            (TreeMask::shared(&[1, 3]), 3),
            (TreeMask::per_sequence(&[1; 4], 2).unwrap(), 2),
            (TreeMask::on_device(2, Some(4)), 2),
            (TreeMask::on_device(65, None), 65),
        ] {
            let refused = refusal(tree, seq_q);
            assert!(refused.starts_with("tree_mask: "), "{refused}");
        }
        for (words, seq_q) in [(3, 2), (2, 0)] {
            let refused = TreeMask::per_sequence(&[1; 3][..words], seq_q).unwrap_err();
            assert!(refused.to_string().starts_with("tree_mask: "), "{refused}");
        }
    }

    #[test]
    fn attention_without_a_cache_has_none() {
        let q = spec(3, 2);
        let options = ForwardOptions::new().tree(TreeMask::shared(&[1, 3]));
        let refused = Problem::new(q, q, q, q, &options).unwrap_err().to_string();
        assert!(refused.starts_with("tree_mask: "), "{refused}");
    }
}
