//! Appending to a cache: new rows of sequences of any lengths, rotated or not, by block table or slots.

use std::fmt;

use super::arrangement::Arrangement;
use super::decode::DecodeSpec;
use super::decode_case::DecodeCase;
use super::fill::{mix, normal};
use super::scales::scale_of;
use crate::oracle::rotated_row;
use ferroflash::{
    Backend, CacheFaults, DType, Error, HostTensor, Indices, KvCache, Layout, NewKv, RotaryStyle,
    Shape, append_kv,
};

/// One case, small enough to print.
#[derive(Clone, Debug, PartialEq)]
pub struct AppendSpec {
    /// The cache, its lengths with the new rows, and the queries; `seq_q` is the number of new rows.
    pub cache: DecodeSpec,
    /// How rows are rotated, and how many of their components.
    pub rotary: Option<(RotaryStyle, usize)>,
    /// Whether queries are rotated too.
    pub rotates_q: bool,
    /// Whether rows go to slots; every seventh to none then.
    pub by_slots: bool,
    /// Arrangement of the new k and v and of rotated queries in memory.
    pub arrangements: [Arrangement; 3],
}

/// A case with its inputs.
#[derive(Clone, Debug)]
pub struct AppendCase {
    /// The cache before, with NaN, ∞ and values where no key lies.
    pub cache: DecodeCase,
    /// New keys.
    pub k: HostTensor,
    /// New values.
    pub v: HostTensor,
    /// Cosines and sines by position, and how they are used.
    pub rotary: Option<(RotaryStyle, [HostTensor; 2])>,
    /// `[batch, seq]`.
    pub slots: Option<Vec<i32>>,
    /// What queries become, before: of q's shape.
    pub rotated_q: Option<HostTensor>,
}

/// What a run leaves.
#[derive(Clone, Debug)]
pub struct Appended {
    /// All pages of keys.
    pub k: HostTensor,
    /// All pages of values.
    pub v: HostTensor,
    /// Queries, rotated.
    pub rotated_q: Option<HostTensor>,
    /// What was found wrong.
    pub faults: CacheFaults,
}

impl AppendSpec {
    /// A plain case: 2 new rows, half of the components rotated in halves, with queries.
    pub fn plain(kv_lens: &[usize]) -> Self {
        let cache = DecodeSpec {
            seq_q: 2,
            ..DecodeSpec::plain(kv_lens)
        };
        Self {
            rotary: Some((RotaryStyle::Neox, cache.head_dim / 2)),
            cache,
            rotates_q: true,
            by_slots: false,
            arrangements: [Arrangement::BSHD; 3],
        }
    }

    /// Makes the inputs.
    ///
    /// # Errors
    /// [`Error::Argument`] if a buffer would be too large.
    pub fn build(&self) -> Result<AppendCase, Error> {
        let cache = self.cache.build()?;
        let spec = &self.cache;
        let (batch, seq) = (spec.kv_lens.len(), spec.seq_q);
        let shape = |heads, dim| Shape {
            batch,
            heads,
            seq,
            dim,
        };
        let new = |arrangement: Arrangement, dim, stream| {
            let shape = shape(spec.heads_kv, dim);
            let mut tensor = arrangement.allocate(spec.dtype, shape)?;
            let seed = mix(spec.seed, stream);
            let values = normal(DType::F32, shape, Layout::Bhsd, seed)?.to_f32(Layout::Bhsd);
            let mut values = values.into_iter();
            tensor.fill(|| values.next().unwrap_or(0.0));
            Ok::<_, Error>(tensor)
        };
        let [of_k, of_v, of_q] = self.arrangements;
        let longest = spec.kv_lens.iter().copied().max().unwrap_or(0);
        let rotary = self.rotary.map(|(style, rotary_dim)| {
            let tables = angles(longest.max(1), rotary_dim / 2, spec.seed)?;
            Ok::<_, Error>((style, tables))
        });
        let rotated_q = self.rotates_q.then(|| {
            let mut rotated =
                of_q.allocate(spec.dtype, shape(spec.heads_kv * spec.group, spec.head_dim))?;
            rotated.fill(|| 7.0);
            Ok::<_, Error>(rotated)
        });
        let mut case = AppendCase {
            k: new(of_k, spec.head_dim, 7001)?,
            v: new(of_v, spec.head_dim_v, 7002)?,
            cache,
            rotary: rotary.transpose()?,
            slots: None,
            rotated_q: rotated_q.transpose()?,
        };
        if self.by_slots {
            let page_size = case.cache.k.spec().shape.seq;
            let slot = |(number, (sequence, row))| match (number % 7, case.place(sequence, row)) {
                (3, _) | (_, None) => -1,
                (_, Some((page, place))) => (page * page_size + place) as i32,
            };
            let rows = (0..batch).flat_map(|sequence| (0..seq).map(move |row| (sequence, row)));
            case.slots = Some(rows.enumerate().map(slot).collect());
            // The table must not matter.
            if let Some((table, _)) = &mut case.cache.block_table {
                table.fill(i32::MAX);
            }
        }
        Ok(case)
    }
}

/// Cosines and sines of `positions` positions, with angles of the usual frequencies.
fn angles(positions: usize, pairs: usize, seed: u64) -> Result<[HostTensor; 2], Error> {
    let shape = Shape {
        batch: 1,
        heads: 1,
        seq: positions,
        dim: pairs,
    };
    let table = |of: fn(f64) -> f64| {
        let angle = |index: usize| {
            let (position, pair) = (index / pairs.max(1), index % pairs.max(1));
            let frequency = 10_000f64.powf(-(pair as f64) / pairs as f64);
            of((position as f64 + (seed % 100) as f64) * frequency) as f32
        };
        let values: Vec<f32> = (0..positions * pairs).map(angle).collect();
        HostTensor::from_f32(&values, shape, Layout::Bhsd)
    };
    Ok([table(f64::cos)?, table(f64::sin)?])
}

impl AppendCase {
    /// The key that new row `row` becomes, if it is no padding.
    fn key(&self, sequence: usize, row: usize) -> Option<usize> {
        let behind = self.k.spec().shape.seq - 1 - row;
        (self.cache.kv_lens[sequence] as usize).checked_sub(behind + 1)
    }

    /// Page and place of new row `row` by the block table, if it is no padding.
    pub fn place(&self, sequence: usize, row: usize) -> Option<(usize, usize)> {
        let key = self.key(sequence, row)?;
        let page_size = self.cache.k.spec().shape.seq;
        match &self.cache.block_table {
            None => Some((sequence, key)),
            Some((table, max_pages)) => {
                let page = table[sequence * max_pages + key / page_size];
                Some((page as usize, key % page_size))
            }
        }
    }

    /// Where new row `row` goes, if anywhere.
    fn target(&self, sequence: usize, row: usize) -> Option<(usize, usize)> {
        let Some(slots) = &self.slots else {
            return self.place(sequence, row);
        };
        self.key(sequence, row)?;
        let slot = slots[sequence * self.k.spec().shape.seq + row];
        let page_size = self.cache.k.spec().shape.seq;
        let slot = usize::try_from(slot).ok()?;
        Some((slot / page_size, slot % page_size))
    }

    /// Runs the case on `backend` and fetches what it has written.
    ///
    /// # Errors
    /// Those of [`append_kv`].
    pub fn run<B: Backend>(&self, backend: &mut B) -> Result<Appended, Error> {
        let cache = self.cache.cache(backend)?;
        self.run_on(backend, cache)
    }

    /// As [`run`](Self::run), to a cache that has been made.
    ///
    /// # Errors
    /// Those of [`append_kv`].
    pub fn run_on<B: Backend>(
        &self,
        backend: &mut B,
        mut cache: KvCache<B::Memory>,
    ) -> Result<Appended, Error> {
        let memory = backend.memory();
        let (k, v) = (self.k.upload(memory)?, self.v.upload(memory)?);
        let q = self.cache.q.upload(memory)?;
        let upload = |memory: &mut B::Memory, tensor: &HostTensor| tensor.upload(memory);
        let mut rotated_q = match &self.rotated_q {
            Some(rotated) => Some(upload(memory, rotated)?),
            None => None,
        };
        let tables = match &self.rotary {
            Some((style, [cos, sin])) => Some((*style, upload(memory, cos)?, upload(memory, sin)?)),
            None => None,
        };
        let shape = self.k.spec().shape;
        let slots = match &self.slots {
            Some(slots) => Some(Indices::upload(memory, slots, [shape.batch, shape.seq])?),
            None => None,
        };
        let mut new = NewKv::new(&k, &v);
        if let Some((style, cos, sin)) = &tables {
            new = new.rotary(cos, sin, *style);
        }
        if let Some(rotated) = &mut rotated_q {
            new = new.rotated_q(&q, rotated);
        }
        if let Some(slots) = &slots {
            new = new.slots(slots);
        }
        append_kv(backend, new, &mut cache)?;
        let memory = backend.memory();
        Ok(Appended {
            k: cache.k().download(memory)?,
            v: cache.v().download(memory)?,
            rotated_q: rotated_q
                .map(|rotated| rotated.download(memory))
                .transpose()?,
            faults: cache.faults(memory)?,
        })
    }

    /// Compares every element of a run's cache and queries: what is not written has the bits it had before.
    ///
    /// # Errors
    /// What is wrong, with its place.
    pub fn check(&self, run: &Appended) -> Result<(), String> {
        let shape = self.k.spec().shape;
        let mut expected = [self.cache.k.clone(), self.cache.v.clone()];
        for sequence in 0..shape.batch {
            for row in 0..shape.seq {
                let Some((page, place)) = self.target(sequence, row) else {
                    continue;
                };
                let at = (sequence, row, self.key(sequence, row));
                let (to, scales) = ((page, place), self.cache.scales.as_ref());
                let [k_scales, v_scales] = [0, 1].map(|i| scales.map(|both| &both[i]));
                self.check_heads("k", &self.k, at, &run.k, to, k_scales)?;
                let plain = (sequence, row, None);
                self.check_heads("v", &self.v, plain, &run.v, to, v_scales)?;
                // What was checked counts as expected.
                for (expected, found) in expected.iter_mut().zip([&run.k, &run.v]) {
                    for head in 0..shape.heads {
                        for dim in 0..expected.spec().shape.dim {
                            let value = found.get(page, head, place, dim);
                            expected.set(page, head, place, dim, value);
                        }
                    }
                }
            }
        }
        for (name, expected, found) in [("k", &expected[0], &run.k), ("v", &expected[1], &run.v)] {
            if let Some(place) = first_difference(expected, found) {
                return Err(format!("{name}: {place:?} changed"));
            }
        }
        let Some(rotated) = &run.rotated_q else {
            return Ok(());
        };
        for sequence in 0..shape.batch {
            for row in 0..shape.seq {
                let at = (sequence, row, self.key(sequence, row));
                self.check_heads("q", &self.cache.q, at, rotated, (sequence, row), None)?;
            }
        }
        Ok(())
    }

    /// Compares a row of all heads with that of `from`, rotated if it is that of a key.
    fn check_heads(
        &self,
        name: &str,
        from: &HostTensor,
        (sequence, row, key): (usize, usize, Option<usize>),
        found: &HostTensor,
        (batch, seq): (usize, usize),
        scales: Option<&HostTensor>,
    ) -> Result<(), String> {
        let (shape, dtype) = (from.spec().shape, found.spec().dtype);
        for head in 0..shape.heads {
            let values: Vec<f64> = (0..shape.dim)
                .map(|dim| f64::from(from.get(sequence, head, row, dim)))
                .collect();
            let (style, [cos, sin]) = match (&self.rotary, key) {
                (Some((style, tables)), Some(key)) => {
                    let pairs = tables[0].spec().shape.dim;
                    let row = |table: &HostTensor| {
                        let angle = |pair| f64::from(table.get(0, 0, key, pair));
                        (0..pairs).map(angle).collect::<Vec<_>>()
                    };
                    (*style, tables.each_ref().map(row))
                }
                _ => (RotaryStyle::Neox, [vec![], vec![]]),
            };
            let exact = rotated_row(&values, &cos, &sin, style, from.spec().dtype);
            let scale = f64::from(scale_of(scales, [batch, head, seq]));
            for (dim, exact) in exact.iter().enumerate() {
                let exact = match dtype {
                    DType::E4m3 => exact.as_code(scale),
                    _ => *exact,
                };
                let found = f64::from(found.get(batch, head, seq, dim));
                if !exact.allows(found) {
                    return Err(format!(
                        "{name}: row {row} of sequence {sequence}, head {head}, component {dim}: {found} for {exact:?}"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// The first place in which two tensors differ in a bit.
fn first_difference(a: &HostTensor, b: &HostTensor) -> Option<[usize; 4]> {
    let Shape {
        batch,
        heads,
        seq,
        dim,
    } = a.spec().shape;
    for place in 0..batch * heads * seq * dim {
        let at = [
            place / dim / seq / heads,
            place / dim / seq % heads,
            place / dim % seq,
            place % dim,
        ];
        let bits = |tensor: &HostTensor| {
            let value = tensor.get(at[0], at[1], at[2], at[3]);
            if value.is_nan() {
                u32::MAX
            } else {
                value.to_bits()
            }
        };
        if bits(a) != bits(b) {
            return Some(at);
        }
    }
    None
}

impl fmt::Display for AppendSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (cache, rotary) = (&self.cache, self.rotary);
        write!(
            f,
            "{cache}, rotary {rotary:?}, q {}, slots {}",
            self.rotates_q, self.by_slots
        )
    }
}
