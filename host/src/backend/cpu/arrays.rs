//! Small arrays given by address, whose values the host does not know.

use std::borrow::Cow;

use crate::plan::params::Arrays;
use crate::problem::KnownArrays;
use crate::{Lengths, Operands, Problem};

/// `problem` with the values that its arrays hold: on this backend the device's memory is the host's.
///
/// # Safety
/// As for [`Backend::launch`](crate::Backend::launch), whose checks `operands` have passed.
pub(super) unsafe fn known<'a>(problem: &'a Problem, operands: &Operands) -> Cow<'a, Problem> {
    let batch = problem.batch();
    let slopes = problem.alibi();
    let knows_slopes = slopes.is_none_or(|slopes| slopes.values().is_some());
    if knows_slopes && !matches!(problem.lengths(), Lengths::OnDevice(_)) {
        return Cow::Borrowed(problem);
    }
    let given = Arrays::given(problem, operands);
    // SAFETY: the caller vouches for arrays of these lengths; `check` has seen that they are aligned and not null.
    let arrays = unsafe {
        KnownArrays {
            cu_seqlens: given
                .cu_seqlens
                .map_or([&[]; 2], |both| both.map(|at| array(at, batch + 1))),
            seqused_kv: given.seqused_kv.map_or(&[], |at| array(at, batch)),
            alibi_slopes: match (slopes, given.alibi_slopes) {
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
    // SAFETY: the caller's contract is this function's.
    unsafe { std::slice::from_raw_parts(start, length) }
}
