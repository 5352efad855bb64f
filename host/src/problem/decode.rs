//! Attention to a cache of keys and values whose lengths only the device knows.

use super::check::{
    check_device_lengths, check_dims, check_equal, check_options, check_output,
    check_packed_queries, check_sizes,
};
use super::{Attention, ForwardOptions, Lengths, Operation, Problem, SEQ_LIMIT, Score};
use crate::spec::{Shape, TensorSpec};
use crate::{DType, Error};

/// How the keys and values of sequences lie in a cache ([`KvCache`](crate::KvCache)), as far as the host knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheLayout {
    /// A sequence is a batch entry of k and v, `[batch, heads_kv, capacity, head_dim]`, of which it uses the first keys.
    Contiguous,
    /// k and v are pages, `[num_pages, heads_kv, page_size, head_dim]`, and key `j` of sequence `b` lies in place
    /// `j % page_size` of page `block_table[b][j / page_size]`.
    Paged {
        /// Columns of the block table: pages of the longest sequence.
        max_pages: usize,
        /// Elements from one row of the block table to the next.
        table_stride: usize,
    },
}

/// The cache and the outputs of a problem that reads one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Decode {
    pub o: TensorSpec,
    pub lse: bool,
    pub layout: CacheLayout,
    /// Scales of k and v, of the cache's shape but for one component.
    pub scales: Option<[TensorSpec; 2]>,
}

impl Problem {
    /// Checks attention of the last queries of sequences to a cache of keys and values.
    ///
    /// A sequence has `kv_lens[b]` keys, a number that lies in the backend's memory
    /// ([`CacheOperands`](crate::CacheOperands)); its last query stands at the last of them, so that masks and ALiBi are
    /// aligned there. A sequence's results depend on its own queries and keys alone, bit for bit ([`decode`](crate::decode())
    /// says how far).
    ///
    /// # Arguments
    /// * `q`: `[batch, heads_q, seq_q, head_dim]`; head_dim is 1 to 256. Where sequences have queries of different numbers, these
    ///   are packed, `[1, heads_q, total_q, head_dim]`, and the options' lengths say whose they are:
    ///   [`CuSeqlens::of_queries`](crate::CuSeqlens::of_queries), or
    ///   [`DeviceLengths::cu_seqlens`](crate::DeviceLengths::cu_seqlens), of which the arrays and bounds of k and v are not used.
    /// * `k`, `v`: as `layout` says, of q's dtype, or both e4m3 ([`with_cache_scales`](Self::with_cache_scales)); heads_q is a
    ///   multiple of heads_kv.
    /// * `o`: `[batch, heads_q, seq_q, head_dim_v]` of q's dtype, in strides that keep its elements apart.
    /// * `options`: of modifiers none but sinks and a tree, and no lengths but those of packed queries.
    ///
    /// # Errors
    /// [`Error::Argument`] naming the first operand or option that is refused.
    pub fn decode(
        q: TensorSpec,
        k: TensorSpec,
        v: TensorSpec,
        o: TensorSpec,
        layout: CacheLayout,
        options: &ForwardOptions,
    ) -> Result<Self, Error> {
        let is_e4m3 = [k.dtype, v.dtype] == [DType::E4m3; 2];
        let as_batch = |spec: TensorSpec| TensorSpec {
            dtype: if is_e4m3 { q.dtype } else { spec.dtype },
            shape: Shape {
                batch: q.shape.batch,
                ..spec.shape
            },
            ..spec
        };
        check_dims(&q, &as_batch(k), &as_batch(v))?;
        check_equal("v", "num_pages", v.shape.batch, k.shape.batch, "k")?;
        check_output(&q, &v, &o)?;
        for (name, spec) in [("q", &q), ("k", &k), ("v", &v), ("o", &o)] {
            check_sizes(name, spec)?;
            spec.reach(name)?;
        }
        check_decode_options(options)?;
        check_layout(sequences(&q, options)?, &k, layout)?;
        let default_scale = || (1.0 / (q.shape.dim as f64).sqrt()) as f32;
        let problem = Self {
            attention: Attention {
                q,
                k,
                v,
                score: Score {
                    softmax_scale: options.softmax_scale.unwrap_or_else(default_scale),
                    softcap: options.softcap,
                    alibi: options.alibi.clone(),
                },
                mask: options.mask,
                modifiers: options.modifiers.clone(),
                lengths: options.lengths.clone(),
            },
            operation: Operation::Decode(Decode {
                o,
                lse: options.lse,
                layout,
                scales: None,
            }),
            force: options.force,
            precision: options.precision,
        };
        if let Some(slopes) = problem.alibi() {
            slopes.check_shape(q.shape.heads, problem.batch())?;
        }
        problem.modifiers().check(&problem)?;
        Ok(problem)
    }

    /// The same, of an e4m3 cache whose numbers are multiplied with scales.
    ///
    /// # Arguments
    /// * `k`, `v`: f32 `[num_pages or 1, heads_kv or 1, page_size or 1, 1]` in any strides; axes of 1 hold for all. One scale for a
    ///   tensor, for each head, page or key.
    ///
    /// # Errors
    /// [`Error::Argument`] on `k_scales` or `v_scales`.
    pub fn with_cache_scales(mut self, k: TensorSpec, v: TensorSpec) -> Result<Self, Error> {
        let scales = self.scales_like(Some([k, v]))?;
        if let Operation::Decode(decode) = &mut self.operation {
            decode.scales = scales;
        }
        Ok(self)
    }

    /// Scales of these specs as the cache has them.
    pub(crate) fn scales_like(
        &self,
        specs: Option<[TensorSpec; 2]>,
    ) -> Result<Option<[TensorSpec; 2]>, Error> {
        let Some([k, v]) = specs else {
            return Ok(None);
        };
        let k = scales_of("k_scales", k, self.k())?;
        Ok(Some([k, scales_of("v_scales", v, self.v())?]))
    }

    /// The scales of the cache's k and v, of its shape, if they have some.
    pub(crate) fn cache_scales(&self) -> Option<[TensorSpec; 2]> {
        match &self.operation {
            Operation::Decode(decode) => decode.scales,
            _ => None,
        }
    }

    /// How the cache lies, if this problem reads one.
    pub fn cache_layout(&self) -> Option<CacheLayout> {
        match &self.operation {
            Operation::Decode(decode) => Some(decode.layout),
            _ => None,
        }
    }

    /// The most keys that a sequence of this problem's cache may have.
    pub(super) fn cache_capacity(&self) -> Option<usize> {
        let layout = self.cache_layout()?;
        Some(layout.capacity(self.k().shape.seq))
    }
}

impl CacheLayout {
    /// The most keys of a sequence, in pages of `page_size`, or rows, keys.
    pub const fn capacity(self, page_size: usize) -> usize {
        match self {
            Self::Contiguous => page_size,
            Self::Paged { max_pages, .. } => max_pages.saturating_mul(page_size),
        }
    }
}

/// The scales of `cache`, with axes of 1 repeated to its shape.
pub(super) fn scales_of(
    argument: &'static str,
    scales: TensorSpec,
    cache: &TensorSpec,
) -> Result<TensorSpec, Error> {
    if cache.dtype != DType::E4m3 {
        let wrong = format!("the cache is {}", cache.dtype.name());
        return Err(Error::argument(
            argument,
            wrong,
            "only one of e4m3 has scales",
        ));
    }
    let dtype = scales.dtype.name();
    check_equal(argument, "dtype", dtype, DType::F32.name(), "all scales")?;
    check_equal(argument, "dim", scales.shape.dim, 1, "all scales")?;
    let mut all = scales;
    let Shape {
        batch, heads, seq, ..
    } = cache.shape;
    for (what, size, stride, wanted) in [
        ("batch", &mut all.shape.batch, &mut all.strides.batch, batch),
        ("heads", &mut all.shape.heads, &mut all.strides.head, heads),
        ("seq", &mut all.shape.seq, &mut all.strides.seq, seq),
    ] {
        if *size == 1 {
            (*size, *stride) = (wanted, 0);
        }
        check_equal(argument, what, *size, wanted, "the cache")?;
    }
    all.reach(argument)?;
    Ok(all)
}

/// Refuses a cache for so many `sequences` that cannot lie so.
pub(super) fn check_layout(
    sequences: usize,
    k: &TensorSpec,
    layout: CacheLayout,
) -> Result<(), Error> {
    let Shape { batch, seq, .. } = k.shape;
    match layout {
        CacheLayout::Contiguous => check_equal("k", "batch", batch, sequences, "q")?,
        CacheLayout::Paged { .. } if seq == 0 => {
            return Err(Error::argument(
                "k",
                "page_size is 0",
                "it must be 1 or more",
            ));
        }
        CacheLayout::Paged { .. } => {}
    }
    let capacity = layout.capacity(seq);
    if capacity >= SEQ_LIMIT {
        let wrong = format!("a row has room for {capacity} keys");
        let allowed = format!("it must be at most {}", SEQ_LIMIT - 1);
        return Err(Error::argument("block_table", wrong, allowed));
    }
    if batch > i32::MAX as usize {
        let wrong = format!("num_pages is {batch}");
        return Err(Error::argument("k", wrong, "it must fit an i32"));
    }
    Ok(())
}

/// How many sequences q has queries of.
fn sequences(q: &TensorSpec, options: &ForwardOptions) -> Result<usize, Error> {
    match &options.lengths {
        Lengths::Dense => Ok(q.shape.batch),
        Lengths::Packed(packed) => {
            check_packed_queries(packed, q)?;
            Ok(packed.batch())
        }
        Lengths::OnDevice(lengths) if !lengths.has_seqused_kv() => {
            check_device_lengths(lengths, q)?;
            let bounds = lengths.packed_bounds();
            Ok(bounds.map_or(q.shape.batch, |[batch, ..]| batch))
        }
        Lengths::OnDevice(_) | Lengths::Known(_) => Err(Error::argument(
            "lengths",
            "a cache has lengths of its own",
            "none beside kv_lens but those of packed queries",
        )),
    }
}

fn check_decode_options(options: &ForwardOptions) -> Result<(), Error> {
    check_options(options)?;
    if options.modifiers.are_of_caches() {
        return Ok(());
    }
    Err(Error::argument(
        "modifiers",
        "attention to a cache takes none but sinks and a tree of drafts",
        "no mask, bias, blocks, documents, prefix, chunk, dilation or dropout",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CuSeqlens, DType, DeviceLengths, Dropout, Layout};

    fn spec(batch: usize, heads: usize, seq: usize) -> TensorSpec {
        let shape = Shape {
            batch,
            heads,
            seq,
            dim: 8,
        };
        TensorSpec::contiguous(DType::Bf16, shape, Layout::Bshd).unwrap()
    }

    const PAGED: CacheLayout = CacheLayout::Paged {
        max_pages: 5,
        table_stride: 5,
    };

    fn refused(
        k: TensorSpec,
        v: TensorSpec,
        layout: CacheLayout,
        options: &ForwardOptions,
    ) -> String {
        let q = spec(3, 4, 1);
        match Problem::decode(q, k, v, q, layout, options) {
            Err(Error::Argument { argument, .. }) => argument.into_owned(),
            Ok(_) => String::new(),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn caches_that_do_not_fit_are_named() {
        let options = ForwardOptions::new();
        let pages = spec(7, 2, 16);
        assert_eq!(refused(pages, pages, PAGED, &options), "");
        assert_eq!(
            refused(pages, pages, CacheLayout::Contiguous, &options),
            "k"
        );
        assert_eq!(refused(pages, spec(6, 2, 16), PAGED, &options), "v");
        assert_eq!(refused(spec(7, 2, 0), spec(7, 2, 0), PAGED, &options), "k");
        assert_eq!(
            refused(spec(7, 3, 16), spec(7, 3, 16), PAGED, &options),
            "q"
        );
        let wide = CacheLayout::Paged {
            max_pages: SEQ_LIMIT / 16,
            table_stride: 0,
        };
        assert_eq!(refused(pages, pages, wide, &options), "block_table");
        let packed = CuSeqlens::of_queries([1]).unwrap();
        let packed = options.clone().cu_seqlens(packed);
        // q has three batch entries.
        assert_eq!(refused(pages, pages, PAGED, &packed), "q");
        let used = options.clone().lengths(DeviceLengths::seqused_kv());
        assert_eq!(refused(pages, pages, PAGED, &used), "lengths");
        let mut dropping = options;
        dropping.modifiers.dropout = Some(Dropout::new(0.5, 1).unwrap());
        assert_eq!(refused(pages, pages, PAGED, &dropping), "modifiers");
    }

    #[test]
    fn lengths_are_bounded_by_the_table() {
        let (q, pages) = (spec(3, 4, 2), spec(7, 2, 16));
        let problem = Problem::decode(q, pages, pages, q, PAGED, &ForwardOptions::new()).unwrap();
        assert_eq!((problem.batch(), problem.seq_q()), (3, 2));
        assert_eq!(problem.seq_kv(), 80);
        assert!(!problem.is_empty());
    }

    #[test]
    fn packed_queries_are_of_as_many_sequences_as_there_are_sums() {
        let (q, pages) = (
            TensorSpec::contiguous(DType::Bf16, Shape::packed(6, 4, 8), Layout::Bshd),
            spec(7, 2, 16),
        );
        let q = q.unwrap();
        let decode = |lengths: Lengths| {
            let options = ForwardOptions::new().lengths(lengths);
            Problem::decode(q, pages, pages, q, PAGED, &options)
        };
        let packed = decode(CuSeqlens::of_queries([1, 0, 5]).unwrap().into()).unwrap();
        assert_eq!(
            (packed.batch(), packed.seq_q(), packed.seq_kv()),
            (3, 5, 80)
        );
        assert_eq!(packed.q_rows(2), 1..6);
        let bounds = DeviceLengths::cu_seqlens(4, 9, 0).unwrap();
        let packed = decode(bounds.into()).unwrap();
        assert_eq!(
            (packed.batch(), packed.seq_q(), packed.seq_kv()),
            (4, 6, 80)
        );
        let Err(Error::Argument { argument, .. }) =
            decode(CuSeqlens::of_queries([1]).unwrap().into())
        else {
            panic!("one row of six");
        };
        assert_eq!(argument, "cu_seqlens_q");
    }
}
