//! dS in parts: as many heads of k and v at a time as the workspace holds, or a part of one.

use bytemuck::Zeroable;
use kernels_gpu::abi::{AttentionParams, DsChunk};
use kernels_gpu::instances::{Family, Instance, Operation};
use kernels_gpu::tile::ds_tiles::DsTiles;
use kernels_gpu::tile::grid::TileGrid;

/// A launch of the kernel of dk and dv, followed by one of the kernel of dq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Without addresses.
    pub ds: DsChunk,
    pub keys_grid: u32,
    pub queries_grid: u32,
}

/// How a backward pass that stores dS is cut into chunks: of whole units, or of parts of a unit, whose sums of dk and dv wait
/// in f32 for the next part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DsChunks {
    /// Extents of a unit's dS.
    tiles: DsTiles,
    /// Units of the pass, and of a chunk; the last one may have fewer.
    units: u64,
    per_chunk: u64,
    /// Heads of a part, and blocks of queries of each.
    heads: u32,
    q_blocks: u32,
    /// Bytes of a chunk's dS, and of the sums that wait.
    ds_bytes: u64,
    sums_bytes: u64,
    /// Blocks of a unit that the kernel of dk and dv launches, and blocks of queries of a tile of the other.
    keys_tiles: u64,
    blocks_of_tile: u32,
}

impl DsChunks {
    /// Those of a pass by kernels `keys` and `queries` with no more than `limit_bytes` for dS.
    ///
    /// # Errors
    /// Why there are none: what has to be computed at once needs more.
    pub fn new(
        params: &AttentionParams,
        keys: &Instance,
        queries: &Instance,
        limit_bytes: u64,
    ) -> Result<Self, String> {
        let elem_bytes = keys.dtype.bytes() as u32;
        let tiles = DsTiles::new(params, keys.block_n, keys.block_m, elem_bytes);
        let keys_tiles = TileGrid::new(1, 1, params.seq_kv, keys.block_m).count;
        let whole = Self {
            tiles,
            units: u64::from(params.batch) * u64::from(params.heads_kv),
            per_chunk: 1,
            heads: tiles.group,
            q_blocks: tiles.q_blocks,
            ds_bytes: tiles.unit_bytes().unwrap_or(u64::MAX),
            sums_bytes: 0,
            keys_tiles,
            blocks_of_tile: queries.block_m / keys.block_n,
        };
        let fitting = limit_bytes / whole.ds_bytes.max(1);
        let launchable = TileGrid::LARGEST
            / keys_tiles
                .max(whole.queries_tiles(whole.heads, whole.q_blocks))
                .max(1);
        let together = fitting.min(launchable);
        if together > 0 {
            let chunks = whole.units.div_ceil(together).max(1);
            // Chunks of one size: a small one in the end would leave most of the GPU idle.
            let per_chunk = whole.units.div_ceil(chunks);
            return Ok(Self {
                per_chunk,
                ds_bytes: per_chunk * whole.ds_bytes,
                ..whole
            });
        }
        // dk and dv of a block of keys, in f32.
        let sums_bytes =
            2 * u64::from(keys.block_m) * u64::from(keys.head_dim) * size_of::<f32>() as u64;
        let parts = whole
            .in_parts(limit_bytes)
            .filter(|_| keys.family == Family::Wgmma);
        parts
            .map(|parts| Self {
                sums_bytes: keys_tiles * sums_bytes,
                ..parts
            })
            .ok_or_else(|| {
                let least = match keys.family {
                    Family::Wgmma => u64::from(whole.blocks_of_tile) * tiles.row_bytes(),
                    _ => whole.ds_bytes,
                };
                format!("its dS takes at least {least} bytes of workspace at a time, workspace_limit_bytes is {limit_bytes}")
            })
    }

    /// The same units in parts whose dS fits `limit_bytes`: whole heads if they do, else blocks of queries of one head. `None`
    /// if a tile of the kernel of dq does not.
    fn in_parts(self, limit_bytes: u64) -> Option<Self> {
        let of_heads = |heads| DsChunk {
            end_head: heads,
            end_q_block: self.tiles.q_blocks,
            ..DsChunk::zeroed()
        };
        let bytes = |heads| self.tiles.of_part(&of_heads(heads)).unit_bytes();
        let fitting = limit_bytes / bytes(1)?.max(1);
        if fitting > 0 {
            let group = u64::from(self.tiles.group);
            let heads = group.div_ceil(group.div_ceil(fitting)) as u32;
            return Some(Self {
                heads,
                ds_bytes: bytes(heads)?,
                ..self
            });
        }
        let row_bytes = self.tiles.row_bytes();
        let fitting = limit_bytes / (row_bytes * u64::from(self.blocks_of_tile)).max(1);
        let tiles = u64::from(self.tiles.q_blocks.div_ceil(self.blocks_of_tile));
        let parts = tiles.div_ceil(Some(fitting).filter(|fitting| *fitting > 0)?);
        let q_blocks = tiles.div_ceil(parts) as u32 * self.blocks_of_tile;
        Some(Self {
            heads: 1,
            q_blocks,
            ds_bytes: u64::from(q_blocks) * row_bytes,
            ..self
        })
    }

    /// Bytes of a chunk's dS, and of the sums that wait for the next part of a unit behind it.
    pub fn bytes(&self) -> (u64, u64) {
        (self.ds_bytes, self.sums_bytes)
    }

    /// Blocks that the kernel of dq launches for a unit's heads, of so many blocks of queries each.
    fn queries_tiles(&self, heads: u32, q_blocks: u32) -> u64 {
        u64::from(heads) * u64::from(q_blocks.div_ceil(self.blocks_of_tile))
    }

    /// The chunks in order.
    pub fn iter(self) -> impl Iterator<Item = Chunk> {
        let firsts = (0..self.units).step_by(self.per_chunk.max(1) as usize);
        firsts.flat_map(move |first_unit| {
            let units = self.per_chunk.min(self.units - first_unit);
            self.parts().map(move |part| {
                let heads = part.end_head - part.first_head;
                let q_blocks = part.end_q_block - part.first_q_block;
                Chunk {
                    ds: DsChunk { first_unit, ..part },
                    keys_grid: (units * self.keys_tiles) as u32,
                    queries_grid: (units * self.queries_tiles(heads, q_blocks)) as u32,
                }
            })
        })
    }

    /// The parts of a unit in order: one that is empty, if it has no queries.
    fn parts(self) -> impl Iterator<Item = DsChunk> {
        let ranges = |all: u32, of_part: u32| {
            let firsts = (0..all.max(1)).step_by(of_part.max(1) as usize);
            firsts.map(move |first| (first, all.min(first + of_part)))
        };
        let heads = ranges(self.tiles.group, self.heads);
        heads.flat_map(move |(first_head, end_head)| {
            let blocks = ranges(self.tiles.q_blocks, self.q_blocks);
            blocks.map(move |(first_q_block, end_q_block)| DsChunk {
                first_head,
                end_head,
                first_q_block,
                end_q_block,
                ..DsChunk::zeroed()
            })
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
    use kernels_gpu::abi::{Band, Corner, MaskParams};
    use kernels_gpu::instances::find;

    use super::*;

    /// A row of 3 tiles of 64 × 64 for each block of queries; 3 · 2 units of a group of 2, of 5 such blocks.
    const ROW_BYTES: u64 = 3 * 64 * 64 * 2;
    const UNIT_BYTES: u64 = 2 * 5 * ROW_BYTES;

    fn chunks(limit_bytes: u64) -> Result<DsChunks, String> {
        let params = AttentionParams {
            batch: 3,
            heads_q: 4,
            heads_kv: 2,
            seq_q: 300,
            seq_kv: 150,
            mask: MaskParams::new(Band::FULL, Corner::TopLeft),
            ..AttentionParams::zeroed()
        };
        let [keys, queries] = ["dkdv", "dq"].map(|gradient| {
            find(&format!("fa_bwd_split_{gradient}_wgmma_sm90a_bf16_hd256")).unwrap()
        });
        DsChunks::new(&params, keys, queries, limit_bytes)
    }

    #[test]
    fn chunks_are_of_one_size_and_fit() {
        let of = |limit| {
            let chunks = chunks(limit).unwrap();
            let units = chunks.iter().map(|chunk| chunk.keys_grid / 3);
            (chunks.bytes().0 / UNIT_BYTES, units.collect::<Vec<_>>())
        };
        assert_eq!(of(6 * UNIT_BYTES), (6, vec![6]));
        assert_eq!(of(5 * UNIT_BYTES), (3, vec![3, 3]));
        assert_eq!(of(UNIT_BYTES), (1, vec![1; 6]));
        let last = chunks(5 * UNIT_BYTES).unwrap().iter().last().unwrap();
        assert_eq!(
            (last.ds.first_unit, last.ds.end_head, last.ds.end_q_block),
            (3, 2, 5)
        );
        // Three tiles of 128 queries in each of 3 · 2 heads.
        assert_eq!((last.keys_grid, last.queries_grid), (9, 18));
    }

    /// Parts of the first unit: heads, blocks of queries, and blocks that dq's kernel launches.
    fn parts(limit_bytes: u64) -> Vec<([u32; 4], u32)> {
        let chunks = chunks(limit_bytes).unwrap();
        let (ds_bytes, sums_bytes) = chunks.bytes();
        assert!(ds_bytes <= limit_bytes);
        assert_eq!(sums_bytes, 3 * 2 * 64 * 256 * 4);
        let of_first = chunks.iter().filter(|chunk| chunk.ds.first_unit == 0);
        let part = |Chunk {
                        ds, queries_grid, ..
                    }| {
            let DsChunk {
                first_head,
                end_head,
                first_q_block,
                end_q_block,
                ..
            } = ds;
            (
                [first_head, end_head, first_q_block, end_q_block],
                queries_grid,
            )
        };
        of_first.map(part).collect()
    }

    #[test]
    fn a_unit_that_does_not_fit_is_computed_in_parts() {
        let heads = [([0, 1, 0, 5], 3), ([1, 2, 0, 5], 3)];
        assert_eq!(parts(UNIT_BYTES - 1), heads);
        assert_eq!(parts(5 * ROW_BYTES), heads);
        let halves = |head| [([head, head + 1, 0, 4], 2), ([head, head + 1, 4, 5], 1)];
        assert_eq!(parts(5 * ROW_BYTES - 1), [halves(0), halves(1)].concat());
        assert_eq!(parts(2 * ROW_BYTES).len(), 2 * 3);
    }

    #[test]
    fn what_does_not_fit_at_all_is_refused_by_name() {
        let refusal = chunks(2 * ROW_BYTES - 1).unwrap_err();
        assert!(refusal.contains("workspace_limit_bytes"), "{refusal}");
        assert!(refusal.contains(&(2 * ROW_BYTES).to_string()), "{refusal}");
    }
}
