//! dS in parts: as many heads of k and v at a time as the workspace holds.

use kernels_gpu::abi::AttentionParams;
use kernels_gpu::instances::{Instance, Operation};
use kernels_gpu::tile::ds_tiles::DsTiles;
use kernels_gpu::tile::grid::TileGrid;

/// Largest one-dimensional grid.
const LARGEST_GRID: u64 = i32::MAX as u64;

/// The launches of the kernel of dk and dv, each followed by one of the kernel of dq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Number of its first unit ([`DsChunk`](kernels_gpu::abi::DsChunk)).
    pub first_unit: u64,
    pub keys_grid: u32,
    pub queries_grid: u32,
}

/// How the units of a backward pass that stores dS are cut into chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DsChunks {
    /// Units of the pass, and of a chunk; the last one may have fewer.
    units: u64,
    per_chunk: u64,
    unit_bytes: u64,
    /// Tiles of a unit.
    keys_tiles: u64,
    queries_tiles: u64,
}

impl DsChunks {
    /// Those of a pass by kernels `keys` and `queries` with no more than `limit_bytes` for dS.
    ///
    /// # Errors
    /// Why there are none: one unit needs more.
    pub fn new(
        params: &AttentionParams,
        keys: &Instance,
        queries: &Instance,
        limit_bytes: u64,
    ) -> Result<Self, String> {
        let elem_bytes = keys.dtype.bytes() as u32;
        let tiles = DsTiles::new(params, keys.block_n, keys.block_m, elem_bytes);
        let keys_tiles = TileGrid::new(1, 1, params.seq_kv, keys.block_m).count;
        let queries_tiles = TileGrid::new(1, tiles.group, params.seq_q, queries.block_m).count;
        let unit_bytes = tiles.unit_bytes().unwrap_or(u64::MAX);
        let fitting = limit_bytes / unit_bytes.max(1);
        let launchable = LARGEST_GRID / keys_tiles.max(queries_tiles).max(1);
        if fitting == 0 || launchable == 0 {
            return Err(format!(
                "its dS takes {unit_bytes} bytes of workspace for a head of k and v, workspace_limit_bytes is {limit_bytes}"
            ));
        }
        let units = u64::from(params.batch) * u64::from(params.heads_kv);
        let chunks = units.div_ceil(fitting.min(launchable)).max(1);
        Ok(Self {
            units,
            // Chunks of one size: a small one in the end would leave most of the GPU idle.
            per_chunk: units.div_ceil(chunks),
            unit_bytes,
            keys_tiles,
            queries_tiles,
        })
    }

    /// Bytes of the largest chunk.
    pub fn bytes(&self) -> u64 {
        self.per_chunk * self.unit_bytes
    }

    /// The chunks in order.
    pub fn iter(self) -> impl Iterator<Item = Chunk> {
        let firsts = (0..self.units).step_by(self.per_chunk.max(1) as usize);
        firsts.map(move |first_unit| {
            let units = self.per_chunk.min(self.units - first_unit);
            Chunk {
                first_unit,
                keys_grid: (units * self.keys_tiles) as u32,
                queries_grid: (units * self.queries_tiles) as u32,
            }
        })
    }
}

/// The operation of the kernel of dq that comes with a kernel of dk and dv.
pub(crate) fn queries_operation(keys: &Instance) -> Operation {
    match keys.operation {
        Operation::BackwardFused => Operation::BackwardRound,
        Operation::BackwardSplitKeys => Operation::BackwardSplitQueries,
        _ => Operation::BackwardQueries,
    }
}

#[cfg(test)]
mod tests {
    use bytemuck::Zeroable;
    use kernels_gpu::instances::find;

    use super::*;

    /// 3 · 2 units of a group of 2, of 2 · 3 tiles of 64 × 64.
    const UNIT_BYTES: u64 = 2 * 2 * 3 * 64 * 64 * 2;

    fn chunks(limit_bytes: u64) -> Result<DsChunks, String> {
        let params = AttentionParams {
            batch: 3,
            heads_q: 4,
            heads_kv: 2,
            seq_q: 128,
            seq_kv: 150,
            ..AttentionParams::zeroed()
        };
        let keys = find("fa_bwd_dkdv_wgmma_sm90a_bf16_hd128").unwrap();
        let keys = Instance {
            block_m: 64,
            ..*keys
        };
        let queries = Instance {
            block_m: 128,
            ..keys
        };
        DsChunks::new(&params, &keys, &queries, limit_bytes)
    }

    #[test]
    fn chunks_are_of_one_size_and_fit() {
        let of = |limit| {
            let chunks = chunks(limit).unwrap();
            let units = chunks.iter().map(|chunk| chunk.keys_grid / 3);
            (chunks.bytes() / UNIT_BYTES, units.collect::<Vec<_>>())
        };
        assert_eq!(of(6 * UNIT_BYTES), (6, vec![6]));
        assert_eq!(of(5 * UNIT_BYTES), (3, vec![3, 3]));
        assert_eq!(of(UNIT_BYTES), (1, vec![1; 6]));
        let last = chunks(5 * UNIT_BYTES).unwrap().iter().last();
        let expected = Chunk {
            first_unit: 3,
            keys_grid: 9,
            queries_grid: 6,
        };
        assert_eq!(last, Some(expected));
    }

    #[test]
    fn a_unit_that_does_not_fit_is_refused_by_name() {
        let refusal = chunks(UNIT_BYTES - 1).unwrap_err();
        assert!(refusal.contains("workspace_limit_bytes"), "{refusal}");
        assert!(refusal.contains(&UNIT_BYTES.to_string()), "{refusal}");
    }
}
