//! A case of attention to a cache, with its inputs: its problem, its run, and each sequence beside the oracle.

use std::ops::Range;

use super::scales::scale_of;
use super::tree::shown_by;
use crate::oracle::{self, Inputs, Rows, Verdict};
use ferroflash::{
    AlibiSlopes, Backend, CacheLayout, DType, Error, ForwardOptions, HostTensor, Indices, KvCache,
    Layout, Lengths, Output, Problem, Shape, TensorSpec, decode,
};
use kernels_gpu::tile::kv_tree::seen_keys;

/// The rows of q that are a sequence's: of which batch entry, and which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QRows {
    /// 0 where sequences are packed.
    pub batch: usize,
    /// Rows of that entry.
    pub rows: Range<usize>,
}

impl QRows {
    /// Those of `batch` sequences that each have an entry of `seq_q` rows.
    pub(super) fn of_entries(batch: usize, seq_q: usize) -> Vec<Self> {
        let rows = |batch| Self {
            batch,
            rows: 0..seq_q,
        };
        (0..batch).map(rows).collect()
    }
}

/// A case with its inputs.
#[derive(Clone, Debug)]
pub struct DecodeCase {
    /// `[batch, heads_q, seq_q, head_dim]`, or packed `[1, heads_q, total_q, head_dim]`.
    pub q: HostTensor,
    /// Of each sequence.
    pub q_rows: Vec<QRows>,
    /// Pages, or batch entries, of keys.
    pub k: HostTensor,
    /// Pages, or batch entries, of values.
    pub v: HostTensor,
    /// Scales of k and of v, of an e4m3 cache.
    pub scales: Option<[HostTensor; 2]>,
    /// `[batch, max_pages]`, of a paged cache.
    pub block_table: Option<(Vec<i32>, usize)>,
    /// `[batch]`.
    pub kv_lens: Vec<i32>,
    /// Options of the computation.
    pub options: ForwardOptions,
}

impl DecodeCase {
    /// The checked problem, with a contiguous output of q's axis order.
    ///
    /// # Errors
    /// Those of [`Problem::decode`].
    pub fn problem(&self) -> Result<Problem, Error> {
        let (q, v) = (self.q.spec(), self.v.spec());
        let shape = Shape {
            dim: v.shape.dim,
            ..q.shape
        };
        let o = TensorSpec::contiguous(q.dtype, shape, self.options.o_layout)?;
        let layout = match &self.block_table {
            None => CacheLayout::Contiguous,
            Some((_, max_pages)) => CacheLayout::Paged {
                max_pages: *max_pages,
                table_stride: *max_pages,
            },
        };
        let problem = Problem::decode(*q, *self.k.spec(), *v, o, layout, &self.options)?;
        match &self.scales {
            None => Ok(problem),
            Some([k, v]) => problem.with_cache_scales(*k.spec(), *v.spec()),
        }
    }

    /// Keys of a sequence that some query sees.
    pub fn seen_keys(&self, sequence: usize) -> usize {
        let seq_q = self.q_rows[sequence].rows.len();
        let kv_len = self.kv_lens[sequence].max(0) as usize;
        let band = self.options.mask.band(seq_q, kv_len);
        let (begin, end) = seen_keys(seq_q as u32, kv_len as u32, band);
        (end - begin) as usize
    }

    /// [`Problem::flops`] of all sequences, whose lengths the problem itself does not know.
    ///
    /// # Errors
    /// Those of [`Problem::new`] of one sequence.
    pub fn flops(&self) -> Result<f64, Error> {
        let options = ForwardOptions::new().mask(self.options.mask);
        let mut flops = 0.0;
        for (&kv_len, q_rows) in self.kv_lens.iter().zip(&self.q_rows) {
            let one = |tensor: &HostTensor, seq| {
                let shape = Shape {
                    batch: 1,
                    seq,
                    ..tensor.spec().shape
                };
                // Whatever the dtypes are, the operations are those of as many elements.
                TensorSpec::contiguous(DType::F32, shape, Layout::Bhsd)
            };
            let q = one(&self.q, q_rows.rows.len())?;
            let [k, v] = [&self.k, &self.v].map(|tensor| one(tensor, kv_len.max(0) as usize));
            flops += Problem::with_dense_output(q, k?, v?, &options)?.flops();
        }
        Ok(flops)
    }

    /// Uploads the cache.
    ///
    /// # Errors
    /// Those of [`KvCache::paged`].
    pub fn cache<B: Backend>(&self, backend: &mut B) -> Result<KvCache<B::Memory>, Error> {
        let memory = backend.memory();
        let (k, v) = (self.k.upload(memory)?, self.v.upload(memory)?);
        let kv_lens = Indices::upload(memory, &self.kv_lens, [self.kv_lens.len(), 1])?;
        let cache = match &self.block_table {
            None => KvCache::contiguous(memory, k, v, kv_lens)?,
            Some((table, max_pages)) => {
                let table = Indices::upload(memory, table, [self.kv_lens.len(), *max_pages])?;
                KvCache::paged(memory, k, v, table, kv_lens)?
            }
        };
        match &self.scales {
            None => Ok(cache),
            Some([k, v]) => Ok(cache.with_scales(k.upload(memory)?, v.upload(memory)?)),
        }
    }

    /// Runs the case on `backend` and fetches o and lse.
    ///
    /// # Errors
    /// Those of [`decode`].
    pub fn run<B: Backend>(&self, backend: &mut B) -> Result<(HostTensor, HostTensor), Error> {
        let cache = self.cache(backend)?;
        let q = self.q.upload(backend.memory())?;
        let Output { o, lse, .. } = decode(backend, &q, &cache, &self.options)?;
        let lse = lse.expect("it is asked for by default");
        let memory = backend.memory();
        Ok((o.download(memory)?, lse.download(memory)?))
    }

    /// Compares all rows with the oracle's; says which sequence is wrong, and how.
    ///
    /// # Errors
    /// [`Error::Argument`] if the inputs do not fit together.
    pub fn check_all(&self, o: &HostTensor, lse: &HostTensor) -> Result<Option<String>, Error> {
        for sequence in 0..self.kv_lens.len() {
            let verdict = self.check(sequence, o, lse)?;
            if !verdict.passed() {
                return Ok(Some(format!("sequence {sequence}: {verdict}")));
            }
        }
        Ok(None)
    }

    /// Compares a sequence's rows with the oracle's, of its queries and of the keys and values that lie where the cache says.
    ///
    /// # Errors
    /// [`Error::Argument`] if the inputs do not fit together.
    pub fn check(
        &self,
        sequence: usize,
        o: &HostTensor,
        lse: &HostTensor,
    ) -> Result<Verdict, Error> {
        self.check_rows(sequence, o, lse, Rows::All)
    }

    /// As [`check`](Self::check), of some rows.
    ///
    /// # Errors
    /// As for [`check`](Self::check).
    pub fn check_rows(
        &self,
        sequence: usize,
        o: &HostTensor,
        lse: &HostTensor,
        rows: Rows,
    ) -> Result<Verdict, Error> {
        let kv_len = self.kv_lens[sequence] as usize;
        let page_size = self.k.spec().shape.seq;
        let place = |key: usize| match &self.block_table {
            None => (sequence, key),
            Some((table, max_pages)) => {
                let page = table[sequence * max_pages + key / page_size];
                (page as usize, key % page_size)
            }
        };
        let QRows { batch, rows: own } = &self.q_rows[sequence];
        let of_query = |row| (*batch, own.start + row);
        let seq_q = own.len();
        let [q, o, lse] = [&self.q, o, lse].map(|tensor| gathered(tensor, seq_q, of_query, None));
        let scales = self.scales.as_ref();
        let k = gathered(&self.k, kv_len, place, scales.map(|[k, _]| k));
        let v = gathered(&self.v, kv_len, place, scales.map(|[_, v]| v));
        let is_e4m3 = self.k.spec().dtype == DType::E4m3;
        let dtype = self.q.spec().dtype;
        let mut options = self.options.clone();
        if let Some(slopes) = &self.options.alibi {
            let heads = self.q.spec().shape.heads;
            let of_sequence: Vec<_> = (0..heads).map(|head| slopes.get(sequence, head)).collect();
            options.alibi = Some(AlibiSlopes::per_head(&of_sequence)?);
        }
        options.force = None;
        options.lengths = Lengths::Dense;
        if let Some(tree) = options.modifiers.tree.take() {
            options.modifiers.mask = Some(shown_by(&tree, sequence, seq_q, kv_len)?);
        }
        let (mut q, k, v) = (q?, k?, v?);
        if is_e4m3 {
            q = q.convert(DType::F32, Layout::Bhsd)?;
        }
        let problem = Problem::with_dense_output(*q.spec(), *k.spec(), *v.spec(), &options)?;
        let inputs = Inputs {
            q: &q,
            k: &k,
            v: &v,
        };
        Ok(oracle::check_as(&problem, inputs, &o?, &lse?, rows, dtype))
    }
}

/// `rows` rows of all heads, which lie at `place` (batch entry and row) of `tensor`, as a tensor of batch 1.
///
/// e4m3 becomes f32, multiplied with its scales.
fn gathered(
    tensor: &HostTensor,
    rows: usize,
    place: impl Fn(usize) -> (usize, usize),
    scales: Option<&HostTensor>,
) -> Result<HostTensor, Error> {
    let spec = tensor.spec();
    let shape = Shape {
        batch: 1,
        seq: rows,
        ..spec.shape
    };
    let dtype = match spec.dtype {
        DType::E4m3 => DType::F32,
        dtype => dtype,
    };
    let dense = TensorSpec::contiguous(dtype, shape, Layout::Bhsd)?;
    let elements = shape.element_count().unwrap_or(0);
    let mut to = HostTensor::new(dense, 0, vec![0; elements * dtype.bytes()])?;
    for head in 0..shape.heads {
        for (row, dim) in pairs(rows, shape.dim) {
            let (batch, at) = place(row);
            let scale = scale_of(scales, [batch, head, at]);
            to.set(0, head, row, dim, tensor.get(batch, head, at, dim) * scale);
        }
    }
    Ok(to)
}

/// Each of `outer` with each of `inner`.
pub(super) fn pairs(outer: usize, inner: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..outer).flat_map(move |x| (0..inner).map(move |y| (x, y)))
}
