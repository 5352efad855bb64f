//! Lengths of a problem's sequences, known to the host or to the device alone.

use std::ops::Range;
use std::sync::Arc;

use super::{CuSeqlens, SEQ_LIMIT};
use crate::Error;

/// How long the sequences of a problem are, and whether they are packed.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Lengths {
    /// Each sequence is a batch entry of the operands and has all of its rows.
    #[default]
    Dense,
    /// Packed sequences (varlen), whose lengths the host knows. q, k, v and o have batch 1 and all rows along seq.
    Packed(CuSeqlens),
    /// Lengths that lie in the backend's memory and are never read by the host.
    OnDevice(DeviceLengths),
    /// Values of the arrays of [`OnDevice`](Self::OnDevice):
    /// [`Problem::with_known_arrays`](super::Problem::with_known_arrays).
    #[doc(hidden)]
    Known(KnownLengths),
}

impl From<CuSeqlens> for Lengths {
    fn from(cu_seqlens: CuSeqlens) -> Self {
        Self::Packed(cu_seqlens)
    }
}

impl From<DeviceLengths> for Lengths {
    fn from(lengths: DeviceLengths) -> Self {
        Self::OnDevice(lengths)
    }
}

/// Lengths that only the device knows: arrays in the backend's memory, whose addresses are given with each launch
/// ([`Operands`](crate::Operands)).
///
/// A launch neither reads nor waits for them on the host, so they may be the result of work queued before, and may
/// change between two launches of a CUDA graph. As they are not checked, kernels clamp what they read, with `total` the
/// rows of the operand: `begin` to `0..=total`, `end` to `begin..=total`, and lengths to the longest promised here.
/// Wrong values give wrong results in the rows they describe, and no access outside an operand. Rows of o and lse
/// outside every sequence are not written.
///
/// ```
/// use ferroflash::DeviceLengths;
/// # fn main() -> Result<(), ferroflash::Error> {
/// // Up to 64 packed sequences of at most 2048 queries and keys.
/// let packed = DeviceLengths::cu_seqlens(64, 2048, 2048)?;
/// // A KV cache that is partly filled.
/// let cache = DeviceLengths::seqused_kv();
/// assert!(packed.is_packed() && !cache.is_packed());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLengths {
    packed: Option<PackedBounds>,
    has_seqused_kv: bool,
}

/// Bounds on packed sequences, as far as the host knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PackedBounds {
    batch: usize,
    longest_q: usize,
    longest_kv: usize,
}

impl DeviceLengths {
    /// `batch` packed sequences of at most `longest_q` query rows and `longest_kv` keys, described by two i32 arrays
    /// `[batch + 1]` of cumulative sums from 0 on ([`Operands::cu_seqlens`](crate::Operands::cu_seqlens)).
    ///
    /// The bounds decide how many tiles are looked at and which kernel is best: as FlashAttention's `max_seqlen_q` and
    /// `max_seqlen_k`.
    ///
    /// # Errors
    /// [`Error::Argument`] if a bound reaches [`SEQ_LIMIT`], or `batch` + 1 does not fit 31 bits.
    pub fn cu_seqlens(batch: usize, longest_q: usize, longest_kv: usize) -> Result<Self, Error> {
        for (argument, value, limit) in [
            ("batch", batch, i32::MAX as usize),
            ("longest_q", longest_q, SEQ_LIMIT),
            ("longest_kv", longest_kv, SEQ_LIMIT),
        ] {
            if value >= limit {
                return Err(Error::argument(
                    argument,
                    format!("it is {value}"),
                    format!("at most {}", limit - 1),
                ));
            }
        }
        Ok(Self {
            packed: Some(PackedBounds {
                batch,
                longest_q,
                longest_kv,
            }),
            has_seqused_kv: false,
        })
    }

    /// Batch entries of which only the first rows of k and v are used, their number given by an i32 array `[batch]`
    /// ([`Operands::seqused_kv`](crate::Operands::seqused_kv)). Masks and ALiBi are aligned to the used rows.
    pub fn seqused_kv() -> Self {
        Self {
            packed: None,
            has_seqused_kv: true,
        }
    }

    /// Adds the array of [`seqused_kv`](Self::seqused_kv): only the first rows of each sequence of k and v are used.
    pub fn and_seqused_kv(self) -> Self {
        Self {
            has_seqused_kv: true,
            ..self
        }
    }

    /// Whether sequences are packed along the rows of the operands.
    pub fn is_packed(&self) -> bool {
        self.packed.is_some()
    }

    /// Whether there is an array of used rows of k and v.
    pub fn has_seqused_kv(&self) -> bool {
        self.has_seqused_kv
    }

    /// Number of sequences, query rows of the longest and keys of the longest, if they are packed.
    pub(crate) fn packed_bounds(&self) -> Option<[usize; 3]> {
        let bounds = self.packed?;
        Some([bounds.batch, bounds.longest_q, bounds.longest_kv])
    }
}

/// Values of the arrays in the backend's memory. Arrays that a problem does not have are ignored.
#[derive(Clone, Copy, Debug, Default)]
pub struct KnownArrays<'a> {
    /// cu_seqlens of q, and of k and v, `batch + 1` elements each.
    pub cu_seqlens: [&'a [i32]; 2],
    /// `batch` elements.
    pub seqused_kv: &'a [i32],
    /// `[heads_q]` or `[batch, heads_q]`.
    pub alibi_slopes: &'a [f32],
}

/// The rows of every sequence, after the clamping that kernels do.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownLengths {
    is_packed: bool,
    sequences: Arc<[Extent]>,
    longest: [usize; 2],
}

/// The rows of one sequence.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Extent {
    pub q_rows: Range<usize>,
    pub kv_rows: Range<usize>,
    /// Rows of k and v after `kv`, which `seqused_kv` leaves unused.
    pub unused_kv: usize,
}

impl KnownLengths {
    /// The sequences that `arrays` describe, for these `lengths` and operands of `batch` entries with `rows` rows of q
    /// and of k.
    pub(super) fn new(
        lengths: &DeviceLengths,
        arrays: &KnownArrays<'_>,
        batch: usize,
        rows: [usize; 2],
    ) -> Self {
        let bounds = lengths.packed_bounds();
        let [batch, longest_q, longest_kv] = bounds.unwrap_or([batch, rows[0], rows[1]]);
        let extent = |index: usize| {
            let [mut q_rows, mut kv_rows] = [0..rows[0], 0..rows[1]];
            if bounds.is_some() {
                let [q, kv] = arrays.cu_seqlens;
                q_rows = clamped(q, index, rows[0], longest_q);
                kv_rows = clamped(kv, index, rows[1], longest_kv);
            }
            let all_kv = kv_rows.len();
            if lengths.has_seqused_kv {
                let used = arrays.seqused_kv[index].max(0) as usize;
                kv_rows.end = kv_rows.end.min(kv_rows.start + used);
            }
            Extent {
                unused_kv: all_kv - kv_rows.len(),
                q_rows,
                kv_rows,
            }
        };
        Self {
            is_packed: bounds.is_some(),
            sequences: (0..batch).map(extent).collect(),
            longest: [longest_q, longest_kv],
        }
    }

    pub(super) fn is_packed(&self) -> bool {
        self.is_packed
    }

    pub(super) fn batch(&self) -> usize {
        self.sequences.len()
    }

    /// Upper bounds on the rows of a sequence: of q, and of k and v.
    pub(super) fn longest(&self) -> [usize; 2] {
        self.longest
    }

    pub(super) fn sequence(&self, index: usize) -> Extent {
        self.sequences[index].clone()
    }
}

/// The rows of sequence `index`, as kernels clamp them.
fn clamped(sums: &[i32], index: usize, total: usize, longest: usize) -> Range<usize> {
    let within = |value: i32, least: usize| (value.max(0) as usize).clamp(least, total);
    let begin = within(sums[index], 0);
    let end = within(sums[index + 1], begin);
    begin..end.min(begin + longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extents(
        lengths: &DeviceLengths,
        arrays: &KnownArrays<'_>,
    ) -> Vec<(Range<usize>, Range<usize>)> {
        let known = KnownLengths::new(lengths, arrays, 2, [10, 20]);
        let extent = |index| {
            let Extent {
                q_rows, kv_rows, ..
            } = known.sequence(index);
            (q_rows, kv_rows)
        };
        (0..known.batch()).map(extent).collect()
    }

    #[test]
    fn arrays_are_clamped_to_the_operands_and_the_promise() {
        let lengths = DeviceLengths::cu_seqlens(4, 6, 20).unwrap();
        let arrays = KnownArrays {
            cu_seqlens: [&[-3, 4, 2, 99, i32::MIN], &[0, 5, 5, 20, 20]],
            ..KnownArrays::default()
        };
        let expected = [(0..4, 0..5), (4..4, 5..5), (2..8, 5..20), (10..10, 20..20)];
        assert_eq!(extents(&lengths, &arrays), expected);
        let used = KnownArrays {
            seqused_kv: &[9, 1, -1, 0],
            ..arrays
        };
        let expected = [(0..4, 0..5), (4..4, 5..5), (2..8, 5..5), (10..10, 20..20)];
        assert_eq!(extents(&lengths.and_seqused_kv(), &used), expected);
    }

    #[test]
    fn a_batch_entry_uses_its_first_keys() {
        let arrays = KnownArrays {
            seqused_kv: &[7, 99],
            ..KnownArrays::default()
        };
        let expected = [(0..10, 0..7), (0..10, 0..20)];
        assert_eq!(extents(&DeviceLengths::seqused_kv(), &arrays), expected);
    }

    #[test]
    fn bounds_beyond_all_sequences_are_refused() {
        for [batch, q, kv] in [
            [i32::MAX as usize, 1, 1],
            [1, SEQ_LIMIT, 1],
            [1, 1, usize::MAX],
        ] {
            assert!(DeviceLengths::cu_seqlens(batch, q, kv).is_err());
        }
    }
}
