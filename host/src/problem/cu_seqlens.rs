use std::sync::Arc;

use super::SEQ_LIMIT;
use crate::{Error, Shape};

/// Row offsets of sequences of different lengths, packed one after the other (varlen).
///
/// q, k, v and o are then packed tensors, `[total, heads, dim]`, which this crate holds as tensors of
/// batch 1 ([`Shape::packed`]): sequence `b` has the rows `q()[b]..q()[b + 1]` of q, o and lse and
/// `kv()[b]..kv()[b + 1]` of k and v. lse is `[heads_q, total_q]`. A length may be 0. Each sequence
/// attends to itself alone, and masks and ALiBi are aligned to its own bottom-right corner.
///
/// The values are kept on the host, where they are checked once. Clones share them, and a GPU backend copies them to
/// the device at the first launch that needs them and reuses the copy for as long as a clone lives: make one value for
/// all layers of a step. That first copy allocates and waits; engines whose arrays are already on the device use
/// [`DeviceLengths`](crate::DeviceLengths).
///
/// ```
/// use ferroflash::CuSeqlens;
/// # fn main() -> Result<(), ferroflash::Error> {
/// let packed = CuSeqlens::new(&[0, 3, 3, 10], &[0, 5, 9, 16])?;
/// assert_eq!(packed, CuSeqlens::from_lengths([(3, 5), (0, 4), (7, 7)])?);
/// assert_eq!((packed.batch(), packed.total_q(), packed.longest_kv()), (3, 10, 7));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CuSeqlens {
    /// cu_seqlens of q, then of k and v; `batch + 1` each.
    values: Arc<[i32]>,
    longest_q: usize,
    longest_kv: usize,
}

impl CuSeqlens {
    /// Cumulative sums of the sequences' lengths, `batch + 1` each, starting at 0.
    ///
    /// # Errors
    /// [`Error::Argument`] on `cu_seqlens_q` or `cu_seqlens_kv` if one does not start with 0, decreases,
    /// or reaches [`SEQ_LIMIT`], or if there are not as many of one as of the other.
    pub fn new(q: &[i32], kv: &[i32]) -> Result<Self, Error> {
        let longest_q = check("cu_seqlens_q", q)?;
        let longest_kv = check("cu_seqlens_kv", kv)?;
        if q.len() != kv.len() {
            return Err(Error::argument(
                "cu_seqlens_kv",
                format!("it has {} elements", kv.len()),
                format!("{}, as many as cu_seqlens_q", q.len()),
            ));
        }
        Ok(Self {
            values: [q, kv].concat().into(),
            longest_q,
            longest_kv,
        })
    }

    /// Sequences of these lengths, (seq_q, seq_kv) each.
    ///
    /// # Errors
    /// [`Error::Argument`] if a sum of lengths reaches [`SEQ_LIMIT`].
    pub fn from_lengths(lengths: impl IntoIterator<Item = (usize, usize)>) -> Result<Self, Error> {
        let (mut q, mut kv) = (vec![0], vec![0]);
        for (seq_q, seq_kv) in lengths {
            push("cu_seqlens_q", &mut q, seq_q)?;
            push("cu_seqlens_kv", &mut kv, seq_kv)?;
        }
        Self::new(&q, &kv)
    }

    /// Sequences of so many queries each, whose keys lie in a cache with lengths of its own ([`decode`](crate::decode())): there are
    /// none of k and v.
    ///
    /// # Errors
    /// As for [`from_lengths`](Self::from_lengths).
    pub fn of_queries(lengths: impl IntoIterator<Item = usize>) -> Result<Self, Error> {
        Self::from_lengths(lengths.into_iter().map(|seq_q| (seq_q, 0)))
    }

    /// Number of sequences.
    pub fn batch(&self) -> usize {
        self.values.len() / 2 - 1
    }

    /// First row of each sequence of q, then the number of rows.
    pub fn q(&self) -> &[i32] {
        &self.values[..=self.batch()]
    }

    /// First row of each sequence of k and v, then the number of rows.
    pub fn kv(&self) -> &[i32] {
        &self.values[self.batch() + 1..]
    }

    /// Rows of all sequences of q.
    pub fn total_q(&self) -> usize {
        self.q()[self.batch()] as usize
    }

    /// Rows of all sequences of k and v.
    pub fn total_kv(&self) -> usize {
        self.kv()[self.batch()] as usize
    }

    /// Rows of the longest sequence of q.
    pub fn longest_q(&self) -> usize {
        self.longest_q
    }

    /// Rows of the longest sequence of k and v.
    pub fn longest_kv(&self) -> usize {
        self.longest_kv
    }

    /// The values to copy to the device: q's array, then that of k and v.
    pub(crate) fn values(&self) -> &Arc<[i32]> {
        &self.values
    }
}

impl Shape {
    /// A packed tensor, `[total, heads, dim]`: one batch entry with the rows of all sequences.
    pub const fn packed(total: usize, heads: usize, dim: usize) -> Self {
        Self {
            batch: 1,
            heads,
            seq: total,
            dim,
        }
    }
}

/// Checks one array and returns the length of its longest sequence.
fn check(argument: &'static str, values: &[i32]) -> Result<usize, Error> {
    let refused = |wrong, allowed: &str| Err(Error::argument(argument, wrong, allowed));
    match values {
        [0, ..] => {}
        [] => {
            return refused(
                "it is empty".to_owned(),
                "batch + 1 elements, the first of them 0",
            );
        }
        [first, ..] => return refused(format!("its first element is {first}"), "0"),
    }
    let mut longest = 0;
    for (index, pair) in values.windows(2).enumerate() {
        let &[begin, end] = pair else {
            unreachable!("windows of two");
        };
        if end < begin {
            let wrong = format!("element {} is {end}, below {begin} before it", index + 1);
            return refused(wrong, "elements that do not decrease");
        }
        longest = longest.max((end - begin) as usize);
    }
    match values.last() {
        Some(&total) if total as usize >= SEQ_LIMIT => Err(too_long(argument, total as usize)),
        _ => Ok(longest),
    }
}

fn push(argument: &'static str, sums: &mut Vec<i32>, length: usize) -> Result<(), Error> {
    let before = sums.last().map_or(0, |&sum| sum as usize);
    let total = before.saturating_add(length);
    if total >= SEQ_LIMIT {
        return Err(too_long(argument, total));
    }
    sums.push(total as i32);
    Ok(())
}

fn too_long(argument: &'static str, total: usize) -> Error {
    Error::argument(
        argument,
        format!("its sequences have {total} rows together"),
        format!("at most {}", SEQ_LIMIT - 1),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(q: &[i32], kv: &[i32]) -> (String, String) {
        refusal(CuSeqlens::new(q, kv))
    }

    fn refusal(outcome: Result<CuSeqlens, Error>) -> (String, String) {
        match outcome {
            Err(Error::Argument {
                argument, wrong, ..
            }) => (argument.into_owned(), wrong),
            other => panic!("expected a refused argument, got {other:?}"),
        }
    }

    #[test]
    fn extents_and_totals() {
        let packed = CuSeqlens::new(&[0, 4, 4, 6], &[0, 1, 9, 9]).unwrap();
        assert_eq!(packed.batch(), 3);
        assert_eq!(
            (packed.q(), packed.kv()),
            ([0, 4, 4, 6].as_slice(), [0, 1, 9, 9].as_slice())
        );
        assert_eq!((packed.total_q(), packed.total_kv()), (6, 9));
        assert_eq!((packed.longest_q(), packed.longest_kv()), (4, 8));
        let none = CuSeqlens::from_lengths([]).unwrap();
        assert_eq!((none.batch(), none.total_q(), none.longest_kv()), (0, 0, 0));
    }

    #[test]
    fn every_fault_names_its_array_and_element() {
        let message = |argument: &str, wrong: &str| (argument.to_owned(), wrong.to_owned());
        assert_eq!(refused(&[], &[0]), message("cu_seqlens_q", "it is empty"));
        assert_eq!(
            refused(&[0], &[1]),
            message("cu_seqlens_kv", "its first element is 1")
        );
        assert_eq!(
            refused(&[-1, 4], &[0, 4]),
            message("cu_seqlens_q", "its first element is -1")
        );
        assert_eq!(
            refused(&[0, 4, 3], &[0, 4, 5]),
            message("cu_seqlens_q", "element 2 is 3, below 4 before it")
        );
        assert_eq!(
            refused(&[0, 4], &[0, -2]),
            message("cu_seqlens_kv", "element 1 is -2, below 0 before it")
        );
        assert_eq!(
            refused(&[0, 4], &[0, 4, 5]),
            message("cu_seqlens_kv", "it has 3 elements")
        );
        let limit = SEQ_LIMIT as i32;
        let too_long = format!("its sequences have {limit} rows together");
        assert_eq!(
            refused(&[0, 1, limit], &[0, 1, 2]),
            message("cu_seqlens_q", &too_long)
        );
        assert_eq!(
            refusal(CuSeqlens::from_lengths([(1, 1), (1, SEQ_LIMIT - 1)])),
            message("cu_seqlens_kv", &too_long)
        );
        let beyond = CuSeqlens::from_lengths([(usize::MAX, 1), (2, 2)]);
        assert_eq!(refusal(beyond).0, "cu_seqlens_q");
    }
}
