//! A backward pass with dropout in parts: of as many heads of k and v at a time as their keep mask finds room in the workspace.

use kernels_gpu::abi::{AttentionParams, KeepMaskArg, KeepMaskParams, ModifierParams};
use kernels_gpu::config::warp_per_row;
use kernels_gpu::instances::{Instance, Operation};
use kernels_gpu::modifiers::keep_mask::{KEYS, TILE_KEYS, WARP_BYTES};

use super::attention::{backward_attention, dq_sums_bytes};
use super::kernels::workspace_limit_bytes;
use crate::Problem;
use crate::plan::modifiers::modifier_params;

/// Tiles that a warp makes one after the other, at most, so that it finds its head and sequence once for all; and runs of them that fill
/// a GPU, of which there are to be no fewer.
const LONGEST_RUN: u64 = 8;
const FEWEST_RUNS: u64 = 1 << 15;

/// The parts, and what one needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeepMaskParts {
    attention: AttentionParams,
    /// Units of the pass, heads of k and v of all batch entries, and of a part; the last one may have fewer.
    units: u32,
    per_part: u32,
    unit_bytes: u64,
}

impl KeepMaskParts {
    /// Those of kernel `keys`, if it finds a keep mask in memory.
    ///
    /// # Errors
    /// Why there are none: the mask of a head of k and v does not fit beside the sums of dq.
    pub fn new(problem: &Problem, keys: &Instance) -> Result<Option<Self>, String> {
        let drops = modifier_params(problem).dropout.threshold != 0;
        if keys.operation != Operation::BackwardFused || !drops {
            return Ok(None);
        }
        let attention = backward_attention(problem);
        let AttentionParams {
            batch,
            heads_q,
            heads_kv,
            seq_q,
            seq_kv,
            ..
        } = attention;
        // Without pairs there is nothing to drop, nor to divide by.
        if [batch, heads_q, heads_kv, seq_q, seq_kv].contains(&0) {
            return Ok(None);
        }
        let group = u64::from(heads_q / heads_kv);
        let whole = KeepMaskArg::new(&attention, 0, batch * heads_kv);
        let unit_bytes = group * whole.head_words * u64::from(WARP_BYTES);
        let limit_bytes = workspace_limit_bytes(problem);
        let fitting = limit_bytes.saturating_sub(dq_sums_bytes(problem)) / unit_bytes;
        if fitting == 0 {
            return Err(format!(
                "its keep mask takes at least {unit_bytes} bytes of workspace beside dq, workspace_limit_bytes is {limit_bytes}"
            ));
        }
        let parts = u64::from(whole.units).div_ceil(fitting) as u32;
        Ok(Some(Self {
            attention,
            units: whole.units,
            per_part: whole.units.div_ceil(parts),
            unit_bytes,
        }))
    }

    /// Bytes of a part's mask.
    pub fn bytes(&self) -> u64 {
        u64::from(self.per_part) * self.unit_bytes
    }

    /// The parts in order, without addresses.
    pub fn iter(self) -> impl Iterator<Item = KeepMaskArg> {
        let firsts = (0..self.units).step_by(self.per_part as usize);
        firsts.map(move |first_unit| {
            let units = self.per_part.min(self.units - first_unit);
            KeepMaskArg::new(&self.attention, first_unit, units)
        })
    }

    /// The launch that makes the mask of `part`, for kernel `keys` with `modifiers`, and its blocks.
    pub fn launch(
        &self,
        part: KeepMaskArg,
        keys: &Instance,
        modifiers: &ModifierParams,
    ) -> (KeepMaskParams, u32) {
        let attention = self.attention;
        let tiles_of_query = attention.seq_kv.div_ceil(TILE_KEYS);
        let tile_bytes = u64::from(WARP_BYTES * (TILE_KEYS / KEYS));
        let tiles = u64::from(part.units) * self.unit_bytes / tile_bytes;
        let run_tiles = (tiles / FEWEST_RUNS).clamp(1, LONGEST_RUN) as u32;
        let params = KeepMaskParams {
            attention,
            modifiers: ModifierParams {
                keep_mask: part,
                ..*modifiers
            },
            block_queries: keys.block_n,
            tile_keys: keys.block_m,
            run_tiles,
            reserved: 0,
        };
        let runs =
            tiles / u64::from(tiles_of_query) * u64::from(tiles_of_query.div_ceil(run_tiles));
        (params, warp_per_row::grid(runs))
    }
}

#[cfg(test)]
mod tests {
    use kernels_gpu::instances::find;

    use super::*;
    use crate::{BackwardOptions, DType, Dropout, ForwardOptions, Layout, Shape, TensorSpec};

    /// 6 units of 2 query heads of 5 · 16 warps' words each.
    const UNIT_BYTES: usize = 2 * 5 * 16 * 128;

    type Parts = Result<(u64, Vec<[u32; 2]>), String>;

    /// Of how many bytes the parts are beside dq, and what they are.
    fn parts(kernel: &str, p: f32, spare_bytes: usize) -> Parts {
        parts_of([3, 300, 150], kernel, p, spare_bytes)
    }

    fn parts_of(
        [batch, seq_q, seq_kv]: [usize; 3],
        kernel: &str,
        p: f32,
        spare_bytes: usize,
    ) -> Parts {
        let spec = |heads, seq| {
            let shape = Shape {
                batch,
                heads,
                seq,
                dim: 64,
            };
            TensorSpec::contiguous(DType::Bf16, shape, Layout::Bhsd).unwrap()
        };
        let (q, kv) = (spec(4, seq_q), spec(2, seq_kv));
        let forward = ForwardOptions::new().dropout(Dropout::new(p, 1).unwrap());
        let with_limit = |bytes| {
            let options = BackwardOptions::of(&forward).workspace_limit_bytes(bytes);
            Problem::backward_with_dense_gradients(q, kv, kv, q, q, &options).unwrap()
        };
        let dq_bytes = dq_sums_bytes(&with_limit(0)) as usize;
        let parts = KeepMaskParts::new(&with_limit(dq_bytes + spare_bytes), find(kernel).unwrap())?;
        Ok(parts.map_or((0, Vec::new()), |parts| {
            let of = parts.iter().map(|part| [part.first_unit, part.units]);
            (parts.bytes(), of.collect())
        }))
    }

    const FUSED: &str = "fa_bwd_fused_mma_sm80_bf16_hd64_modified";

    #[test]
    fn parts_are_of_one_size_and_fit() {
        let of = |units: usize| parts(FUSED, 0.1, units * UNIT_BYTES).unwrap();
        assert_eq!(of(100), (6 * UNIT_BYTES as u64, vec![[0, 6]]));
        assert_eq!(of(6), (6 * UNIT_BYTES as u64, vec![[0, 6]]));
        assert_eq!(of(5), (3 * UNIT_BYTES as u64, vec![[0, 3], [3, 3]]));
        assert_eq!(of(2).1, [[0, 2], [2, 2], [4, 2]]);
        let refusal = parts(FUSED, 0.1, UNIT_BYTES - 1).unwrap_err();
        assert!(refusal.contains("workspace_limit_bytes"), "{refusal}");
        assert!(refusal.contains(&UNIT_BYTES.to_string()), "{refusal}");
    }

    /// Axes of 0 have no pairs: a batch of none, and sequences without queries or keys.
    #[test]
    fn nothing_has_no_parts() {
        for (batch, seq_q, seq_kv) in [(0, 300, 150), (3, 0, 150), (3, 300, 0)] {
            let parts = parts_of([batch, seq_q, seq_kv], FUSED, 0.1, 0);
            assert_eq!(parts, Ok((0, Vec::new())), "{batch} {seq_q} {seq_kv}");
        }
    }

    #[test]
    fn only_kernels_that_drop_and_add_dq_up_have_parts() {
        let keys = "fa_bwd_dkdv_mma_sm80_bf16_hd64_modified";
        for (kernel, p) in [(FUSED, 0.0), (keys, 0.1)] {
            assert_eq!(parts(kernel, p, 0), Ok((0, Vec::new())), "{kernel} {p}");
        }
    }
}
