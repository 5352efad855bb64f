//! Attention to a cache: caches in pages and not, of any lengths, whose places beyond the keys hold what must not matter.

use std::fmt;

use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use super::arrangement::Arrangement;
use super::decode_case::{DecodeCase, QRows, pairs};
use super::decode_place::Place;
use super::fill::mix;
use super::foreign;
use super::scales::{ScaleKind, scale_of, spoil_unused};
use super::spec::AlibiSpec;
use super::tree::TreeSpec;
use ferroflash::{
    CuSeqlens, DType, Error, ForwardOptions, HostTensor, Mask, Shape, Sinks, TreeMask,
};

/// One case, small enough to print.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecodeSpec {
    /// Element type of q, k, v and o.
    #[serde(with = "foreign::dtype")]
    pub dtype: DType,
    /// Keys of each sequence.
    pub kv_lens: Vec<usize>,
    /// Queries of each sequence, where `queries` does not say.
    pub seq_q: usize,
    /// Queries of each sequence, which are then packed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queries: Option<Vec<usize>>,
    /// Keys of a page; `None` for a contiguous cache.
    pub page_size: Option<usize>,
    /// Heads of k and v.
    pub heads_kv: usize,
    /// Query heads to a head of k and v.
    pub group: usize,
    /// Components of q and k.
    pub head_dim: usize,
    /// Components of v and o.
    pub head_dim_v: usize,
    /// Which keys each query sees.
    #[serde(with = "foreign::mask")]
    pub mask: Mask,
    /// softmax_scale over its default of `1 / sqrt(head_dim)`, or the default itself.
    pub scale_factor: Option<f32>,
    /// Scores are capped at this.
    pub softcap: Option<f32>,
    /// Biases that grow with distance.
    pub alibi: Option<AlibiSpec>,
    /// Whether each head has a score without a key.
    pub sinks: bool,
    /// Which drafts the queries see, where `queries` does not say how many there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<TreeSpec>,
    /// Whether keys and values are e4m3 codes, and what their scales are for.
    pub e4m3: Option<ScaleKind>,
    /// What the keys are.
    pub keys: KeyKind,
    /// Arrangement of q, k and v in memory.
    pub arrangements: [Arrangement; 3],
    /// Seed of values, of the order of pages and of what lies in unused places.
    pub seed: u64,
}

/// Contents of the keys, and of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyKind {
    /// Normal numbers.
    Random,
    /// The last key that the last query sees outweighs all others.
    LastDominates,
    /// Keys whose scores grow from one to the next, so that maxima move all the time.
    Growing,
    /// Keys whose scores fall, so that they do where blocks are taken from the last one on.
    Falling,
    /// Normal numbers, but for a NaN or an infinity in each head's keys and in its values.
    NonFinite,
}

impl KeyKind {
    /// Every kind.
    pub const ALL: [Self; 5] = [
        Self::Random,
        Self::LastDominates,
        Self::Growing,
        Self::Falling,
        Self::NonFinite,
    ];
}

impl DecodeSpec {
    /// A plain case: bf16, 4 query heads on 2, head_dim 64, causal, pages of 16.
    pub fn plain(kv_lens: &[usize]) -> Self {
        Self {
            dtype: DType::Bf16,
            kv_lens: kv_lens.to_vec(),
            seq_q: 1,
            queries: None,
            page_size: Some(16),
            heads_kv: 2,
            group: 2,
            head_dim: 64,
            head_dim_v: 64,
            mask: Mask::Causal,
            scale_factor: None,
            softcap: None,
            alibi: None,
            sinks: false,
            tree: None,
            e4m3: None,
            keys: KeyKind::Random,
            arrangements: [Arrangement::BSHD; 3],
            seed: 7,
        }
    }

    /// Whether there may be a tree: of as many drafts for each sequence, and not too many.
    fn may_branch(&self) -> bool {
        self.queries.is_none() && (1..=TreeMask::MOST_DRAFTS).contains(&self.seq_q)
    }

    fn heads_q(&self) -> usize {
        self.heads_kv * self.group
    }

    /// Queries of each sequence.
    pub fn q_counts(&self) -> Vec<usize> {
        let all = || vec![self.seq_q; self.kv_lens.len()];
        self.queries.clone().unwrap_or_else(all)
    }

    /// The rows of q that are each sequence's.
    fn q_rows(&self) -> Vec<QRows> {
        let Some(queries) = &self.queries else {
            return QRows::of_entries(self.kv_lens.len(), self.seq_q);
        };
        let mut end = 0;
        let mut behind_the_last = |count: &usize| {
            let begin = end;
            end += count;
            QRows {
                batch: 0,
                rows: begin..end,
            }
        };
        queries.iter().map(&mut behind_the_last).collect()
    }

    fn normals(&self, stream: u64) -> impl FnMut() -> f32 + use<> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(mix(self.seed, stream));
        move || rng.sample(StandardNormal)
    }

    /// Makes the inputs. What sequence `b` holds depends on the seed, on `b` and on its length alone: not on pages.
    ///
    /// # Errors
    /// [`Error::Argument`] if a buffer would be too large.
    pub fn build(&self) -> Result<DecodeCase, Error> {
        let batch = self.kv_lens.len();
        let place = Place::new(&self.kv_lens, self.page_size, self.seed, self.seed as usize);
        let shape = |batch, heads, seq, dim| Shape {
            batch,
            heads,
            seq,
            dim,
        };
        let [of_q, of_k, of_v] = self.arrangements;
        let q_rows = self.q_rows();
        let (entries, rows) = match &self.queries {
            None => (batch, self.seq_q),
            Some(queries) => (1, queries.iter().sum()),
        };
        let q_shape = shape(entries, self.heads_q(), rows, self.head_dim);
        let mut q = of_q.allocate(self.dtype, q_shape)?;
        let (pages, rows) = (place.pages, place.page_size);
        let of_cache = self.e4m3.map_or(self.dtype, |_| DType::E4m3);
        let k_shape = shape(pages, self.heads_kv, rows, self.head_dim);
        let mut k = of_k.allocate(of_cache, k_shape)?;
        let mut v = of_v.allocate(of_cache, shape(pages, self.heads_kv, rows, self.head_dim_v))?;
        let scales = |stream| {
            let kind = self.e4m3?;
            let made = kind.make(k_shape, mix(self.seed, stream));
            Some(made.map(|mut scales| {
                spoil_unused(&mut scales, &place, &self.kv_lens);
                scales
            }))
        };
        let scales = match (scales(501).transpose()?, scales(502).transpose()?) {
            (Some(k), Some(v)) => Some([k, v]),
            _ => None,
        };
        let stale = [f32::NAN, f32::INFINITY, 3e4, f32::NEG_INFINITY];
        for (number, tensor) in [&mut k, &mut v].into_iter().enumerate() {
            let mut at = self.seed as usize % stale.len() + number;
            tensor.fill(|| {
                at += 1;
                stale[at / 7 % stale.len()]
            });
        }
        for (index, &kv_len) in self.kv_lens.iter().enumerate() {
            let scales = scales.as_ref();
            let at = (index, &q_rows[index]);
            self.fill_sequence(at, kv_len, &place, [&mut q, &mut k, &mut v], scales);
        }
        let default_scale = 1.0 / (self.head_dim as f32).sqrt();
        let slopes = |alibi: AlibiSpec| alibi.slopes(batch, self.heads_q());
        let mut options = ForwardOptions::new()
            .mask(self.mask)
            .softcap(self.softcap)
            .alibi(self.alibi.map(slopes).transpose()?)
            .softmax_scale(self.scale_factor.map(|factor| factor * default_scale));
        if let Some(queries) = &self.queries {
            options = options.cu_seqlens(CuSeqlens::of_queries(queries.iter().copied())?);
        }
        if let Some(tree) = self.tree.filter(|_| self.may_branch()) {
            options.modifiers.tree = Some(tree.make(batch, self.seq_q, self.seed)?);
        }
        if self.sinks {
            let sinks: Vec<_> = (0..self.heads_q())
                .map(|head| head as f32 * 0.7 - 1.0)
                .collect();
            options.modifiers.sinks = Some(Sinks::per_head(&sinks)?);
        }
        Ok(DecodeCase {
            q,
            q_rows,
            k,
            v,
            scales,
            block_table: place.table.map(|table| (table, place.max_pages)),
            kv_lens: self.kv_lens.iter().map(|&len| len as i32).collect(),
            options,
        })
    }

    /// Writes the queries, keys and values of a sequence.
    fn fill_sequence(
        &self,
        (index, q_rows): (usize, &QRows),
        kv_len: usize,
        place: &Place,
        [q, k, v]: [&mut HostTensor; 3],
        scales: Option<&[HostTensor; 2]>,
    ) {
        let stream = 16 * index as u64;
        let mut normal = self.normals(stream);
        for head in 0..self.heads_q() {
            for (row, dim) in pairs(q_rows.rows.len(), self.head_dim) {
                q.set(q_rows.batch, head, q_rows.rows.start + row, dim, normal());
            }
        }
        for head in 0..self.heads_kv {
            // Towards the last query of the group's first head.
            let towards = |q: &HostTensor, dim| match q_rows.rows.clone().last() {
                None => 0.0,
                Some(last) => q.get(q_rows.batch, head * self.group, last, dim),
            };
            let mut keys = self.normals(mix(stream, 1 + head as u64));
            let mut values = self.normals(mix(stream, 101 + head as u64));
            for key in 0..kv_len {
                let (page, row) = place.of(index, key);
                let part = match self.keys {
                    KeyKind::Random | KeyKind::NonFinite => 0.0,
                    KeyKind::LastDominates if key + 1 == kv_len => 2.0,
                    KeyKind::LastDominates => 0.0,
                    KeyKind::Growing => 2.0 * key as f32 / kv_len as f32,
                    KeyKind::Falling => 2.0 - 2.0 * key as f32 / kv_len as f32,
                };
                let at = [page, head, row];
                let k_scale = scale_of(scales.map(|[k, _]| k), at);
                let v_scale = scale_of(scales.map(|[_, v]| v), at);
                k.set_row(page, head, row, |dim| {
                    (keys() + part * towards(q, dim)) / k_scale
                });
                v.set_row(page, head, row, |_| values() / v_scale);
            }
            if self.keys == KeyKind::NonFinite && kv_len > 0 {
                let mut rng = Xoshiro256PlusPlus::seed_from_u64(mix(stream, 201 + head as u64));
                // Among the drafts, of which there is one for each query, where not all of them see all.
                let first = match self.tree {
                    None => 0,
                    Some(_) => kv_len.saturating_sub(q_rows.rows.len().max(1)),
                };
                for (tensor, dims) in [(&mut *k, self.head_dim), (&mut *v, self.head_dim_v)] {
                    let (page, row) = place.of(index, rng.random_range(first..kv_len));
                    let value = if rng.random() {
                        f32::NAN
                    } else {
                        f32::INFINITY
                    };
                    tensor.set(page, head, row, rng.random_range(0..dims), value);
                }
            }
        }
    }
}

impl fmt::Display for DecodeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            dtype,
            kv_lens,
            seq_q,
            queries,
            page_size,
            heads_kv,
            head_dim,
            head_dim_v,
            mask,
            tree,
            e4m3,
            keys,
            ..
        } = self;
        let queries = match queries {
            None => seq_q.to_string(),
            Some(queries) => format!("packed {queries:?}"),
        };
        let heads_q = self.heads_q();
        let dtype = dtype.name();
        write!(
            f,
            "{dtype} {queries}x{kv_lens:?} h{heads_q}/{heads_kv} d{head_dim}/{head_dim_v} {mask} pages {page_size:?} keys {keys:?}"
        )?;
        if let Some(tree) = tree {
            write!(f, " {tree:?}")?;
        }
        match e4m3 {
            None => Ok(()),
            Some(kind) => write!(f, " e4m3 with scales by {kind:?}"),
        }
    }
}
