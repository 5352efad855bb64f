use ferroflash::{AppendOperands, AppendProblem, CacheLayout, CacheOperands, DType, Error};
use ferroflash::{ForwardOptions, Problem, RotaryStyle, TensorSpec, TreeMask};

/// A tensor: its address, and how it lies there.
pub type Operand = (u64, TensorSpec);

/// What a cache has beside k and v.
#[derive(Clone, Copy, Debug)]
pub struct Cache {
    /// Whether k and v are e4m3, and not of the dtype of queries or of new rows.
    pub is_e4m3: bool,
    /// The address of its lengths, i32 `[batch]`.
    pub kv_lens: u64,
    /// Where its pages are told, if it has pages.
    pub block_table: Option<BlockTable>,
    /// The address of a tree's words, u64 `[batch or 1, seq_q]`, and whether each sequence has its own.
    pub tree: Option<(u64, bool)>,
    /// Scales of k and of v, `[pages or 1, heads_kv or 1, page_size or 1, 1]`, in f32.
    pub scales: Option<[Operand; 2]>,
}

/// A block table, i32 `[batch, max_pages]`: its address, its columns, and the elements from one row to the next.
pub type BlockTable = (u64, usize, usize);

/// New rows for a cache.
#[derive(Clone, Copy, Debug)]
pub struct NewRows {
    /// k, v, and the cache's k and v.
    pub operands: [Operand; 4],
    /// Cosines and sines, f32 `[1, 1, positions, rotary_dim / 2]`, by which k is rotated, and whether the components that are rotated
    /// together are neighbours.
    pub rotary: Option<([Operand; 2], bool)>,
    /// q, which is rotated as k is, and what it becomes.
    pub q: Option<[Operand; 2]>,
    /// The address of slots, i32 `[batch, seq]`, and the elements from one of its rows to the next.
    pub slots: Option<(u64, usize)>,
}

impl Cache {
    /// Attention of q to it. Of k and v the dtype is not read.
    ///
    /// # Errors
    /// Those of [`Problem::decode`] and [`Problem::with_cache_scales`].
    #[rustfmt::skip] // as operands go
    pub fn problem(
        &self, [q, k, v, o]: [TensorSpec; 4], options: &ForwardOptions,
    ) -> Result<Problem, Error> {
        let [k, v] = [k, v].map(|spec| self.spec(spec, q.dtype));
        let tree = |(_, is_batched): (u64, bool)| {
            TreeMask::on_device(q.shape.seq, is_batched.then_some(q.shape.batch))
        };
        let options = &options.clone().tree(self.tree.map(tree));
        let problem = Problem::decode(q, k, v, o, self.layout(), options)?;
        match self.scales {
            None => Ok(problem),
            Some([k, v]) => problem.with_cache_scales(k.1, v.1),
        }
    }

    /// Its addresses.
    pub fn operands(&self) -> CacheOperands {
        CacheOperands::new(self.kv_lens)
            .block_table(self.block_table.map(|(address, ..)| address))
            .scales(self.scales.map(addresses))
    }

    /// Writing `rows` into it.
    ///
    /// # Errors
    /// Those of [`AppendProblem`]'s functions.
    pub fn append(&self, rows: &NewRows) -> Result<(AppendProblem, AppendOperands), Error> {
        let [k, v, k_cache, v_cache] = rows.operands;
        let caches = [k_cache, v_cache].map(|cache| self.spec(cache.1, k.1.dtype));
        let mut problem = AppendProblem::new(k.1, v.1, caches[0], caches[1], self.layout())?;
        if let Some(([cos, sin], is_interleaved)) = rows.rotary {
            let style = match is_interleaved {
                true => RotaryStyle::Interleaved,
                false => RotaryStyle::Neox,
            };
            problem = problem.rotary(cos.1, sin.1, style)?;
        }
        if let Some([q, rotated]) = rows.q {
            problem = problem.rotated_q(q.1, rotated.1)?;
        }
        if let Some([k, v]) = self.scales {
            problem = problem.scales(k.1, v.1)?;
        }
        if let Some((_, stride)) = rows.slots {
            problem = problem.slots(stride);
        }
        let operands = AppendOperands::new(k.0, v.0, k_cache.0, v_cache.0, self.operands())
            .rotary(rows.rotary.map(|(tables, _)| addresses(tables)))
            .q(rows.q.map(addresses))
            .slots(rows.slots.map(|(address, _)| address));
        Ok((problem, operands))
    }

    fn layout(&self) -> CacheLayout {
        match self.block_table {
            None => CacheLayout::Contiguous,
            Some((_, max_pages, table_stride)) => CacheLayout::Paged {
                max_pages,
                table_stride,
            },
        }
    }

    /// k or v, beside tensors of `dtype`.
    fn spec(&self, of: TensorSpec, dtype: DType) -> TensorSpec {
        let dtype = if self.is_e4m3 { DType::E4m3 } else { dtype };
        TensorSpec { dtype, ..of }
    }
}

fn addresses(operands: [Operand; 2]) -> [u64; 2] {
    operands.map(|(address, _)| address)
}
