use ferroflash::{Error, MaskTensor, TreeMask};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use super::fill::mix;

/// A tree of drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeSpec {
    /// Whether each sequence has its own.
    pub is_batched: bool,
    /// Whether queries see any drafts, their own or not, and not those that they descend from alone.
    pub is_wild: bool,
}

impl TreeSpec {
    /// The tree, of `seq_q` drafts.
    ///
    /// # Errors
    /// Those of [`TreeMask::per_sequence`].
    pub fn make(self, batch: usize, seq_q: usize, seed: u64) -> Result<TreeMask, Error> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(mix(seed, 777));
        let mut words = Vec::new();
        for _ in 0..if self.is_batched { batch } else { 1 } {
            let begin = words.len();
            for query in 0..seq_q {
                let word = match self.is_wild {
                    true => rng.random(),
                    // A draft descends from one before, or follows the keys.
                    false => match rng.random_range(0..=query) {
                        0 => 1 << query,
                        parent => words[begin + parent - 1] | 1 << query,
                    },
                };
                words.push(word);
            }
        }
        match self.is_batched {
            true => TreeMask::per_sequence(&words, seq_q),
            false => Ok(TreeMask::shared(&words)),
        }
    }
}

/// The pairs of a sequence of `kv_len` keys that its tree shows.
///
/// # Errors
/// Those of [`MaskTensor::new`].
pub fn shown_by(
    tree: &TreeMask,
    sequence: usize,
    seq_q: usize,
    kv_len: usize,
) -> Result<MaskTensor, Error> {
    let shown: Vec<u8> = (0..seq_q * kv_len)
        .map(|pair| {
            let (query, key) = (pair / kv_len, pair % kv_len);
            let is_draft = key + seq_q >= kv_len;
            let is_seen = || tree.get(sequence, query) & 1 << (key + seq_q - kv_len) != 0;
            u8::from(!is_draft || is_seen())
        })
        .collect();
    MaskTensor::new(&shown, [1, 1, seq_q, kv_len])
}
