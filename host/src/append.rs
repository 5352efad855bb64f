//! Appending keys and values to a cache.

use crate::kv_cache::Indices;
use crate::memory::Memory;
use crate::problem::{AppendProblem, RotaryStyle};
use crate::{Backend, CacheOperands, Error, KvCache, Tensor};

/// What [`append_kv`] writes: new rows of k and v, how they are rotated, and the queries that go with them.
pub struct NewKv<'a, M: Memory> {
    k: &'a Tensor<M>,
    v: &'a Tensor<M>,
    rotary: Option<Rotary<'a, M>>,
    q: Option<(&'a Tensor<M>, &'a mut Tensor<M>)>,
    slots: Option<&'a Indices<M>>,
}

/// Tables of cosines and sines by position.
struct Rotary<'a, M: Memory> {
    cos: &'a Tensor<M>,
    sin: &'a Tensor<M>,
    style: RotaryStyle,
}

impl<'a, M: Memory> NewKv<'a, M> {
    /// New rows, which are written as they are.
    ///
    /// # Arguments
    /// * `k`: `[batch, heads_kv, seq, head_dim]` in any strides, of the cache's dtype.
    /// * `v`: `[batch, heads_kv, seq, head_dim_v]`.
    pub fn new(k: &'a Tensor<M>, v: &'a Tensor<M>) -> Self {
        Self {
            k,
            v,
            rotary: None,
            q: None,
            slots: None,
        }
    }

    /// Rotates keys by the angles of their positions; key `j` of a sequence has position `j`.
    ///
    /// # Arguments
    /// * `cos`, `sin`: f32 `[1, 1, positions, rotary_dim / 2]` in any strides. Components from rotary_dim on stay as they are.
    pub fn rotary(mut self, cos: &'a Tensor<M>, sin: &'a Tensor<M>, style: RotaryStyle) -> Self {
        self.rotary = Some(Rotary { cos, sin, style });
        self
    }

    /// Rotates queries too, into `rotated`: those of row `i` as key `kv_lens[b] − seq + i`. Those of padding are copied.
    ///
    /// # Arguments
    /// * `q`, `rotated`: `[batch, heads_q, seq, head_dim]`; not the same elements.
    pub fn rotated_q(mut self, q: &'a Tensor<M>, rotated: &'a mut Tensor<M>) -> Self {
        self.q = Some((q, rotated));
        self
    }

    /// Writes rows to slots, instead of where the cache's block table says (vLLM's slot mapping).
    ///
    /// # Arguments
    /// * `slots`: `[batch, seq]`; slot `s` is place `s % page_size` of page `s / page_size`, and −1 is nowhere.
    pub fn slots(mut self, slots: &'a Indices<M>) -> Self {
        self.slots = Some(slots);
        self
    }
}

/// Writes the new keys and values of a step into a cache, with rotary embedding of keys and queries.
///
/// The cache's `kv_lens` count the new rows already, as [`decode`](crate::decode()) has it: row `i` of `seq` becomes key
/// `kv_lens[b] − seq + i`, and rows before key 0, of sequences with fewer new rows, are padding that is not written. Pairs of
/// components are rotated in f32 and rounded once.
///
/// Lengths, block table and slots are read on the device and not trusted. A row that they send nowhere is not written, and a
/// bit of [`KvCache::faults`] is set: a length below 0 or beyond the capacity (its queries become NaN), a page or a slot
/// that does not exist, or a position beyond the tables of cosines (its queries become NaN). Where two rows go to one
/// place, its elements are those of one of them.
///
/// For an e4m3 cache numbers are rotated in f32, divided by their key's scale ([`KvCache::with_scales`]) and rounded to the nearest
/// code, of two to the even one; beyond 448 they become that.
///
/// # Errors
/// [`Error::Argument`] naming the operand that is refused; [`Error::Device`].
///
/// ```
/// use ferroflash::{Backend, Cpu, HostTensor, Indices, KvCache, Layout, NewKv, Shape, append_kv};
///
/// # fn main() -> Result<(), ferroflash::Error> {
/// let mut cpu = Cpu::new();
/// let pages = Shape { batch: 2, heads: 1, seq: 2, dim: 1 };
/// let pages = HostTensor::from_f32(&[0.0; 4], pages, Layout::Bshd)?.upload(cpu.memory())?;
/// let v_pages = HostTensor::from_f32(&[0.0; 4], pages.spec().shape, Layout::Bshd)?;
/// let v_pages = v_pages.upload(cpu.memory())?;
/// let table = Indices::upload(cpu.memory(), &[1, 0], [1, 2])?;
/// // Three keys, of which two are new: the second place of page 1, and the first of page 0.
/// let kv_lens = Indices::upload(cpu.memory(), &[3], [1, 1])?;
/// let mut cache = KvCache::paged(cpu.memory(), pages, v_pages, table, kv_lens)?;
///
/// let new = Shape { batch: 1, heads: 1, seq: 2, dim: 1 };
/// let new = HostTensor::from_f32(&[5.0, 6.0], new, Layout::Bshd)?.upload(cpu.memory())?;
/// append_kv(&mut cpu, NewKv::new(&new, &new), &mut cache)?;
/// let k = cache.k().download(cpu.memory())?;
/// assert_eq!(k.to_f32(Layout::Bshd), [6.0, 0.0, 0.0, 5.0]);
/// # Ok(())
/// # }
/// ```
pub fn append_kv<B: Backend + ?Sized>(
    backend: &mut B,
    new: NewKv<'_, B::Memory>,
    cache: &mut KvCache<B::Memory>,
) -> Result<(), Error> {
    let problem = problem(&new, cache)?;
    let memory = backend.memory();
    let operands = operands(memory, &new, cache)?;
    // SAFETY: the problem was checked with these tensors' specs, and every element of theirs lies in this memory. What is written
    // shares no element with anything else, as was checked, and the caller lends it mutably.
    unsafe { backend.append_raw(&problem, &operands) }
}

fn problem<M: Memory>(new: &NewKv<'_, M>, cache: &KvCache<M>) -> Result<AppendProblem, Error> {
    let (k, v) = (*new.k.spec(), *new.v.spec());
    let sequences = cache.batch();
    if k.shape.batch != sequences {
        let wrong = format!("it has {sequences} lengths");
        let allowed = format!("{}, one for each batch entry of k", k.shape.batch);
        return Err(Error::argument("kv_lens", wrong, allowed));
    }
    let mut problem = AppendProblem::new(k, v, *cache.k.spec(), *cache.v.spec(), cache.layout())?;
    if let Some(Rotary { cos, sin, style }) = &new.rotary {
        problem = problem.rotary(*cos.spec(), *sin.spec(), *style)?;
    }
    if let Some((q, rotated)) = &new.q {
        problem = problem.rotated_q(*q.spec(), *rotated.spec())?;
    }
    if let Some([k, v]) = cache.scale_specs() {
        problem = problem.scales(k, v)?;
    }
    if let Some(slots) = new.slots {
        let [rows, cols] = slots.shape();
        if [rows, cols] != [k.shape.batch, k.shape.seq] {
            let wrong = format!("there are {rows} rows of {cols}");
            let allowed = format!(
                "{} rows of {}, one slot a new row",
                k.shape.batch, k.shape.seq
            );
            return Err(Error::argument("slots", wrong, allowed));
        }
        problem = problem.slots(slots.row_stride());
    }
    Ok(problem)
}

/// The addresses, if all lie in `memory` and what is written shares no element with the rest.
fn operands<M: Memory>(
    memory: &M,
    new: &NewKv<'_, M>,
    cache: &KvCache<M>,
) -> Result<AppendOperands, Error> {
    let tables = new.rotary.as_ref().map(|rotary| [rotary.cos, rotary.sin]);
    let mut read = vec![("k", new.k), ("v", new.v)];
    if let Some([k, v]) = cache.scales() {
        read.extend([("k_scales", k), ("v_scales", v)]);
    }
    if let Some([cos, sin]) = tables {
        read.extend([("cos", cos), ("sin", sin)]);
    }
    let mut written = vec![("k_cache", &cache.k), ("v_cache", &cache.v)];
    if let Some((q, rotated)) = &new.q {
        read.push(("q", q));
        written.push(("rotated", rotated));
    }
    for (argument, tensor) in read.iter().chain(&written) {
        tensor.check_owned(memory, argument)?;
    }
    for (number, (argument, tensor)) in written.iter().enumerate() {
        let mut others = read.iter().chain(&written[..number]);
        if let Some((other, _)) = others.find(|(_, other)| tensor.may_share_elements(other)) {
            let wrong = format!("it may share elements with {other}");
            let allowed = "elements of its own, as it is written";
            return Err(Error::argument(*argument, wrong, allowed));
        }
    }
    let address = |tensor: &Tensor<M>| tensor.address(memory);
    let slots = new
        .slots
        .map(|slots| slots.checked_address(memory, "slots"));
    Ok(AppendOperands {
        k: address(new.k),
        v: address(new.v),
        k_cache: address(&cache.k),
        v_cache: address(&cache.v),
        cache: cache.operands(memory)?,
        rotary: tables.map(|tables| tables.map(address)),
        q: (new.q.as_ref()).map(|(q, rotated)| [address(q), address(rotated)]),
        slots: slots.transpose()?,
    })
}

/// Addresses of an [`AppendProblem`]'s operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AppendOperands {
    /// New keys.
    pub k: u64,
    /// New values.
    pub v: u64,
    /// The cache's keys; written.
    pub k_cache: u64,
    /// The cache's values; written.
    pub v_cache: u64,
    /// The cache's lengths, block table and status.
    pub cache: CacheOperands,
    /// Cosines and sines.
    pub rotary: Option<[u64; 2]>,
    /// Queries, and what they become, which is written.
    pub q: Option<[u64; 2]>,
    /// i32 `[batch, seq]`.
    pub slots: Option<u64>,
}

impl AppendOperands {
    /// The addresses of an append without rotation, queries and slots.
    pub const fn new(k: u64, v: u64, k_cache: u64, v_cache: u64, cache: CacheOperands) -> Self {
        Self {
            k,
            v,
            k_cache,
            v_cache,
            cache,
            rotary: None,
            q: None,
            slots: None,
        }
    }

    /// Sets [`rotary`](Self::rotary).
    pub fn rotary(mut self, addresses: impl Into<Option<[u64; 2]>>) -> Self {
        self.rotary = addresses.into();
        self
    }

    /// Sets [`q`](Self::q).
    pub fn q(mut self, addresses: impl Into<Option<[u64; 2]>>) -> Self {
        self.q = addresses.into();
        self
    }

    /// Sets [`slots`](Self::slots).
    pub fn slots(mut self, address: impl Into<Option<u64>>) -> Self {
        self.slots = address.into();
        self
    }

    /// Refuses addresses that a problem needs and that are not given.
    pub(crate) fn check(&self, problem: &AppendProblem) -> Result<(), Error> {
        self.cache.check(problem.layout, problem.scales.is_some())?;
        for (argument, is_needed, is_given) in [
            ("rotary", problem.rotary.is_some(), self.rotary.is_some()),
            ("q", problem.q.is_some(), self.q.is_some()),
            (
                "slots",
                problem.slots_stride.is_some(),
                self.slots.is_some(),
            ),
        ] {
            if is_needed != is_given {
                let wrong = format!("given: {is_given}");
                let allowed = format!("{is_needed}, as the problem has it");
                return Err(Error::argument(argument, wrong, allowed));
            }
        }
        Ok(())
    }
}
