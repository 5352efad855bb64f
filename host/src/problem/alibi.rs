use std::sync::Arc;

use super::SEQ_LIMIT;
use crate::Error;

/// Slopes of linear biases (ALiBi, Press et al. 2022, <https://arxiv.org/abs/2108.12409>).
///
/// The score of query `i` and key `j` gets `−slope · |i + seq_kv − seq_q − j|` added, in nats: the
/// distance is counted from the diagonal that ends in the bottom-right corner, as masks are, and in a
/// varlen problem of each sequence by itself. The bias comes last, after softmax_scale and softcap,
/// and neither scales nor caps it, as in FlashAttention-2; lse includes it. Under a causal mask
/// FlashAttention-2 adds `slope · j` instead, which differs by a constant of each row: o is the same.
///
/// Values kept on the host are checked once. As with [`CuSeqlens`](crate::CuSeqlens), clones share them and one copy on
/// the device. Values that lie on the device already ([`on_device`](Self::on_device)) are never read by the host.
#[derive(Clone, Debug, PartialEq)]
pub struct AlibiSlopes {
    /// One row of `heads`, or one a batch entry; `None` if only the device has them.
    values: Option<Arc<[f32]>>,
    heads: usize,
    is_batched: bool,
}

/// Slopes are below this in size, so that no bias overflows f32.
const SLOPE_LIMIT: f32 = f32::MAX / SEQ_LIMIT as f32;

impl AlibiSlopes {
    /// One slope for each query head, `[heads_q]`, for every batch entry.
    ///
    /// # Errors
    /// [`Error::Argument`] on `alibi_slopes` if one is not finite or is so large that its product with
    /// the longest distance is not.
    pub fn per_head(slopes: &[f32]) -> Result<Self, Error> {
        check(slopes)?;
        Ok(Self {
            values: Some(slopes.into()),
            heads: slopes.len(),
            is_batched: false,
        })
    }

    /// One slope for each query head of each batch entry, `[batch, heads_q]`, one row after the other.
    ///
    /// # Errors
    /// As for [`per_head`](Self::per_head), and if `slopes` is not made of whole rows of `heads`.
    pub fn per_batch(slopes: &[f32], heads: usize) -> Result<Self, Error> {
        check(slopes)?;
        if heads == 0 || !slopes.len().is_multiple_of(heads) {
            return Err(Error::argument(
                "alibi_slopes",
                format!("{} slopes are no rows of {heads}", slopes.len()),
                "a slope for each of heads_q in each batch entry",
            ));
        }
        Ok(Self {
            values: Some(slopes.into()),
            heads,
            is_batched: true,
        })
    }

    /// The paper's slopes for a power of two of heads, `2^(−8·1/heads), 2^(−8·2/heads), …, 2^−8`; the
    /// same formula for any other number.
    ///
    /// # Errors
    /// [`Error::Argument`] on `heads` if there are more than a problem can have, 2³² − 1.
    pub fn geometric(heads: usize) -> Result<Self, Error> {
        if u32::try_from(heads).is_err() {
            return Err(Error::argument(
                "heads",
                format!("it is {heads}"),
                format!("it must be at most {}", u32::MAX),
            ));
        }
        let slope = |head: usize| (-8.0 * (head + 1) as f64 / heads as f64).exp2() as f32;
        Ok(Self {
            values: Some((0..heads).map(slope).collect()),
            heads,
            is_batched: false,
        })
    }

    /// Slopes in the backend's memory, f32 `[heads_q]`, or `[batch, heads_q]` if `is_batched`: their address is given with
    /// each launch ([`Operands::alibi_slopes`](crate::Operands::alibi_slopes)).
    ///
    /// Nobody checks them: a slope that is not finite, or so large that a bias is not, gives NaN in its head's rows.
    pub fn on_device(heads: usize, is_batched: bool) -> Self {
        Self {
            values: None,
            heads,
            is_batched,
        }
    }

    /// The slope of one query head of one batch entry.
    ///
    /// # Panics
    /// If there is none, or only the device has it.
    pub fn get(&self, batch: usize, head: usize) -> f32 {
        assert!(head < self.heads);
        let values = self.values.as_ref().expect("the host has the slopes");
        values[batch * self.batch_stride() + head]
    }

    /// The same slopes with `values`, which were read from the device and are not checked.
    pub(super) fn with_values(&self, values: &[f32]) -> Self {
        Self {
            values: Some(values.into()),
            ..*self
        }
    }

    /// How many slopes there are for `batch` batch entries.
    pub(crate) fn count(&self, batch: usize) -> usize {
        self.heads * if self.is_batched { batch } else { 1 }
    }

    /// Whether each batch entry has slopes of its own.
    pub fn is_batched(&self) -> bool {
        self.is_batched
    }

    /// Slopes between those of two batch entries: 0 if all share one row.
    pub(crate) fn batch_stride(&self) -> usize {
        if self.is_batched { self.heads } else { 0 }
    }

    /// The values to copy to the device; `None` if they are only there.
    pub(crate) fn values(&self) -> Option<&Arc<[f32]>> {
        self.values.as_ref()
    }

    /// Refuses slopes that are not of `heads` query heads and `batch` batch entries.
    pub(super) fn check_shape(&self, heads: usize, batch: usize) -> Result<(), Error> {
        let refused = |wrong, allowed| Err(Error::argument("alibi_slopes", wrong, allowed));
        if self.heads != heads {
            let wrong = format!("it has {} slopes a batch entry", self.heads);
            return refused(wrong, format!("they must be {heads}, the heads_q of q"));
        }
        if let Some(values) = self.values.as_ref().filter(|_| self.is_batched) {
            let rows = values.len() / heads;
            if rows != batch {
                let wrong = format!("it has slopes of {rows} batch entries");
                return refused(wrong, format!("they must be {batch}, the batch"));
            }
        }
        Ok(())
    }
}

fn check(slopes: &[f32]) -> Result<(), Error> {
    // NaN is below nothing.
    let is_usable = |slope: &f32| slope.abs() < SLOPE_LIMIT;
    match slopes.iter().position(|slope| !is_usable(slope)) {
        None => Ok(()),
        Some(index) => Err(Error::argument(
            "alibi_slopes",
            format!("element {index} is {}", slopes[index]),
            format!("slopes must be finite and below {SLOPE_LIMIT:e} in size"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_shared_or_one_a_batch_entry() {
        let shared = AlibiSlopes::per_head(&[1.0, 2.0]).unwrap();
        assert_eq!((shared.get(0, 1), shared.get(7, 1)), (2.0, 2.0));
        let own = AlibiSlopes::per_batch(&[1.0, 2.0, 3.0, 4.0], 2).unwrap();
        assert_eq!((own.get(0, 1), own.get(1, 0)), (2.0, 3.0));
    }

    #[test]
    fn the_papers_slopes() {
        let slopes = AlibiSlopes::geometric(8).unwrap();
        let all: Vec<f32> = (0..8).map(|head| slopes.get(0, head)).collect();
        assert_eq!(
            all,
            [
                0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625
            ]
        );
    }

    #[test]
    fn slopes_of_more_heads_than_there_can_be_are_refused() {
        for heads in [1 << 32, usize::MAX] {
            let refused = AlibiSlopes::geometric(heads);
            assert!(
                matches!(refused, Err(Error::Argument { argument, .. }) if argument == "heads")
            );
        }
    }

    #[test]
    fn unusable_slopes_are_refused() {
        for slope in [
            f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            SLOPE_LIMIT,
            -f32::MAX,
        ] {
            match AlibiSlopes::per_head(&[0.5, slope]) {
                Err(Error::Argument {
                    argument, wrong, ..
                }) => {
                    assert_eq!(argument, "alibi_slopes");
                    assert_eq!(wrong, format!("element 1 is {slope}"));
                }
                other => panic!("expected a refused argument, got {other:?}"),
            }
        }
        assert!(AlibiSlopes::per_head(&[-0.5, 0.0, 1e29]).is_ok());
        for heads in [0, 2] {
            assert!(AlibiSlopes::per_batch(&[0.5; 3], heads).is_err());
        }
    }
}
