//! Attention to a cache: the keys and values of each sequence are gathered, and then attended to as those of any other.

use std::cell::Cell;
use std::ops::Range;

use kernels_gpu::abi::CacheFault;
use kernels_gpu::tile::kv_tree::seen_keys;

use super::modifiers::arrays_of;
use super::pack::Matrix;
use super::tasks;
use crate::spec::{Layout, Shape, TensorSpec};
use crate::{AlibiSlopes, CacheLayout, CacheOperands, DType, ForwardOptions, MaskTensor};
use crate::{Operands, Problem};

/// Runs `problem`, whose slopes the host knows.
///
/// # Safety
/// As for [`Backend::launch`](crate::Backend::launch).
pub(super) unsafe fn run(problem: &Problem, layout: CacheLayout, operands: &Operands) {
    let cache = operands.cache.expect("checked operands");
    let mut faults = 0;
    for index in 0..problem.batch() {
        let rows = problem.q_rows(index);
        if rows.is_empty() {
            continue;
        }
        // SAFETY: there is a length for each sequence.
        let kv_len = unsafe { word(cache.kv_lens, index) };
        let cached = Cached {
            problem,
            operands,
            layout,
            cache,
            index,
            rows,
        };
        let capacity = problem.seq_kv();
        let attended = match usize::try_from(kv_len).ok().filter(|&len| len <= capacity) {
            None => Err(CacheFault::BadLength),
            // SAFETY: the caller's promise is the one asked for.
            Some(kv_len) => unsafe { cached.attend(kv_len) },
        };
        if let Err(fault) = attended {
            faults |= fault as u32;
            // SAFETY: the rows are this sequence's own.
            unsafe { cached.poison() };
        }
    }
    if let Some(status) = cache.status.filter(|_| faults != 0) {
        let status = std::ptr::with_exposed_provenance_mut::<u32>(status as usize);
        // SAFETY: the caller vouches for the word.
        unsafe { *status |= faults };
    }
}

/// Element `index` of an i32 array.
///
/// # Safety
/// It exists.
pub(super) unsafe fn word(address: u64, index: usize) -> i32 {
    let array = std::ptr::with_exposed_provenance::<i32>(address as usize);
    // SAFETY: the caller vouches for it.
    unsafe { *array.add(index) }
}

/// The scale of a key of a page, of an e4m3 cache that has scales.
///
/// # Safety
/// The page and the place exist, and so do the scales.
pub(super) unsafe fn scale_of(
    scales: Option<(TensorSpec, u64)>,
    [page, head, place]: [usize; 3],
) -> f32 {
    let Some((spec, address)) = scales else {
        return 1.0;
    };
    let mut scale = [1.0];
    // SAFETY: the caller vouches for it.
    unsafe { Matrix::new(&spec, address, page, head, place).read_row(0, &mut scale) };
    scale[0]
}

/// A sequence of a cache.
struct Cached<'a> {
    problem: &'a Problem,
    operands: &'a Operands,
    layout: CacheLayout,
    cache: CacheOperands,
    /// Number of the sequence.
    index: usize,
    /// Its rows of q and o, in its batch entry.
    rows: Range<usize>,
}

impl Cached<'_> {
    /// Computes the sequence's rows of o and lse from its `kv_len` keys.
    ///
    /// # Safety
    /// The operands are as [`run`] requires.
    unsafe fn attend(&self, kv_len: usize) -> Result<(), CacheFault> {
        let problem = self.problem;
        let shape = Shape {
            batch: 1,
            heads: problem.k().shape.heads,
            seq: kv_len,
            dim: problem.k().shape.dim,
        };
        // e4m3 numbers times their scales are f32.
        let dtype = match problem.k().dtype {
            DType::E4m3 => DType::F32,
            dtype => dtype,
        };
        let dense = |dim| TensorSpec::contiguous(dtype, Shape { dim, ..shape }, Layout::Bhsd);
        let fits = "it is no larger than the cache";
        let k_spec = dense(shape.dim).expect(fits);
        let v_spec = dense(problem.v().shape.dim).expect(fits);
        let bytes = |spec: &TensorSpec| spec.shape.element_count().expect(fits) * dtype.bytes();
        let mut k = vec![0u8; bytes(&k_spec)];
        let mut v = vec![0u8; bytes(&v_spec)];
        let seen = self.seen(kv_len);
        let scales = problem.cache_scales().zip(self.cache.scales);
        let [k_scales, v_scales] = match scales {
            None => [None; 2],
            Some(([k, v], [at_k, at_v])) => [Some((k, at_k)), Some((v, at_v))],
        };
        for (from, address, to, gathered, scales) in [
            (problem.k(), self.operands.k, &k_spec, &mut k, k_scales),
            (problem.v(), self.operands.v, &v_spec, &mut v, v_scales),
        ] {
            let start = gathered.as_mut_ptr().expose_provenance() as u64;
            for key in seen.clone() {
                let (page, place) = self.place(key).ok_or(CacheFault::BadPage)?;
                let mut row = vec![0.0; to.shape.dim];
                for head in 0..to.shape.heads {
                    // SAFETY: the page and the place exist, and `gathered` has a row for each key of each head.
                    unsafe {
                        Matrix::new(from, address, page, head, place).read_row(0, &mut row);
                        let scale = scale_of(scales, [page, head, place]);
                        if scale != 1.0 {
                            row.iter_mut().for_each(|value| *value *= scale);
                        }
                        Matrix::new(to, start, 0, head, key).write_row(0, &row);
                    }
                }
            }
        }
        // Keys that no query sees are not 0 · NaN: their places hold 0.
        let addresses = [&k, &v].map(|gathered| gathered.as_ptr().expose_provenance() as u64);
        // SAFETY: the gathered tensors hold what their specs reach, and the caller vouches for the rest.
        unsafe { self.attend_to([k_spec, v_spec], addresses) };
        Ok(())
    }

    /// Keys that some query of the sequence sees.
    fn seen(&self, kv_len: usize) -> Range<usize> {
        let seq_q = self.rows.len();
        let band = self.problem.mask().band(seq_q, kv_len);
        let (begin, end) = seen_keys(seq_q as u32, kv_len as u32, band);
        begin as usize..end as usize
    }

    /// The page of a key and its place there, if the page exists.
    fn place(&self, key: usize) -> Option<(usize, usize)> {
        let Shape {
            batch: num_pages,
            seq: page_size,
            ..
        } = self.problem.k().shape;
        match self.layout {
            CacheLayout::Contiguous => Some((self.index, key)),
            CacheLayout::Paged { table_stride, .. } => {
                let table = self.cache.block_table.expect("checked operands");
                // SAFETY: the key is below the capacity, so that the table has an entry for it.
                let page = unsafe { word(table, self.index * table_stride + key / page_size) };
                let page = usize::try_from(page).ok().filter(|&page| page < num_pages);
                page.map(|page| (page, key % page_size))
            }
        }
    }

    /// The batch entry of q and o that has its rows.
    fn batch(&self) -> usize {
        if self.problem.is_packed() {
            0
        } else {
            self.index
        }
    }

    /// The sequence's own rows of q or o: their spec and address.
    fn rows(&self, spec: &TensorSpec, address: u64) -> (TensorSpec, u64) {
        let mut own = *spec;
        own.shape.batch = 1;
        own.shape.seq = self.rows.len();
        let first = spec.offset(self.batch(), 0, self.rows.start, 0);
        let offset = first * spec.dtype.bytes() as i64;
        (own, address.wrapping_add_signed(offset))
    }

    /// The sequence's elements of lse of one head, if it is wanted.
    fn lse(&self, head: usize) -> Option<*mut f32> {
        let Shape { heads, seq, .. } = self.problem.o().shape;
        let place = (self.batch() * heads + head) * seq + self.rows.start;
        let lse = std::ptr::with_exposed_provenance_mut::<f32>(self.operands.lse? as usize);
        Some(lse.wrapping_add(place))
    }

    /// # Safety
    /// The operands are as [`run`] requires, and k and v lie at `addresses`.
    unsafe fn attend_to(&self, [k, v]: [TensorSpec; 2], addresses: [u64; 2]) {
        let problem = self.problem;
        let (q, q_address) = self.rows(problem.q(), self.operands.q);
        let (o, o_address) = self.rows(problem.o(), self.operands.o);
        // Of an e4m3 cache all is computed from f32.
        let widened = (k.dtype != q.dtype).then(|| Widened::new(&q, q_address, &o));
        let (q, q_address, own_o, own_o_address) = match &widened {
            None => (q, q_address, o, o_address),
            Some(widened) => widened.operands(),
        };
        let heads = q.shape.heads;
        let slopes = problem.alibi().map(|slopes| {
            let of_sequence: Vec<_> = (0..heads)
                .map(|head| slopes.get(self.index, head))
                .collect();
            AlibiSlopes::per_head(&of_sequence).expect("they were checked with the problem")
        });
        let mut options = ForwardOptions::new()
            .mask(problem.mask())
            .softmax_scale(problem.softmax_scale())
            .softcap(problem.softcap())
            .alibi(slopes);
        options.modifiers = problem.modifiers().clone();
        options.modifiers.mask = self.mask_of_tree(k.shape.seq);
        options.modifiers.tree = None;
        let of_sequence =
            Problem::new(q, k, v, own_o, &options).expect("a part of a checked problem");
        let count = self.rows.len();
        let lse = vec![Cell::new(0.0f32); heads * count];
        let operands = Operands {
            q: q_address,
            k: addresses[0],
            v: addresses[1],
            o: own_o_address,
            lse: Some(lse.as_ptr().expose_provenance() as u64),
            alibi_slopes: None,
            cache: None,
            ..*self.operands
        };
        // SAFETY: q and o are the sequence's part of operands that the caller vouches for, and lse has an element for each row.
        unsafe { tasks::run(&of_sequence, &operands) };
        for (head, of_head) in lse.chunks(count).enumerate() {
            let Some(to) = self.lse(head) else {
                break;
            };
            for (row, value) in of_head.iter().enumerate() {
                // SAFETY: the operands' lse has an element for every row.
                unsafe { *to.add(row) = value.get() };
            }
        }
        if let Some(widened) = &widened {
            // SAFETY: as above.
            unsafe { widened.round_into(&o, o_address) };
        }
    }

    /// What a tree of drafts says of the sequence's pairs, if there is one.
    fn mask_of_tree(&self, kv_len: usize) -> Option<MaskTensor> {
        let tree = self.problem.modifiers().tree.as_ref()?;
        let seq_q = self.rows.len();
        let words = arrays_of(self.problem, self.operands).tree_mask?;
        let words = std::ptr::with_exposed_provenance::<u64>(words as usize);
        // SAFETY: the tree has a word for each query, which the caller of `run` vouches for where it lies elsewhere.
        let word = |query| unsafe { words.add(tree.index(self.index, query)).read_unaligned() };
        let mut shown = vec![1u8; seq_q * kv_len];
        for query in 0..seq_q {
            let drafts = word(query);
            for draft in seq_q.saturating_sub(kv_len)..seq_q {
                let key = kv_len + draft - seq_q;
                shown[query * kv_len + key] = (drafts >> draft & 1) as u8;
            }
        }
        Some(MaskTensor::new(&shown, [1, 1, seq_q, kv_len]).expect("an element for each pair"))
    }

    /// Fills the sequence's rows of o and lse with NaN.
    ///
    /// # Safety
    /// As [`run`]; the rows are accessed by nobody else.
    unsafe fn poison(&self) {
        let Shape { heads, dim, .. } = self.problem.o().shape;
        let poisoned = vec![f32::NAN; dim];
        for head in 0..heads {
            for (row, at) in self.rows.clone().enumerate() {
                let o = Matrix::new(self.problem.o(), self.operands.o, self.batch(), head, at);
                // SAFETY: the row lies inside o.
                unsafe { o.write_row(0, &poisoned) };
                if let Some(lse) = self.lse(head) {
                    // SAFETY: lse has an element for every row.
                    unsafe { *lse.add(row) = f32::NAN };
                }
            }
        }
    }
}

/// q and o of a sequence in f32.
struct Widened {
    specs: [TensorSpec; 2],
    q: Vec<f32>,
    /// Written through its address.
    o: Vec<Cell<f32>>,
}

impl Widened {
    fn new(q: &TensorSpec, q_address: u64, o: &TensorSpec) -> Self {
        let fits = "it is no larger than q and o";
        let dense = |spec: &TensorSpec| {
            TensorSpec::contiguous(DType::F32, spec.shape, Layout::Bhsd).expect(fits)
        };
        let specs = [dense(q), dense(o)];
        let [q_count, o_count] = specs.map(|spec| spec.shape.element_count().expect(fits));
        let mut wide = vec![0.0; q_count];
        for (number, row) in wide.chunks_mut(q.shape.dim).enumerate() {
            let (head, seq) = (number / q.shape.seq, number % q.shape.seq);
            // SAFETY: the row is one of q's, which the caller of `attend_to` vouches for.
            unsafe { Matrix::new(q, q_address, 0, head, seq).read_row(0, row) };
        }
        Self {
            specs,
            q: wide,
            o: vec![Cell::new(0.0); o_count],
        }
    }

    /// Specs and addresses of q and o.
    fn operands(&self) -> (TensorSpec, u64, TensorSpec, u64) {
        let [q, o] = self.specs;
        let q_address = self.q.as_ptr().expose_provenance() as u64;
        let o_address = self.o.as_ptr().expose_provenance() as u64;
        (q, q_address, o, o_address)
    }

    /// Rounds o into the sequence's own.
    ///
    /// # Safety
    /// The rows are accessed by nobody else.
    unsafe fn round_into(&self, o: &TensorSpec, address: u64) {
        for (number, row) in self.o.chunks(o.shape.dim).enumerate() {
            let (head, seq) = (number / o.shape.seq, number % o.shape.seq);
            let row: Vec<f32> = row.iter().map(Cell::get).collect();
            // SAFETY: the caller vouches for the row.
            unsafe { Matrix::new(o, address, 0, head, seq).write_row(0, &row) };
        }
    }
}
