//! What a launch of a Hopper kernel takes beside the parameters of every forward kernel.

use kernels_gpu::abi::ForwardParams;
use kernels_gpu::config::wgmma::WgmmaTile;
use kernels_gpu::dtype::DType;
use kernels_gpu::wgmma::gqa::Packing;
use kernels_gpu::wgmma::schedule::Schedule;
use kernels_gpu::wgmma::tensor_map::{ForwardMaps, Inexpressible, TensorMap};

use super::device::Device;
use super::tensor_maps::TensorMaps;
use crate::{Error, Problem};

/// What TMA is told, for one problem on operands at known addresses whose tiles can be numbered.
pub(crate) struct HopperPlan {
    /// How query heads share tiles.
    pub packing: Packing,
    schedule: Schedule,
    maps: ForwardMaps,
}

impl HopperPlan {
    /// Why a kernel of shape `tile` cannot run `problem`, launched with `params`, or how it does.
    pub fn new(
        problem: &Problem,
        params: &ForwardParams,
        tile: &WgmmaTile,
    ) -> Result<Self, String> {
        let attention = &params.attention;
        if attention.head_dim > tile.head_dim || attention.head_dim_v > tile.head_dim_v {
            return Err(format!(
                "it holds a head_dim of {} and a head_dim_v of {} at most",
                tile.head_dim, tile.head_dim_v
            ));
        }
        let packing = packing(problem, tile);
        let schedule = if tile.varlen {
            Schedule::listed(attention, packing, tile.cluster_m())
        } else {
            Schedule::new(attention, packing, tile.cluster_m())
        };
        let schedule = schedule.ok_or("it has no tile, or more than it can count")?;
        let maps = ForwardMaps::new(params, tile, packing).map_err(|(operand, reason)| {
            format!("TMA cannot reach {operand}: {}", words(reason))
        })?;
        Ok(Self {
            packing,
            schedule,
            maps,
        })
    }

    /// The launch on `device` of the plan's tiles, in `workspace`: its grid, and every parameter's image in the
    /// kernel's order. `encoded` are the maps of launches before.
    pub fn images<D: Device>(
        &self,
        device: &D,
        encoded: &mut TensorMaps,
        dtype: DType,
        tile: &WgmmaTile,
        params: ForwardParams,
        workspace: u64,
    ) -> Result<HopperImages, Error> {
        let ForwardMaps { q, k, v, o } = &self.maps;
        let schedule = self
            .schedule
            .on_gpu(device.info().multiprocessors, tile.cluster);
        let mut map = |spec| encoded.get(device, dtype, spec);
        Ok(HopperImages {
            grid: schedule.clusters * tile.cluster,
            params,
            maps: [map(q)?, map(k)?, map(v)?, map(o)?],
            schedule,
            workspace,
        })
    }
}

/// Sequences of a varlen problem that are looked at to choose its packing, about: a launch must not wait for more.
const SAMPLED_SEQUENCES: usize = 64;

/// How query heads share the tiles of a kernel of shape `tile` that runs `problem`.
///
/// ALiBi's slopes differ by head, and the kernels know one a tile.
pub(crate) fn packing(problem: &Problem, tile: &WgmmaTile) -> Packing {
    let group = problem.group() as u32;
    let too_long = problem.seq_q() > Packing::LONGEST as usize;
    if group == 1 || too_long || problem.alibi().is_some() {
        return Packing::none(group);
    }
    match problem.cu_seqlens() {
        None => {
            let length = std::iter::once(problem.seq_q() as u32);
            Packing::fewest_tiles(group, length, tile.cluster_m())
        }
        Some(packed) => {
            let lengths = packed.q().windows(2).map(|ends| (ends[1] - ends[0]) as u32);
            let every = packed.batch().div_ceil(SAMPLED_SEQUENCES).max(1);
            Packing::fewest_tiles(group, lengths.step_by(every), tile.cluster_m())
        }
    }
}

/// The parameters of a launch, by value.
pub(crate) struct HopperImages {
    pub grid: u32,
    params: ForwardParams,
    maps: [TensorMap; 4],
    schedule: Schedule,
    workspace: u64,
}

impl HopperImages {
    /// The image of each parameter.
    pub fn params(&self) -> [&[u8]; 7] {
        use bytemuck::bytes_of;
        let [q, k, v, o] = &self.maps;
        [
            bytes_of(&self.params),
            bytes_of(q),
            bytes_of(k),
            bytes_of(v),
            bytes_of(o),
            bytes_of(&self.schedule),
            bytes_of(&self.workspace),
        ]
    }
}

fn words(reason: Inexpressible) -> String {
    match reason {
        Inexpressible::Address(address) => format!("address {address:#x} is not a multiple of 16"),
        Inexpressible::DimStride(stride) => format!("its head_dim stride is {stride}, not 1"),
        Inexpressible::Stride(stride) => {
            format!("a stride of {stride} elements is not a positive multiple of 16 bytes")
        }
        Inexpressible::Empty => "it has no elements".to_owned(),
        Inexpressible::Width(dim) => format!("its head_dim {dim} is not a multiple of 8"),
    }
}

#[cfg(test)]
mod tests {
    use kernels_gpu::config::wgmma::HD128;

    use super::*;
    use crate::{AlibiSlopes, CuSeqlens, ForwardOptions, Layout, Shape, TensorSpec};

    const HEADS: usize = 16;
    const HEADS_KV: usize = 2;

    /// Heads that share a tile of 256 rows, of eight that could.
    fn heads_per_tile(seq_q: usize, options: &ForwardOptions) -> u32 {
        let spec = |heads| {
            let shape = Shape {
                batch: 1,
                heads,
                seq: seq_q,
                dim: 128,
            };
            TensorSpec::contiguous(DType::Bf16, shape, Layout::Bshd).unwrap()
        };
        let (q, kv) = (spec(HEADS), spec(HEADS_KV));
        let problem = Problem::with_dense_output(q, kv, kv, options).unwrap();
        packing(&problem, &HD128).heads()
    }

    fn packed_heads_per_tile(lengths: impl IntoIterator<Item = usize>) -> u32 {
        let lengths = lengths.into_iter().map(|length| (length, length));
        let packed = CuSeqlens::from_lengths(lengths).unwrap();
        let options = ForwardOptions::new().cu_seqlens(Some(packed.clone()));
        heads_per_tile(packed.total_q(), &options)
    }

    #[test]
    fn short_sequences_share_tiles_and_whole_tiles_do_not() {
        let options = ForwardOptions::new();
        assert_eq!(heads_per_tile(1, &options), 8);
        assert_eq!(heads_per_tile(100, &options), 2);
        assert_eq!(heads_per_tile(256, &options), 1);
    }

    #[test]
    fn heads_of_different_slopes_do_not_share_a_tile() {
        let slopes = AlibiSlopes::geometric(HEADS);
        let options = ForwardOptions::new().alibi(Some(slopes));
        assert_eq!(heads_per_tile(1, &options), 1);
    }

    #[test]
    fn all_packed_sequences_count() {
        // One prompt among many single tokens, and one token among many prompts of whole tiles.
        let decoding = std::iter::repeat_n(1, 63);
        assert_eq!(packed_heads_per_tile([4096].into_iter().chain(decoding)), 8);
        assert_eq!(packed_heads_per_tile([256; 50]), 1);
        assert_eq!(packed_heads_per_tile([100; 1000]), 2);
        assert_eq!(packed_heads_per_tile([]), 1);
    }
}
