//! Attention as an operation of candle.

use std::sync::OnceLock;

use candle::{CustomOp3, DType, Layout, Result, Shape, Storage, Tensor, bail};
use ferroflash::{
    AlibiSlopes, BackwardOptions, DeviceLengths, ForwardOptions, GradientOperands, GradientSpecs,
    Lengths,
};
use ferroflash::{Mask, Operands, Precision, Problem};

use crate::operand::{Operand, addresses, guards, same_dtype, spec};
use crate::operation::on_every_place;
use crate::place::{Address, Place};

/// Attention with options by name, which go together; the crate's functions name some of them.
///
/// ```
/// use ferroflash_candle::{Attention, Precision};
/// # use candle::{Device, Tensor};
/// # fn main() -> candle::Result<()> {
/// # let [q, k, v] = [(); 3].map(|()| Tensor::randn(0f32, 1., (1, 5, 2, 8), &Device::Cpu).unwrap());
/// let attention = Attention::new(0.35).causal(true).softcap(30.0).precision(Precision::Ieee);
/// let o = attention.run(&q, &k, &v)?;
/// # assert_eq!(o.dims(), q.dims());
/// # Ok(())
/// # }
/// ```
pub struct Attention {
    pub(crate) options: ForwardOptions,
    /// f32, contiguous.
    slopes: Option<Tensor>,
    /// u32, contiguous; and the longest sequences.
    pub(crate) packed: Option<([Tensor; 2], [usize; 2])>,
    /// Once it has run: what its gradients are computed from.
    lse: OnceLock<Storage>,
}

impl Attention {
    /// softmax(q · kᵀ · `softmax_scale`) · v.
    #[must_use]
    pub fn new(softmax_scale: f32) -> Self {
        Self {
            options: ForwardOptions::new().softmax_scale(softmax_scale),
            slopes: None,
            packed: None,
            lse: OnceLock::new(),
        }
    }

    /// If `causal`, a query sees no key after its own position; the last query stands at the last key. Takes the place of
    /// [`Self::window`] then.
    #[must_use]
    pub fn causal(mut self, causal: bool) -> Self {
        if causal {
            self.options.mask = Mask::Causal;
        }
        self
    }

    /// A query sees at most `left` keys before its position and `right` after it; `None` leaves a side open. Takes the place of
    /// [`Self::causal`].
    #[must_use]
    pub fn window(mut self, left: Option<usize>, right: Option<usize>) -> Self {
        let side = |keys: usize| u32::try_from(keys).unwrap_or(u32::MAX);
        self.options.mask = Mask::within(left.map(side), right.map(side));
        self
    }

    /// Scores become `softcap · tanh(score / softcap)`; 0 leaves them as they are.
    #[must_use]
    pub fn softcap(mut self, softcap: f32) -> Self {
        self.options.softcap = Some(softcap).filter(|softcap| *softcap != 0.0);
        self
    }

    /// How closely products of f32 follow f32's own arithmetic. It says nothing of f16 and bf16, nor of the CPU.
    #[must_use]
    pub fn precision(mut self, precision: Precision) -> Self {
        self.options.precision = precision;
        self
    }

    /// ALiBi (Press et al. 2022) by slopes, f32 `[heads_q]` or `[batch, heads_q]`.
    ///
    /// # Errors
    /// Slopes of another dtype; [`Self::run`] refuses those of another shape.
    pub fn slopes(mut self, slopes: Option<&Tensor>) -> Result<Self> {
        if let Some(slopes) = slopes {
            if slopes.dtype() != DType::F32 {
                bail!(
                    "alibi_slopes: its dtype is {:?}; it must be F32",
                    slopes.dtype()
                );
            }
            self.slopes = Some(slopes.contiguous()?);
        }
        Ok(self)
    }

    /// q, k and v are packed sequences, `[total, heads, head_dim]`. `sums` are the running sums of their lengths in q and in k and v, u32
    /// `[batch + 1]`, and `longest` the lengths of the longest.
    ///
    /// # Errors
    /// Sums of another dtype or rank, or of two lengths.
    pub fn packed(mut self, sums: [&Tensor; 2], longest: [usize; 2]) -> Result<Self> {
        for (name, sums) in ["seqlens_q", "seqlens_k"].into_iter().zip(sums) {
            if sums.dtype() != DType::U32 || sums.rank() != 1 || sums.elem_count() == 0 {
                bail!(
                    "{name}: it is {:?} {:?}; it must be U32 [batch + 1]",
                    sums.dtype(),
                    sums.dims()
                );
            }
        }
        if sums[0].dims() != sums[1].dims() {
            bail!(
                "seqlens_k: its shape is {:?}; it must be {:?}, that of seqlens_q",
                sums[1].dims(),
                sums[0].dims()
            );
        }
        let [q, k] = sums;
        self.packed = Some(([q.contiguous()?, k.contiguous()?], longest));
        Ok(self)
    }

    /// o, of q's shape (but v's head_dim) and dtype; q, k and v have gradients.
    ///
    /// # Errors
    /// Operands that do not fit, by name.
    pub fn run(self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        q.apply_op3(k, v, self)
    }

    /// The library's options of a problem with `heads` heads of q.
    fn options(&self, heads: usize) -> Result<ForwardOptions> {
        let mut options = self.options.clone();
        if let Some(([sums, _], [longest_q, longest_k])) = &self.packed {
            let batch = sums.elem_count() - 1;
            let lengths = DeviceLengths::cu_seqlens(batch, *longest_q, *longest_k);
            options.lengths = Lengths::from(lengths.map_err(candle::Error::wrap)?);
        }
        if let Some(slopes) = &self.slopes {
            let batch = self
                .packed
                .as_ref()
                .map(|([sums, _], _)| sums.elem_count() - 1);
            match (slopes.dims(), batch) {
                ([of_heads], _) if *of_heads == heads => {}
                ([of_batch, of_heads], batch)
                    if *of_heads == heads && batch.is_none_or(|batch| batch == *of_batch) => {}
                (shape, _) => bail!(
                    "alibi_slopes: its shape is {shape:?}; it must be [{heads}] or [batch, {heads}]"
                ),
            }
            options.alibi = Some(AlibiSlopes::on_device(heads, slopes.rank() == 2));
        }
        Ok(options)
    }

    /// The small arrays: both running sums, and slopes.
    fn arrays(&self) -> [Option<&Tensor>; 3] {
        let sums = |index: usize| self.packed.as_ref().map(|(sums, _)| &sums[index]);
        [sums(0), sums(1), self.slopes.as_ref()]
    }

    fn check(&self, q: &Layout, k: &Layout, v: &Layout) -> Result<()> {
        let rank = if self.packed.is_some() { 3 } else { 4 };
        for (name, layout) in [("q", q), ("k", k), ("v", v)] {
            if layout.dims().len() != rank {
                bail!(
                    "{name}: it has {} axes; it must have {rank}",
                    layout.dims().len()
                );
            }
        }
        match (&self.slopes, q.dims()) {
            (Some(slopes), [batch, _, _, _])
                if slopes.rank() == 2 && slopes.dims()[0] != *batch =>
            {
                bail!(
                    "alibi_slopes: its batch is {}; it must be {batch}, that of q",
                    slopes.dims()[0]
                )
            }
            _ => Ok(()),
        }
    }

    fn forward<P: Place>(
        &self,
        place: &P,
        dtypes: [DType; 3],
        [q, k, v]: [Operand<'_, P>; 3],
    ) -> Result<(P::Memory, Shape)> {
        let dtype = same_dtype(dtypes)?;
        self.check(q.1, k.1, v.1)?;
        let [q_spec, k_spec, v_spec] = [q, k, v].map(|(_, layout)| spec(dtype, layout));
        let (q_spec, k_spec, v_spec) = (q_spec?, k_spec?, v_spec?);
        let mut dims = q.1.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = v_spec.shape.dim;
        }
        let shape = Shape::from(dims);
        let o_spec = spec(dtype, &Layout::contiguous(&shape))?;
        let options = self.options(q_spec.shape.heads)?;
        let problem =
            Problem::new(q_spec, k_spec, v_spec, o_spec, &options).map_err(candle::Error::wrap)?;
        let mut o = place.allocate(dtype, shape.elem_count())?;
        let rows = q_spec.shape.batch * q_spec.shape.heads * q_spec.shape.seq;
        let mut lse = place.allocate(DType::F32, rows)?;
        {
            let arrays = guards(self.arrays());
            let arrays = addresses(place, &arrays)?;
            let [q, k, v] =
                [q, k, v].map(|(memory, layout)| place.read(memory, layout.start_offset()));
            let (q, k, v) = (q?, k?, v?);
            let (o, lse) = (place.write(&mut o)?, place.write(&mut lse)?);
            let operands = with_arrays(Operands::new(q.at, k.at, v.at, o.at).lse(lse.at), &arrays);
            // SAFETY: every address is that of memory which is held here, of the shape and strides that candle says; o and lse
            // are new; candle's stream orders whatever else uses them.
            unsafe { place.launch(&problem, &operands)? };
        }
        // Set once: an operation is run once.
        let _ = self.lse.set(P::wrap(lse));
        Ok((o, shape))
    }
}

impl CustomOp3 for Attention {
    on_every_place!("ferroflash");

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        o: &Tensor,
        d_o: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let all = q.apply_op3_no_bwd(k, v, &Gradients { of: self, o, d_o })?;
        let mut begin = 0;
        let mut part = |of: &Tensor| -> Result<_> {
            let gradient = all.narrow(0, begin, of.elem_count())?.reshape(of.dims())?;
            begin += of.elem_count();
            Ok(Some(gradient))
        };
        Ok((part(q)?, part(k)?, part(v)?))
    }
}

/// dq, dk and dv, one behind the other, as an operation on q, k and v.
struct Gradients<'a> {
    of: &'a Attention,
    o: &'a Tensor,
    d_o: &'a Tensor,
}

impl Gradients<'_> {
    fn forward<P: Place>(
        &self,
        place: &P,
        _checked_before: [DType; 3],
        [q, k, v]: [Operand<'_, P>; 3],
    ) -> Result<(P::Memory, Shape)> {
        let dtype = same_dtype([self.o.dtype(), self.d_o.dtype(), self.o.dtype()])?;
        let dense = |layout: &Layout| spec(dtype, &Layout::contiguous(layout.shape()));
        let specs = GradientSpecs {
            o: spec(dtype, self.o.layout())?,
            d_o: spec(dtype, self.d_o.layout())?,
            dq: dense(q.1)?,
            dk: dense(k.1)?,
            dv: dense(v.1)?,
        };
        let [q_spec, k_spec, v_spec] = [q, k, v].map(|(_, layout)| spec(dtype, layout));
        let (q_spec, k_spec, v_spec) = (q_spec?, k_spec?, v_spec?);
        let options = BackwardOptions::of(&self.of.options(q_spec.shape.heads)?);
        let problem = Problem::backward(q_spec, k_spec, v_spec, specs, &options)
            .map_err(candle::Error::wrap)?;
        let counts = [q, k, v].map(|(_, layout)| layout.shape().elem_count());
        let shape = Shape::from(counts.iter().sum::<usize>());
        let mut all = place.allocate(dtype, shape.elem_count())?;
        {
            let [sums_q, sums_k, slopes] = self.of.arrays();
            let held = guards([sums_q, sums_k, slopes, Some(self.o), Some(self.d_o)]);
            let [sums_q, sums_k, slopes, o, d_o] = addresses(place, &held)?;
            let lse = self.of.lse.get().and_then(P::of);
            let (Some(o), Some(d_o), Some(lse)) = (o, d_o, lse) else {
                bail!("attention is differentiated on another device than it ran on")
            };
            let lse = place.read(lse, 0)?;
            let [q, k, v] =
                [q, k, v].map(|(memory, layout)| place.read(memory, layout.start_offset()));
            let (q, k, v) = (q?, k?, v?);
            let all = place.write(&mut all)?;
            let bytes = |count: usize| (count * dtype.size_in_bytes()) as u64;
            let (dq, dk) = (all.at, all.at + bytes(counts[0]));
            let gradients = GradientOperands::new(d_o.at, dq, dk, dk + bytes(counts[1]));
            let operands = Operands::new(q.at, k.at, v.at, o.at)
                .lse(lse.at)
                .gradients(gradients);
            let operands = with_arrays(operands, &[sums_q, sums_k, slopes]);
            // SAFETY: as in the forward pass; `all` is new and holds the three gradients.
            unsafe { place.launch(&problem, &operands)? };
        }
        Ok((all, shape))
    }
}

impl CustomOp3 for Gradients<'_> {
    on_every_place!("ferroflash-backward");
}

fn with_arrays(
    operands: Operands,
    [sums_q, sums_k, slopes]: &[Option<Address<'_>>; 3],
) -> Operands {
    let sums = sums_q.as_ref().zip(sums_k.as_ref());
    operands
        .cu_seqlens(sums.map(|(q, k)| [q.at, k.at]))
        .alibi_slopes(slopes.as_ref().map(|slopes| slopes.at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn precision_is_the_library_s() {
        let of = |attention: Attention| attention.options(1).expect("dense").precision;
        assert_eq!(of(Attention::new(1.0)), Precision::Bounded);
        let attention = Attention::new(1.0).precision(Precision::Ieee);
        assert_eq!(of(attention.causal(true)), Precision::Ieee);
    }
}
