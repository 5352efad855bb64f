//! A cache to time: normal values everywhere, in shuffled pages or in one piece a sequence.

use super::decode_case::{DecodeCase, QRows};
use super::decode_place::Place;
use super::fill::normal;
use super::scales::ScaleKind;
use ferroflash::{DType, Error, ForwardOptions, Layout, Shape};

/// Sizes of attention to a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Element type of q and o.
    pub dtype: DType,
    /// That of k and v: of q, or e4m3.
    pub kv_dtype: DType,
    /// What scales of an e4m3 cache are for.
    pub scales: Option<ScaleKind>,
    /// Keys of each sequence.
    pub kv_lens: Vec<usize>,
    /// Queries of each sequence.
    pub seq_q: usize,
    /// Query heads.
    pub heads: usize,
    /// Heads of k and v.
    pub heads_kv: usize,
    /// Components of q and k.
    pub head_dim: usize,
    /// Components of v and o.
    pub head_dim_v: usize,
    /// Keys of a page; `None` for one piece a sequence.
    pub page_size: Option<usize>,
    /// Axis order of q, k, v and o; of a page it is that of its keys and heads.
    pub layout: Layout,
}

/// Seeds of q, k, v and of the order of pages.
const SEEDS: [u64; 4] = [1, 2, 3, 4];

impl CacheShape {
    /// The case with its inputs.
    ///
    /// # Errors
    /// [`Error::Argument`] if a tensor would be too large.
    pub fn case(&self, options: ForwardOptions) -> Result<DecodeCase, Error> {
        let [q_seed, k_seed, v_seed, page_seed] = SEEDS;
        let place = Place::new(&self.kv_lens, self.page_size, page_seed, 0);
        let tensor = |dtype, batch, heads, seq, dim, seed| {
            let shape = Shape {
                batch,
                heads,
                seq,
                dim,
            };
            normal(dtype, shape, self.layout, seed)
        };
        let batch = self.kv_lens.len();
        let (pages, rows) = (place.pages, place.page_size);
        let of_cache = |dim, seed| tensor(self.kv_dtype, pages, self.heads_kv, rows, dim, seed);
        let k = of_cache(self.head_dim, k_seed)?;
        let scales = match self.scales {
            None => None,
            Some(kind) => {
                let shape = k.spec().shape;
                Some([kind.make(shape, k_seed)?, kind.make(shape, v_seed)?])
            }
        };
        Ok(DecodeCase {
            q_rows: QRows::of_entries(batch, self.seq_q),
            q: tensor(
                self.dtype,
                batch,
                self.heads,
                self.seq_q,
                self.head_dim,
                q_seed,
            )?,
            k,
            v: of_cache(self.head_dim_v, v_seed)?,
            scales,
            kv_lens: self.kv_lens.iter().map(|&len| len as i32).collect(),
            block_table: place.table.map(|table| (table, place.max_pages)),
            options,
        })
    }
}
