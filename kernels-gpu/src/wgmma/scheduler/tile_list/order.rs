//! The orders in which tiles are listed.

use crate::abi::AttentionParams;
use crate::tile::l2::{L2_BYTES, Sections, head_bytes, row_bytes, uneven};
use crate::units::HALF_BYTES;

/// Order of the tiles in the list of a varlen launch, and how tile numbers walk the list. Both orders keep long tiles
/// first, so that clusters end together, and K and V of the tiles in flight in L2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// For sequences whose tiles are about equally long: sequence by sequence, the longest first, and within each one
    /// head after the other. The tiles in flight then read K and V of few heads. Ordering sequences by length also
    /// orders their tiles by length, so balance loses nothing to L2. Entries of a sequence go from its last tile to its
    /// first.
    BySequence,
    /// For sequences whose tiles differ in length, as under a causal mask: the longest tiles of all sequences first,
    /// and each at once for all heads of a section, whose K and V fit L2. If those of a single head do not fit, the
    /// list is cut into parts of whole sequences that do, the longest sequences first. Here L2 matters more than the
    /// order: a part's last tiles are shorter than the next part's first, which costs time only at the very end of a
    /// launch, where parts are short; reading K and V from memory for every tile would cost time throughout.
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
                row_bytes: row_bytes(params, HALF_BYTES),
            }
        } else {
            Self::BySequence
        }
    }

    /// Number of parts, about equal, to cut the list into if the sequences have `rows` keys in total.
    pub fn parts(self, rows: u32) -> u32 {
        match self {
            Self::BySequence => 1,
            // At most 2³² rows of 1 KiB in parts of 32 MiB.
            Self::LongestFirst { row_bytes } => {
                (head_bytes(rows, row_bytes).div_ceil(L2_BYTES) as u32).max(1)
            }
        }
    }

    /// Sections of the packs of `heads_kv` key/value heads, of which each has `packs_of_group`, if the sequences have `rows` keys and a
    /// pack `tiles` tiles in total, of `cluster` blocks each.
    pub fn sections(
        self,
        rows: u32,
        [heads_kv, packs_of_group]: [u32; 2],
        tiles: u32,
        cluster: u32,
    ) -> Sections {
        match self {
            Self::BySequence => Sections::one(heads_kv * packs_of_group, tiles),
            Self::LongestFirst { row_bytes } => {
                let head_bytes = head_bytes(rows, row_bytes);
                // Without a tile, any will do.
                let tiles = tiles.max(1);
                Sections::new(heads_kv, head_bytes, packs_of_group, tiles, cluster)
            }
        }
    }
}
