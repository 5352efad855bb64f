use std::fmt;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use ferroflash::{CuSeqlens, Error};

/// The sequences of a case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lengths {
    /// Equal lengths, one sequence a batch entry.
    Dense {
        /// Number of sequences.
        batch: usize,
        /// Query rows.
        seq_q: usize,
        /// Keys.
        seq_kv: usize,
    },
    /// Packed sequences, of (seq_q, seq_kv) each.
    Varlen(Vec<(usize, usize)>),
}

impl Lengths {
    /// One sequence that is not packed.
    pub fn one(seq_q: usize, seq_kv: usize) -> Self {
        Self::Dense {
            batch: 1,
            seq_q,
            seq_kv,
        }
    }

    /// Packed sequences, as many as there are, whose lengths differ but add up to the same: the rows are cut
    /// at random places. Where queries are as many as keys, they stay so in each.
    pub fn made_uneven(&self, seed: u64) -> Self {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let batch = self.batch();
        let mut cut = |total: usize| -> Vec<usize> {
            let cuts = (1..batch).map(|_| rng.random_range(0..=total));
            let mut ends: Vec<usize> = cuts.chain([total]).collect();
            ends.sort_unstable();
            let begins = [0].into_iter().chain(ends.iter().copied());
            begins.zip(&ends).map(|(begin, end)| end - begin).collect()
        };
        let total_q = self.each().map(|(seq_q, _)| seq_q).sum();
        let total_kv = self.each().map(|(_, seq_kv)| seq_kv).sum();
        let q = cut(total_q);
        let kv = match self.each().all(|(seq_q, seq_kv)| seq_q == seq_kv) {
            true => q.clone(),
            false => cut(total_kv),
        };
        Self::Varlen(q.into_iter().zip(kv).take(batch).collect())
    }

    /// Number of sequences.
    pub fn batch(&self) -> usize {
        match self {
            Self::Dense { batch, .. } => *batch,
            Self::Varlen(lengths) => lengths.len(),
        }
    }

    /// (seq_q, seq_kv) of every sequence.
    pub fn each(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        (0..self.batch()).map(|index| match self {
            Self::Dense { seq_q, seq_kv, .. } => (*seq_q, *seq_kv),
            Self::Varlen(lengths) => lengths[index],
        })
    }

    /// Sizes of the operands' axes: batch, seq of q, seq of k and v.
    pub fn axes(&self) -> (usize, usize, usize) {
        match self {
            Self::Dense {
                batch,
                seq_q,
                seq_kv,
            } => (*batch, *seq_q, *seq_kv),
            Self::Varlen(lengths) => {
                let total = |length: fn(&(usize, usize)) -> usize| lengths.iter().map(length).sum();
                (1, total(|pair| pair.0), total(|pair| pair.1))
            }
        }
    }

    /// The library's description of the sequences; `None` if they are not packed.
    ///
    /// # Errors
    /// As for [`CuSeqlens::from_lengths`].
    pub fn cu_seqlens(&self) -> Result<Option<CuSeqlens>, Error> {
        match self {
            Self::Dense { .. } => Ok(None),
            Self::Varlen(lengths) => CuSeqlens::from_lengths(lengths.iter().copied()).map(Some),
        }
    }
}

/// `b2 s5x7`, or `varlen 3x5,0x4`.
impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dense {
                batch,
                seq_q,
                seq_kv,
            } => write!(f, "b{batch} s{seq_q}x{seq_kv}"),
            Self::Varlen(lengths) => {
                let each = lengths.iter().map(|(q, kv)| format!("{q}x{kv}"));
                let all: Vec<_> = each.collect();
                write!(f, "varlen {}", all.join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uneven_lengths_add_up() {
        for (seq_q, seq_kv) in [(100, 100), (7, 300)] {
            let dense = Lengths::Dense {
                batch: 8,
                seq_q,
                seq_kv,
            };
            let uneven = dense.made_uneven(1);
            assert_eq!(uneven.batch(), 8);
            assert_eq!(uneven.axes(), (1, 8 * seq_q, 8 * seq_kv));
            assert_ne!(uneven, dense.made_uneven(2));
            assert!(uneven.each().any(|(_, kv)| kv != seq_kv));
            assert_eq!(uneven.each().all(|(q, kv)| q == kv), seq_q == seq_kv);
        }
        let none = Lengths::Dense {
            batch: 0,
            seq_q: 3,
            seq_kv: 3,
        };
        assert_eq!(none.made_uneven(1), Lengths::Varlen(Vec::new()));
    }
}
