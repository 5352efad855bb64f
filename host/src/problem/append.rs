//! New keys and values for a cache, and the rotation of keys and queries by their positions.

use super::check::{check_apart, check_equal, check_sizes};
use super::decode::{check_layout, scales_of};
use super::{CacheLayout, MAX_HEAD_DIM};
use crate::spec::{Shape, TensorSpec};
use crate::{DType, Error};

/// Which components of a row rotary embedding turns together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotaryStyle {
    /// Components `i` and `i + rotary_dim / 2`, as in GPT-NeoX and Llama.
    Neox,
    /// Components `2 i` and `2 i + 1`, as in GPT-J and RoFormer.
    Interleaved,
}

/// The tables of rotary embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RotarySpec {
    pub cos: TensorSpec,
    pub sin: TensorSpec,
    pub style: RotaryStyle,
}

/// A checked append: new rows of k and v for each sequence, to be written into a cache, and queries to be rotated like the keys.
///
/// Row `i` of `seq` new ones of sequence `b` becomes key `kv_lens[b] − seq + i`, where `kv_lens` counts the new rows already, as
/// [`Problem::decode`](crate::Problem::decode) has it; rows before key 0 are padding, and are not written.
#[derive(Clone, Debug, PartialEq)]
pub struct AppendProblem {
    pub(crate) k: TensorSpec,
    pub(crate) v: TensorSpec,
    pub(crate) k_cache: TensorSpec,
    pub(crate) v_cache: TensorSpec,
    pub(crate) layout: CacheLayout,
    pub(crate) rotary: Option<RotarySpec>,
    /// q, and what it becomes.
    pub(crate) q: Option<[TensorSpec; 2]>,
    /// Scales of an e4m3 cache, of its shape.
    pub(crate) scales: Option<[TensorSpec; 2]>,
    /// Elements from one row of slots to the next, if rows go to slots.
    pub(crate) slots_stride: Option<usize>,
}

impl AppendProblem {
    /// Checks an append without rotation.
    ///
    /// # Arguments
    /// * `k`: new keys, `[batch, heads_kv, seq, head_dim]`; head_dim is 1 to 256.
    /// * `v`: new values, `[batch, heads_kv, seq, head_dim_v]` of k's dtype.
    /// * `k_cache`, `v_cache`: as `layout` says, of k's dtype or both e4m3, in strides that keep their elements apart.
    ///
    /// # Errors
    /// [`Error::Argument`] naming the first operand that is refused.
    pub fn new(
        k: TensorSpec,
        v: TensorSpec,
        k_cache: TensorSpec,
        v_cache: TensorSpec,
        layout: CacheLayout,
    ) -> Result<Self, Error> {
        for (argument, dim) in [("k", k.shape.dim), ("v", v.shape.dim)] {
            if !(1..=MAX_HEAD_DIM).contains(&dim) {
                let wrong = format!("head_dim is {dim}");
                let allowed = format!("it must be 1 to {MAX_HEAD_DIM}");
                return Err(Error::argument(argument, wrong, allowed));
            }
        }
        let is_e4m3 = [k_cache.dtype, v_cache.dtype] == [DType::E4m3; 2];
        if k.dtype == DType::E4m3 {
            let allowed = "f32, f16 or bf16, which is rounded for an e4m3 cache";
            return Err(Error::argument("k", "its dtype is e4m3", allowed));
        }
        let v_like_k = Shape {
            dim: v.shape.dim,
            ..k.shape
        };
        check_like("v", &v, v_like_k, k.dtype, "k")?;
        for (argument, cache, new, of) in [
            ("k_cache", &k_cache, &k, "k"),
            ("v_cache", &v_cache, &v, "v"),
        ] {
            let expected = Shape {
                heads: new.shape.heads,
                dim: new.shape.dim,
                ..k_cache.shape
            };
            let dtype = if is_e4m3 { DType::E4m3 } else { k.dtype };
            check_like(argument, cache, expected, dtype, of)?;
            check_apart(argument, cache)?;
        }
        for (argument, spec) in [
            ("k", &k),
            ("v", &v),
            ("k_cache", &k_cache),
            ("v_cache", &v_cache),
        ] {
            check_sizes(argument, spec)?;
            spec.reach(argument)?;
        }
        check_layout(k.shape.batch, &k_cache, layout)?;
        Ok(Self {
            k,
            v,
            k_cache,
            v_cache,
            layout,
            rotary: None,
            q: None,
            scales: None,
            slots_stride: None,
        })
    }

    /// The same, with keys rotated by the angles of their positions.
    ///
    /// # Arguments
    /// * `cos`, `sin`: f32 `[1, 1, positions, rotary_dim / 2]` in any strides; rotary_dim is at most head_dim, and components
    ///   from it on stay as they are.
    ///
    /// # Errors
    /// [`Error::Argument`] on `cos` or `sin`.
    pub fn rotary(
        mut self,
        cos: TensorSpec,
        sin: TensorSpec,
        style: RotaryStyle,
    ) -> Result<Self, Error> {
        let (dim, head_dim) = (cos.shape.dim, self.k.shape.dim);
        if dim == 0 || 2 * dim > head_dim {
            let wrong = format!("it has {dim} angles for a position");
            let allowed = format!("1 to {}, one for two components of a head", head_dim / 2);
            return Err(Error::argument("cos", wrong, allowed));
        }
        let shape = Shape {
            batch: 1,
            heads: 1,
            ..cos.shape
        };
        for (argument, table) in [("cos", &cos), ("sin", &sin)] {
            check_like(argument, table, shape, DType::F32, "cos")?;
            check_sizes(argument, table)?;
            table.reach(argument)?;
        }
        self.rotary = Some(RotarySpec { cos, sin, style });
        Ok(self)
    }

    /// The same, with queries rotated as the keys are: those of row `i` as key `kv_lens[b] − seq + i`.
    ///
    /// # Arguments
    /// * `q`: `[batch, heads_q, seq, head_dim]` of k's dtype.
    /// * `rotated`: written; of q's shape and dtype, in strides that keep its elements apart.
    ///
    /// # Errors
    /// [`Error::Argument`] on `q` or `rotated`.
    pub fn rotated_q(mut self, q: TensorSpec, rotated: TensorSpec) -> Result<Self, Error> {
        let shape = Shape {
            heads: q.shape.heads,
            ..self.k.shape
        };
        check_like("q", &q, shape, self.k.dtype, "k")?;
        check_like("rotated", &rotated, shape, self.k.dtype, "q")?;
        check_apart("rotated", &rotated)?;
        for (argument, spec) in [("q", &q), ("rotated", &rotated)] {
            check_sizes(argument, spec)?;
            spec.reach(argument)?;
        }
        self.q = Some([q, rotated]);
        Ok(self)
    }

    /// The same, of an e4m3 cache with scales, which numbers are divided by before they are rounded: as for
    /// [`Problem::with_cache_scales`](crate::Problem::with_cache_scales).
    ///
    /// # Errors
    /// [`Error::Argument`] on `k_scales` or `v_scales`.
    pub fn scales(mut self, k: TensorSpec, v: TensorSpec) -> Result<Self, Error> {
        self.scales = Some([
            scales_of("k_scales", k, &self.k_cache)?,
            scales_of("v_scales", v, &self.v_cache)?,
        ]);
        Ok(self)
    }

    /// The same, with rows written to slots (vLLM's slot mapping) instead of where the block table says.
    ///
    /// # Arguments
    /// * `stride`: elements from one row of the slots, i32 `[batch, seq]`, to the next.
    pub fn slots(mut self, stride: usize) -> Self {
        self.slots_stride = Some(stride);
        self
    }

    /// The most keys of a sequence.
    pub(crate) fn capacity(&self) -> usize {
        self.layout.capacity(self.k_cache.shape.seq)
    }

    /// Components of a row of k that are rotated.
    pub(crate) fn rotary_dim(&self) -> usize {
        self.rotary.map_or(0, |rotary| 2 * rotary.cos.shape.dim)
    }

    /// Whether there is nothing to write.
    pub(crate) fn is_empty(&self) -> bool {
        let Shape {
            batch, heads, seq, ..
        } = self.k.shape;
        let heads_q = self.q.map_or(0, |[q, _]| q.shape.heads);
        batch == 0 || seq == 0 || heads + heads_q == 0
    }
}

/// Refuses `argument` unless its dtype and shape are these, those of `of` as far as they differ.
fn check_like(
    argument: &'static str,
    spec: &TensorSpec,
    expected: Shape,
    dtype: DType,
    of: &str,
) -> Result<(), Error> {
    let shape = spec.shape;
    check_equal(argument, "dtype", spec.dtype.name(), dtype.name(), of)?;
    check_equal(argument, "batch", shape.batch, expected.batch, of)?;
    check_equal(argument, "heads", shape.heads, expected.heads, of)?;
    check_equal(argument, "seq", shape.seq, expected.seq, of)?;
    check_equal(argument, "head_dim", shape.dim, expected.dim, of)
}

#[cfg(test)]
mod tests {
    use super::super::tests::spec;
    use super::*;

    const PAGED: CacheLayout = CacheLayout::Paged {
        max_pages: 5,
        table_stride: 5,
    };

    fn argument(problem: Result<AppendProblem, Error>) -> String {
        match problem {
            Err(Error::Argument { argument, .. }) => argument.into_owned(),
            Err(other) => panic!("{other}"),
            Ok(_) => String::new(),
        }
    }

    /// Of 2 sequences, 3 new rows of 2 heads each, in pages of 16.
    fn plain() -> AppendProblem {
        let (new, pages) = (spec(2, 3, 8), spec(2, 16, 8));
        AppendProblem::new(new, new, pages, pages, PAGED).unwrap()
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let (new, pages) = (spec(2, 3, 8), spec(2, 16, 8));
        let of =
            |k, v, k_cache, v_cache| argument(AppendProblem::new(k, v, k_cache, v_cache, PAGED));
        assert_eq!(of(new, new, pages, pages), "");
        assert_eq!(of(new, spec(2, 4, 8), pages, pages), "v");
        assert_eq!(of(spec(2, 3, 300), new, pages, pages), "k");
        assert_eq!(of(new, new, spec(3, 16, 8), pages), "k_cache");
        assert_eq!(of(new, new, pages, spec(2, 15, 8)), "v_cache");
        let mut broadcast = pages;
        broadcast.strides.batch = 0;
        assert_eq!(of(new, new, broadcast, pages), "k_cache");
        // Any new rows may be one.
        broadcast = new;
        broadcast.strides.batch = 0;
        assert_eq!(of(broadcast, broadcast, pages, pages), "");
    }

    #[test]
    fn rotation_is_checked_too() {
        let table = |dim| {
            let mut table = spec(1, 100, dim);
            table.shape.batch = 1;
            table
        };
        let with = |cos, sin| argument(plain().rotary(cos, sin, RotaryStyle::Neox));
        assert_eq!(with(table(4), table(4)), "");
        assert_eq!(with(table(5), table(5)), "cos");
        assert_eq!(with(table(0), table(0)), "cos");
        assert_eq!(with(table(4), table(3)), "sin");
        assert_eq!(with(spec(2, 100, 4), table(4)), "cos");
        let q = spec(6, 3, 8);
        let rotated = |q, rotated| argument(plain().rotated_q(q, rotated));
        assert_eq!(rotated(q, q), "");
        assert_eq!(rotated(spec(6, 2, 8), q), "q");
        assert_eq!(rotated(q, spec(4, 3, 8)), "rotated");
    }
}
