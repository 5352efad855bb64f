//! Small arrays that are given by address, where the host does not know their values.

use std::borrow::Cow;

use crate::problem::KnownArrays;
use crate::{Lengths, Operands, Problem};

/// `problem` with what its arrays hold: on this backend the device's memory is the host's.
///
/// # Safety
/// As for [`Backend::launch`](crate::Backend::launch), whose checks `operands` have passed.
pub(super) unsafe fn known<'a>(problem: &'a Problem, operands: &Operands) -> Cow<'a, Problem> {
    let batch = problem.batch();
    let lengths = match problem.lengths() {
        Lengths::OnDevice(lengths) => Some(lengths),
        _ => None,
    };
    let slopes = problem.alibi().filter(|slopes| slopes.values().is_none());
    if lengths.is_none() && slopes.is_none() {
        return Cow::Borrowed(problem);
    }
    let packed = operands
        .cu_seqlens
        .filter(|_| lengths.is_some_and(|lengths| lengths.is_packed()));
    let used = operands
        .seqused_kv
        .filter(|_| lengths.is_some_and(|lengths| lengths.has_seqused_kv()));
    // SAFETY: the caller vouches for arrays of these lengths; `check` has seen that they are aligned and not null.
    let arrays = unsafe {
        KnownArrays {
            cu_seqlens: packed.map_or([&[]; 2], |both| both.map(|at| array(at, batch + 1))),
            seqused_kv: used.map_or(&[], |at| array(at, batch)),
            alibi_slopes: match (slopes, operands.alibi_slopes) {
                (Some(slopes), Some(at)) => array(at, slopes.count(batch)),
                _ => &[],
            },
        }
    };
    Cow::Owned(problem.with_known_arrays(&arrays))
}

/// # Safety
/// `length` values of type `T` lie at `address`, aligned.
unsafe fn array<'a, T>(address: u64, length: usize) -> &'a [T] {
    let start = std::ptr::with_exposed_provenance(address as usize);
    // SAFETY: forwarded to the caller.
    unsafe { std::slice::from_raw_parts(start, length) }
}
