//! Biases that can be copied in pieces of 16 bytes.

use super::visible::address;
use super::{Pair, Place};
use crate::abi::{BiasType, ModifierParams};
use crate::layout::swizzle::VEC16_BYTES;
use crate::units::HALF_BYTES;

/// The biases, of 16 bits, of some rows of keys that follow each other, aligned to 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BiasRows {
    /// Address of the first.
    pub base: u64,
    /// Bytes from one query's to the next one's.
    pub row_bytes: i64,
    /// Whether they are f16, and not bf16.
    pub is_f16: bool,
}

impl ModifierParams {
    /// The biases of so many queries and keys, a multiple of 8, from pair `first` on, if all of them exist and lie so.
    #[inline(always)]
    pub(super) fn rows_of_bias(
        &self,
        at: &Place,
        first: Pair,
        queries: u32,
        keys: u32,
    ) -> Option<BiasRows> {
        let base = address(&self.bias, at, first, HALF_BYTES);
        let row_bytes = self.bias.query_stride * HALF_BYTES as i64;
        let lie_so = self.bias.address.is_some()
            && self.bias_type != BiasType::F32 as u32
            && self.bias.key_stride == 1
            && (base | row_bytes as u64).is_multiple_of(VEC16_BYTES as u64);
        let exist = first.query + queries <= at.seq_q && first.key + keys <= at.seq_kv;
        (lie_so && exist).then_some(BiasRows {
            base,
            row_bytes,
            is_f16: self.bias_type == BiasType::F16 as u32,
        })
    }
}
