//! A cache of keys and values, in pages or not, whose lengths lie in the backend's memory.

use std::fmt;
use std::sync::Arc;

use bytemuck::cast_slice;
use kernels_gpu::abi::CacheFault;

use crate::memory::check_owned_operand;
use crate::{CacheLayout, CacheOperands, Error, Memory, Tensor, TensorSpec};

/// A matrix of i32 in a backend's memory, contents unknown to the host.
///
/// Rows are contiguous and any number of elements apart.
pub struct Indices<M: Memory> {
    buffer: Arc<M::Buffer>,
    /// Place of element `[0, 0]` in the buffer, in elements.
    origin: usize,
    rows: usize,
    cols: usize,
    row_stride: usize,
}

impl<M: Memory> Clone for Indices<M> {
    fn clone(&self) -> Self {
        Self {
            buffer: Arc::clone(&self.buffer),
            ..*self
        }
    }
}

impl<M: Memory> fmt::Debug for Indices<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Indices")
            .field("rows", &self.rows)
            .field("cols", &self.cols)
            .field("row_stride", &self.row_stride)
            .finish_non_exhaustive()
    }
}

impl<M: Memory> Indices<M> {
    /// The matrix `[rows, cols]` whose element `[0, 0]` is number `origin` of `buffer`, and whose rows begin `row_stride`
    /// elements after one another.
    ///
    /// # Errors
    /// [`Error::Argument`] on `indices` if it reaches outside the buffer, or `memory` did not allocate it.
    pub fn new(
        memory: &M,
        buffer: Arc<M::Buffer>,
        origin: usize,
        [rows, cols]: [usize; 2],
        row_stride: usize,
    ) -> Result<Self, Error> {
        check_owned_operand(memory, &buffer, "indices")?;
        let elements = memory.size_bytes(&buffer) / size_of::<i32>();
        let last_row = rows.saturating_sub(1).saturating_mul(row_stride);
        let end = match rows == 0 || cols == 0 {
            true => origin,
            false => origin.saturating_add(last_row).saturating_add(cols),
        };
        if end > elements {
            return Err(Error::argument(
                "indices",
                format!("it ends at element {end} of its buffer"),
                format!("the buffer holds {elements} elements"),
            ));
        }
        Ok(Self {
            buffer,
            origin,
            rows,
            cols,
            row_stride,
        })
    }

    /// A copy of `values`, `[rows, cols]`, in `memory`.
    ///
    /// # Errors
    /// [`Error::Argument`] on `indices` if there are not so many values; [`Error::OutOfMemory`] or [`Error::Device`].
    pub fn upload(memory: &mut M, values: &[i32], [rows, cols]: [usize; 2]) -> Result<Self, Error> {
        if rows.checked_mul(cols) != Some(values.len()) {
            return Err(Error::argument(
                "indices",
                format!("there are {} values", values.len()),
                format!("as many as {rows} rows of {cols} have"),
            ));
        }
        let mut buffer = memory.alloc(size_of_val(values))?;
        memory.write(&mut buffer, cast_slice(values))?;
        Self::new(memory, Arc::new(buffer), 0, [rows, cols], cols)
    }

    /// Rows and columns.
    pub(crate) fn shape(&self) -> [usize; 2] {
        [self.rows, self.cols]
    }

    /// Elements from one row to the next.
    pub(crate) fn row_stride(&self) -> usize {
        self.row_stride
    }

    /// The address of element `[0, 0]`.
    ///
    /// # Errors
    /// [`Error::Argument`] on `argument` if `memory` did not allocate it.
    pub(crate) fn checked_address(&self, memory: &M, argument: &'static str) -> Result<u64, Error> {
        check_owned_operand(memory, &self.buffer, argument)?;
        Ok(self.address(memory))
    }

    fn address(&self, memory: &M) -> u64 {
        memory.address(&self.buffer) + (self.origin * size_of::<i32>()) as u64
    }
}

/// Keys and values of the sequences of a batch, which grow from call to call; read by [`decode`](crate::decode()).
///
/// `kv_lens[b]` is the number of keys of sequence `b`, its queries' own included. Lengths and block table stay in the backend's
/// memory, so that work queued before may write them, and one CUDA graph serves all lengths. As nobody checks them, kernels
/// trust neither:
///
/// * A length below 0 or beyond the capacity, or a page below 0 or not below `num_pages` among those with keys that some query
///   of the sequence sees, **poisons the sequence**: its rows of o and lse are NaN, and a bit of [`faults`](Self::faults)
///   is set. Nothing outside the cache is read, and other sequences are not affected.
/// * Entries of the table beyond a sequence's length, or of pages that no query sees, are not looked at.
/// * Places that hold no key of the sequence, in its last page or in pages of nobody, may hold anything, NaN included.
///
/// ```
/// use ferroflash::{Backend, Cpu, ForwardOptions, HostTensor, Indices, KvCache, Layout, Mask, Shape, decode};
///
/// # fn main() -> Result<(), ferroflash::Error> {
/// let mut cpu = Cpu::new();
/// // Three pages of 2 places; the sequence has 3 keys: both places of page 2, then the first of page 0.
/// let pages = Shape { batch: 3, heads: 1, seq: 2, dim: 1 };
/// let k = HostTensor::from_f32(&[0.0; 6], pages, Layout::Bshd)?.upload(cpu.memory())?;
/// let v = HostTensor::from_f32(&[3.0, f32::NAN, 9.0, 9.0, 1.0, 2.0], pages, Layout::Bshd)?;
/// let v = v.upload(cpu.memory())?;
/// let table = Indices::upload(cpu.memory(), &[2, 0, -1], [1, 3])?;
/// let kv_lens = Indices::upload(cpu.memory(), &[3], [1, 1])?;
/// let cache = KvCache::paged(cpu.memory(), k, v, table, kv_lens)?;
///
/// let q = Shape { batch: 1, heads: 2, seq: 1, dim: 1 };
/// let q = HostTensor::from_f32(&[1.0, 2.0], q, Layout::Bshd)?.upload(cpu.memory())?;
/// let out = decode(&mut cpu, &q, &cache, &ForwardOptions::new().mask(Mask::Causal))?;
/// let o = out.o.download(cpu.memory())?;
/// assert!((o.get(0, 1, 0, 0) - 2.0).abs() < 1e-6); // the mean of 1, 2 and 3
/// assert!(!cache.faults(cpu.memory())?.any());
/// # Ok(())
/// # }
/// ```
pub struct KvCache<M: Memory> {
    pub(crate) k: Tensor<M>,
    pub(crate) v: Tensor<M>,
    block_table: Option<Indices<M>>,
    kv_lens: Indices<M>,
    scales: Option<[Tensor<M>; 2]>,
    status: Option<Arc<M::Buffer>>,
}

impl<M: Memory> fmt::Debug for KvCache<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvCache")
            .field("k", &self.k)
            .field("v", &self.v)
            .field("block_table", &self.block_table)
            .finish_non_exhaustive()
    }
}

/// What launches found wrong in a cache's arrays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheFaults {
    /// A page was below 0, or not below `num_pages`.
    pub bad_page: bool,
    /// A length was below 0, or beyond the capacity.
    pub bad_length: bool,
    /// A new key's position had no rotary angles.
    pub bad_position: bool,
    /// A new row's slot was below −1, or not one of the cache's.
    pub bad_slot: bool,
}

impl CacheFaults {
    /// The faults whose bits are set in `status`, what a launch leaves where
    /// [`CacheOperands::status`](crate::CacheOperands::status) says.
    pub const fn of_status(status: u32) -> Self {
        Self {
            bad_page: status & CacheFault::BadPage as u32 != 0,
            bad_length: status & CacheFault::BadLength as u32 != 0,
            bad_position: status & CacheFault::BadPosition as u32 != 0,
            bad_slot: status & CacheFault::BadSlot as u32 != 0,
        }
    }

    /// Whether there was one.
    pub const fn any(self) -> bool {
        self.bad_page || self.bad_length || self.bad_position || self.bad_slot
    }
}

impl<M: Memory> KvCache<M> {
    /// A cache in pages of any number of keys, 1 or more.
    ///
    /// # Arguments
    /// * `k`: `[num_pages, heads_kv, page_size, head_dim]` in any strides: vLLM's and FlashInfer's NHD and HND, K and V
    ///   interleaved.
    /// * `v`: `[num_pages, heads_kv, page_size, head_dim_v]`.
    /// * `block_table`: `[batch, max_pages]`; key `j` of sequence `b` lies in place `j % page_size` of page
    ///   `block_table[b][j / page_size]`.
    /// * `kv_lens`: `[batch, 1]` or `[1, batch]`, contiguous.
    ///
    /// # Errors
    /// [`Error::Argument`] naming what does not fit the others; [`Error::OutOfMemory`] or [`Error::Device`].
    pub fn paged(
        memory: &mut M,
        k: Tensor<M>,
        v: Tensor<M>,
        block_table: Indices<M>,
        kv_lens: Indices<M>,
    ) -> Result<Self, Error> {
        Self::new(memory, k, v, Some(block_table), kv_lens)
    }

    /// A cache in which each sequence has one batch entry, of which it uses the first keys.
    ///
    /// # Arguments
    /// * `k`: `[batch, heads_kv, capacity, head_dim]` in any strides, those of 0 included.
    /// * `v`: `[batch, heads_kv, capacity, head_dim_v]`.
    /// * `kv_lens`: `[batch, 1]` or `[1, batch]`, contiguous.
    ///
    /// # Errors
    /// As for [`paged`](Self::paged).
    pub fn contiguous(
        memory: &mut M,
        k: Tensor<M>,
        v: Tensor<M>,
        kv_lens: Indices<M>,
    ) -> Result<Self, Error> {
        Self::new(memory, k, v, None, kv_lens)
    }

    fn new(
        memory: &mut M,
        k: Tensor<M>,
        v: Tensor<M>,
        block_table: Option<Indices<M>>,
        kv_lens: Indices<M>,
    ) -> Result<Self, Error> {
        let is_row = kv_lens.rows == 1;
        let is_column = kv_lens.cols == 1 && kv_lens.row_stride == 1;
        if !is_row && !is_column && kv_lens.rows > 0 {
            let wrong = format!("it is {kv_lens:?}");
            let allowed = "a contiguous length of each sequence";
            return Err(Error::argument("kv_lens", wrong, allowed));
        }
        let batch = kv_lens.rows * kv_lens.cols;
        let rows = block_table.as_ref().map_or(batch, |table| table.rows);
        if rows != batch {
            let wrong = format!("it has {rows} rows");
            let allowed = format!("{batch}, one for each of kv_lens");
            return Err(Error::argument("block_table", wrong, allowed));
        }
        let mut status = memory.alloc(size_of::<u32>())?;
        memory.write(&mut status, &[0; size_of::<u32>()])?;
        Ok(Self {
            k,
            v,
            block_table,
            kv_lens,
            scales: None,
            status: Some(Arc::new(status)),
        })
    }

    /// The same cache, of e4m3 keys and values, whose numbers are multiplied with scales; without them the scales are 1. Several
    /// caches may share them.
    ///
    /// # Arguments
    /// * `k`, `v`: f32 `[num_pages or 1, heads_kv or 1, page_size or 1, 1]` in any strides; axes of 1 hold for all.
    pub fn with_scales(mut self, k: Tensor<M>, v: Tensor<M>) -> Self {
        self.scales = Some([k, v]);
        self
    }

    /// The same cache without a word in which launches say what they find wrong, as those who call by addresses may have none.
    #[doc(hidden)]
    pub fn without_status(self) -> Self {
        Self {
            status: None,
            ..self
        }
    }

    /// The scales of k and v, if it has some.
    pub fn scales(&self) -> Option<&[Tensor<M>; 2]> {
        self.scales.as_ref()
    }

    /// Their specs.
    pub(crate) fn scale_specs(&self) -> Option<[TensorSpec; 2]> {
        let scales = self.scales.as_ref()?;
        Some(scales.each_ref().map(|tensor| *tensor.spec()))
    }

    /// How it lies.
    pub fn layout(&self) -> CacheLayout {
        match &self.block_table {
            None => CacheLayout::Contiguous,
            Some(table) => CacheLayout::Paged {
                max_pages: table.cols,
                table_stride: table.row_stride,
            },
        }
    }

    /// Number of sequences.
    pub fn batch(&self) -> usize {
        self.kv_lens.rows * self.kv_lens.cols
    }

    /// The keys.
    pub fn k(&self) -> &Tensor<M> {
        &self.k
    }

    /// The values.
    pub fn v(&self) -> &Tensor<M> {
        &self.v
    }

    /// What launches on this cache have found wrong so far; waits for the work queued.
    ///
    /// # Errors
    /// [`Error::Device`], which may report the failure of an earlier launch; [`Error::Argument`] if another memory
    /// allocated the cache.
    pub fn faults(&self, memory: &mut M) -> Result<CacheFaults, Error> {
        let mut word = [0; size_of::<u32>()];
        if let Some(status) = &self.status {
            memory.read(status, &mut word)?;
        }
        Ok(CacheFaults::of_status(u32::from_le_bytes(word)))
    }

    /// The addresses of its arrays.
    ///
    /// # Errors
    /// [`Error::Argument`] on one that `memory` did not allocate.
    pub(crate) fn operands(&self, memory: &M) -> Result<CacheOperands, Error> {
        if let Some(status) = &self.status {
            check_owned_operand(memory, status, "cache")?;
        }
        if let Some(scales) = &self.scales {
            for tensor in scales {
                tensor.check_owned(memory, "scales")?;
            }
        }
        let scales = self.scales.as_ref();
        let scales = scales.map(|both| both.each_ref().map(|tensor| tensor.address(memory)));
        let table = self.block_table.as_ref();
        let table = table.map(|table| table.checked_address(memory, "block_table"));
        Ok(
            CacheOperands::new(self.kv_lens.checked_address(memory, "kv_lens")?)
                .block_table(table.transpose()?)
                .status(self.status.as_ref().map(|status| memory.address(status)))
                .scales(scales),
        )
    }
}
