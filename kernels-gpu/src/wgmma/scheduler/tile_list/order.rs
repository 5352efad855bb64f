//! In which order tiles are listed.

use crate::abi::AttentionParams;
use crate::wgmma::scheduler::{L2_BYTES, l2_section, row_bytes, uneven};

/// In which order the tiles of a varlen launch are listed, and how numbers walk the list. Both keep long tiles first, so
/// that clusters end together, and K and V of the tiles in flight in L2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Where the tiles of a sequence are about equally long: sequence by sequence, the longest first, and in
    /// each one head after the other. The tiles in flight then read K and V of few heads, and a sequence's length
    /// is its tiles', so that nothing is given up for L2. Entries of a sequence go from its last tile to its first.
    BySequence,
    /// Where they are not, as under a causal mask: the longest of all sequences first, and each at once for all
    /// heads of a section, whose K and V fit L2. Where those of a single head do not, the list is cut into parts
    /// that do, of whole sequences, the longest first. Here L2 matters more than the order: a part's last tiles are
    /// shorter than the next part's first, which costs at the very end of a launch only, where parts are short;
    /// K and V read from memory for every tile would cost all along.
    LongestFirst {
        /// Bytes of a row of K and of V.
        row_bytes: u32,
    },
}

impl Order {
    /// The order for varlen `params`.
    pub fn of(params: &AttentionParams) -> Self {
        if uneven(params) {
            Self::LongestFirst {
                row_bytes: row_bytes(params),
            }
        } else {
            Self::BySequence
        }
    }

    /// Into how many parts, about equal, to cut the list where the sequences' keys are `rows` together.
    pub fn parts(self, rows: u32) -> u32 {
        match self {
            Self::BySequence => 1,
            // At most 2³² rows of 1 KiB in parts of 32 MiB.
            Self::LongestFirst { row_bytes } => {
                (head_bytes(rows, row_bytes).div_ceil(L2_BYTES) as u32).max(1)
            }
        }
    }

    /// Key/value heads of a section where the sequences' keys are `rows` together.
    pub fn l2_section(self, rows: u32, kv_heads: u32) -> u32 {
        match self {
            Self::BySequence => kv_heads,
            Self::LongestFirst { row_bytes } => l2_section(kv_heads, head_bytes(rows, row_bytes)),
        }
    }
}

/// Bytes of `rows` rows of a head of K and V.
fn head_bytes(rows: u32, row_bytes: u32) -> u64 {
    rows as u64 * row_bytes as u64
}
