use std::fmt;

use crate::{CuSeqlens, Error};

/// The sequences of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lengths {
    /// All alike, one a batch entry.
    Dense {
        /// Sequences.
        batch: usize,
        /// Query rows.
        seq_q: usize,
        /// Keys.
        seq_kv: usize,
    },
    /// Packed, of (seq_q, seq_kv) each.
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

    /// Sequences.
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

    /// What the library is told of them; `None` if they are not packed.
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
