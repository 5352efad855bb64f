//! Attention to keys and values in pages, as an operation of candle.

use candle::{CustomOp3, DType, Layout, Result, Shape, Tensor, bail};
use ferroflash::{CacheLayout, CacheOperands, DeviceLengths, ForwardOptions, Lengths};
use ferroflash::{Operands, Problem};

use crate::attention::Attention;
use crate::operand::{Operand, addresses, guards, same_dtype, spec};
use crate::operation::on_every_place;
use crate::place::Place;

/// Everything but q, k and v; it has no gradients.
pub struct Paged {
    options: ForwardOptions,
    /// Running sums of queries, u32 `[batch + 1]`, and the most of a sequence.
    sums_q: Tensor,
    longest_q: usize,
    /// Keys of each sequence, u32 `[batch]`.
    kv_lens: Tensor,
    /// u32 or i32 `[batch, max_pages]`.
    block_table: Tensor,
}

impl Paged {
    /// That of packed sequences, without slopes.
    pub fn of(attention: Attention, block_table: &Tensor) -> Result<Self> {
        let ([sums_q, sums_k], [longest_q, _]) = attention.packed.expect("they are packed");
        let batch = sums_q.elem_count() - 1;
        let is_table = matches!(block_table.dtype(), DType::U32 | DType::I32);
        if !is_table || block_table.rank() != 2 || block_table.dims()[0] != batch {
            bail!(
                "block_table: it is {:?} {:?}; it must be U32 or I32 [{batch}, max_blocks]",
                block_table.dtype(),
                block_table.dims()
            );
        }
        // On the device, as the sums are.
        let kv_lens = (sums_k.narrow(0, 1, batch)? - sums_k.narrow(0, 0, batch)?)?;
        Ok(Self {
            options: attention.options,
            sums_q,
            longest_q,
            kv_lens,
            block_table: block_table.contiguous()?,
        })
    }

    pub fn run(self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        q.apply_op3(k, v, self)
    }

    fn forward<P: Place>(
        &self,
        place: &P,
        dtypes: [DType; 3],
        [q, k, v]: [Operand<'_, P>; 3],
    ) -> Result<(P::Memory, Shape)> {
        let dtype = same_dtype(dtypes)?;
        for (name, layout, rank) in [("q", q.1, 3), ("k", k.1, 4), ("v", v.1, 4)] {
            if layout.dims().len() != rank {
                let axes = layout.dims().len();
                bail!("{name}: it has {axes} axes; it must have {rank}");
            }
        }
        let [q_spec, k_spec, v_spec] = [q, k, v].map(|(_, layout)| spec(dtype, layout));
        let (q_spec, k_spec, v_spec) = (q_spec?, k_spec?, v_spec?);
        let shape = Shape::from([q_spec.shape.seq, q_spec.shape.heads, v_spec.shape.dim].to_vec());
        let o_spec = spec(dtype, &Layout::contiguous(&shape))?;
        let (batch, max_pages) = self.block_table.dims2()?;
        let layout = CacheLayout::Paged {
            max_pages,
            table_stride: max_pages,
        };
        let mut options = self.options.clone();
        let lengths = DeviceLengths::cu_seqlens(batch, self.longest_q, 0);
        options.lengths = Lengths::from(lengths.map_err(candle::Error::wrap)?);
        let problem = Problem::decode(q_spec, k_spec, v_spec, o_spec, layout, &options);
        let problem = problem.map_err(candle::Error::wrap)?;
        let mut o = place.allocate(dtype, shape.elem_count())?;
        {
            let small = [&self.sums_q, &self.kv_lens, &self.block_table];
            let held = guards(small.map(Some));
            let [sums_q, kv_lens, table] = addresses(place, &held)?;
            let [sums_q, kv_lens, table] = [sums_q, kv_lens, table].map(|of| of.expect("given"));
            let [q, k, v] =
                [q, k, v].map(|(memory, layout)| place.read(memory, layout.start_offset()));
            let (q, k, v, o) = (q?, k?, v?, place.write(&mut o)?);
            let cache = CacheOperands::new(kv_lens.at).block_table(table.at);
            let operands = Operands::new(q.at, k.at, v.at, o.at)
                .cu_seqlens([sums_q.at; 2])
                .cache(cache);
            // SAFETY: every address is that of memory which is held here, of the shape and strides that candle says; o is new;
            // candle's stream orders whatever else uses them. What lies in the small arrays is not trusted.
            unsafe { place.launch(&problem, &operands)? };
        }
        Ok((o, shape))
    }
}

impl CustomOp3 for Paged {
    on_every_place!("ferroflash-paged");
}
