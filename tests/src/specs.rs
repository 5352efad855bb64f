//! Cases that tests begin from.

use ferroflash::{DType, Layout, Mask};
use ferroflash_testing::cases::{Arrangement, CaseSpec, InputKind, Lengths, ModifierSpec};

/// One head of random inputs, contiguous, with no option set.
pub fn plain(dtype: DType, lengths: Lengths, head_dim: usize) -> CaseSpec {
    CaseSpec {
        dtype,
        lengths,
        heads_kv: 1,
        group: 1,
        head_dim,
        head_dim_v: head_dim,
        mask: Mask::None,
        scale_factor: None,
        softcap: None,
        alibi: None,
        modifiers: ModifierSpec::default(),
        kind: InputKind::Random,
        arrangements: [Arrangement::BSHD; 3],
        o_layout: Layout::Bshd,
        o: None,
        seed: 1,
    }
}
