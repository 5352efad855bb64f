use ferroflash::{AppendOperands, AppendProblem, CacheLayout, CacheOperands, DType, Error};
use ferroflash::{ForwardOptions, Layout, Problem, RotaryStyle, TensorSpec};
use ferroflash_streams::Place;
use pyo3::prelude::*;

use crate::errors::exception;
use crate::operands::View;

/// A cache beside its k and v: whether these are e4m3, its lengths, the block table of a paged one with its columns and the
/// elements from one row to the next, and scales of k and of v.
#[derive(FromPyObject)]
pub struct Cache(
    bool,
    u64,
    Option<(u64, usize, usize)>,
    Option<[(u64, View); 2]>,
);

impl Cache {
    fn layout(&self) -> CacheLayout {
        match self.2 {
            None => CacheLayout::Contiguous,
            Some((_, max_pages, table_stride)) => CacheLayout::Paged {
                max_pages,
                table_stride,
            },
        }
    }

    /// k or v, given as of q's dtype.
    fn spec(&self, of: TensorSpec) -> TensorSpec {
        let dtype = if self.0 { DType::E4m3 } else { of.dtype };
        TensorSpec { dtype, ..of }
    }

    fn scales(&self) -> Option<[TensorSpec; 2]> {
        let scales = self.3.as_ref()?;
        Some([0, 1].map(|of| scales[of].1.spec(0, Layout::Bshd)))
    }

    /// Its addresses.
    pub fn operands(&self) -> CacheOperands {
        CacheOperands::new(self.1)
            .block_table(self.2.map(|(at, ..)| at))
            .scales(self.3.as_ref().map(|[k, v]| [k.0, v.0]))
    }

    /// Attention of q to it.
    #[rustfmt::skip] // as operands go
    pub fn problem(
        &self, [q, k, v, o]: [TensorSpec; 4], options: &ForwardOptions,
    ) -> Result<Problem, Error> {
        let (k, v) = (self.spec(k), self.spec(v));
        let problem = Problem::decode(q, k, v, o, self.layout(), options)?;
        match self.scales() {
            None => Ok(problem),
            Some([k, v]) => problem.with_cache_scales(k, v),
        }
    }
}

/// Queues the writing of new rows into a cache. `operands`, an address and how it lies each, are k, v, k_cache, v_cache; then, to
/// rotate k, cos and sin; then, to rotate it too, q and what it becomes. `slots` are an address and the elements of a row.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // Python's, by position
pub fn append(
    py: Python<'_>,
    device: i32,
    stream: u64,
    dtype: usize,
    operands: Vec<(u64, View)>,
    cache: Cache,
    interleaved: bool,
    slots: Option<(u64, usize)>,
) -> PyResult<()> {
    let raise = |error| exception(py, error);
    let spec = |of: usize, dtype| operands[of].1.spec(dtype, Layout::Bshd);
    let at = |of: usize| operands[of].0;
    let checked = || {
        let [k_cache, v_cache] = [2, 3].map(|of| cache.spec(spec(of, dtype)));
        let (k, v) = (spec(0, dtype), spec(1, dtype));
        let mut problem = AppendProblem::new(k, v, k_cache, v_cache, cache.layout())?;
        if operands.len() > 4 {
            let style = match interleaved {
                true => RotaryStyle::Interleaved,
                false => RotaryStyle::Neox,
            };
            problem = problem.rotary(spec(4, 0), spec(5, 0), style)?;
        }
        if operands.len() > 6 {
            problem = problem.rotated_q(spec(6, dtype), spec(7, dtype))?;
        }
        if let Some([k, v]) = cache.scales() {
            problem = problem.scales(k, v)?;
        }
        Ok(match slots {
            None => problem,
            Some((_, stride)) => problem.slots(stride),
        })
    };
    let problem = checked().map_err(raise)?;
    let pair = |of: usize| (operands.len() > of).then(|| [at(of), at(of + 1)]);
    let addresses = AppendOperands::new(at(0), at(1), at(2), at(3), cache.operands())
        .rotary(pair(4))
        .q(pair(6))
        .slots(slots.map(|(at, _)| at));
    // SAFETY: as for a call's launch.
    let place = unsafe { Place::new(device, stream) }.map_err(raise)?;
    // SAFETY: Python's half gives addresses of tensors that it holds, of these shapes and strides.
    py.detach(|| unsafe { place.append(&problem, &addresses) })
        .map_err(raise)
}
