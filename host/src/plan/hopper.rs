//! Launch data of Hopper kernels: which query heads share tiles, the tensor maps, and the order of tiles.

use kernels_gpu::abi::{CachePages, ForwardParams};
use kernels_gpu::config::wgmma::WgmmaConfig;
use kernels_gpu::wgmma::pack_gqa::PackGqa;
use kernels_gpu::wgmma::scheduler::Schedule;
use kernels_gpu::wgmma::scheduler::tile_list::{TileListParams, Workspace};
use kernels_gpu::wgmma::tensor_map::{ForwardMaps, Inexpressible};

use super::GpuCapabilities;
use super::operands::{Operands, TMA_ALIGN_BYTES};
use super::tile_order::schedule;
use crate::{CacheLayout, Lengths, Problem};

/// Launch data of a Hopper kernel beyond the parameters of every forward kernel, without addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HopperForward {
    /// How query heads share tiles.
    pub pack_gqa: PackGqa,
    /// Tensor maps, of operands at address 0.
    maps: ForwardMaps,
    /// The order of tiles: computed arithmetically, or read from a list that another kernel writes.
    pub schedule: Schedule,
    /// The cache that it reads, without addresses.
    pub pages: Option<CachePages>,
}

impl HopperForward {
    /// The launch data of a kernel of shape `config` that runs `problem` with `params` on `gpu`, or why it cannot.
    pub fn new(
        problem: &Problem,
        params: &ForwardParams,
        config: &WgmmaConfig,
        gpu: &GpuCapabilities,
    ) -> Result<Self, String> {
        let attention = &params.attention;
        if attention.head_dim > config.head_dim || attention.head_dim_v > config.head_dim_v {
            return Err(format!(
                "it holds a head_dim of {} and a head_dim_v of {} at most",
                config.head_dim, config.head_dim_v
            ));
        }
        let pack_gqa = pack_gqa(problem, config);
        let schedule = schedule(problem, attention, config, pack_gqa, gpu);
        let schedule = schedule.ok_or("it has no tile, or more than it can count")?;
        let pages = cache_pages(problem)?;
        let maps = ForwardMaps::new(params, config, pack_gqa, pages.as_ref());
        let maps = maps.map_err(|(operand, reason)| {
            format!("TMA cannot reach {operand}: {}", words(reason))
        })?;
        Ok(Self {
            pack_gqa,
            maps,
            schedule,
            pages,
        })
    }

    /// Parameters, without addresses, of the kernel that lists the tiles of `params` for a kernel of shape `config`; `None` if the
    /// order of tiles is computed arithmetically.
    pub fn tile_list(
        &self,
        params: &ForwardParams,
        config: &WgmmaConfig,
    ) -> Option<TileListParams> {
        let list = || TileListParams::new(&params.attention, config, self.pack_gqa, 0);
        self.schedule.is_listed().then(list).flatten()
    }

    /// Workspace of a launch whose tiles `list` lists, or of one without a list.
    pub fn workspace(list: Option<&TileListParams>) -> Workspace {
        list.map_or(Workspace::DENSE, TileListParams::layout)
    }

    /// Tensor maps of `operands`.
    pub fn maps(&self, operands: &Operands) -> ForwardMaps {
        let mut maps = self.maps;
        maps.q.address = operands.q;
        maps.k.address = operands.k;
        maps.v.address = operands.v;
        maps.o.address = operands.o;
        maps
    }
}

/// Fewest keys of a page, which no box crosses.
const SMALLEST_PAGE: usize = WgmmaConfig::CACHE_BOX_ROWS as usize;

/// The cache of `problem`, if it reads one.
///
/// # Errors
/// Why TMA cannot copy from its pages.
fn cache_pages(problem: &Problem) -> Result<Option<CachePages>, String> {
    let Some(layout) = problem.cache_layout() else {
        return Ok(None);
    };
    let shape = problem.k().shape;
    let pages = CachePages {
        num_pages: shape.batch as u32,
        box_rows: WgmmaConfig::CACHE_BOX_ROWS,
        batch: problem.batch() as u32,
        ..CachePages::NONE
    };
    let page_size = shape.seq;
    Ok(Some(match layout {
        CacheLayout::Contiguous => CachePages {
            page_shift: CachePages::WHOLE_SEQUENCE,
            table_stride: 1,
            ..pages
        },
        CacheLayout::Paged { table_stride, .. } => {
            if !page_size.is_power_of_two() || page_size < SMALLEST_PAGE {
                return Err(format!(
                    "it takes pages of a power of two of keys from {SMALLEST_PAGE} on, these have {page_size}"
                ));
            }
            CachePages {
                table_stride: table_stride as u64,
                page_shift: page_size.ilog2(),
                ..pages
            }
        }
    }))
}

/// Bytes of the workspace that the kernel writes which checks a cache: a length for each sequence, and of a contiguous cache a page
/// ([`bind_pages`](super::params::bind_pages)).
pub(super) const fn checked_cache_bytes(pages: &CachePages) -> usize {
    let arrays = if pages.is_contiguous() { 2 } else { 1 };
    arrays * pages.batch as usize * size_of::<i32>()
}

/// Approximate number of sequences sampled to choose the packing of a problem: reading more would delay the launch.
const SAMPLED_SEQUENCES: usize = 64;

/// How query heads share the tiles of a kernel of shape `config` that runs `problem`.
///
/// The kernels apply one score transform to a whole tile, so heads with different transforms never share one; nor do those
/// whose pairs modifiers may change differently.
pub(crate) fn pack_gqa(problem: &Problem, config: &WgmmaConfig) -> PackGqa {
    let group = problem.group() as u32;
    let too_long = problem.seq_q() > PackGqa::LONGEST as usize;
    // Of a cache there are sinks alone, which its kernels find row by row.
    let has_modifiers = !problem.modifiers().is_none() && problem.cache_layout().is_none();
    // A sequence's bits, which may depend on which heads share a tile, are to be the same beside any others.
    let must_not_depend = problem.is_packed() && problem.cache_layout().is_some();
    if must_not_depend
        || group == 1
        || too_long
        || has_modifiers
        || problem.score().differs_by_head()
    {
        return PackGqa::none(group);
    }
    let of_one = |length: usize| {
        let length = std::iter::once(length as u32);
        PackGqa::fewest_tiles(group, length, config.cluster_m())
    };
    match problem.lengths() {
        Lengths::Packed(packed) => {
            let lengths = packed.q().windows(2).map(|ends| (ends[1] - ends[0]) as u32);
            let every = packed.batch().div_ceil(SAMPLED_SEQUENCES).max(1);
            PackGqa::fewest_tiles(group, lengths.step_by(every), config.cluster_m())
        }
        // The host does not know the lengths: all count as the mean.
        _ if problem.is_packed() => {
            let mean = problem.q().shape.seq.div_ceil(problem.batch().max(1));
            of_one(mean.min(problem.seq_q()))
        }
        _ => of_one(problem.seq_q()),
    }
}

pub(super) fn words(reason: Inexpressible) -> String {
    match reason {
        Inexpressible::Address(address) => {
            format!("address {address:#x} is not a multiple of {TMA_ALIGN_BYTES}")
        }
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
    use crate::{
        AlibiSlopes, CuSeqlens, DType, DeviceLengths, ForwardOptions, Layout, Shape, TensorSpec,
    };

    const HEADS: usize = 16;
    const HEADS_KV: usize = 2;

    /// Number of heads, of the eight in a group, that share a tile of 256 rows.
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
        pack_gqa(&problem, &HD128).heads()
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
        let slopes = AlibiSlopes::geometric(HEADS).unwrap();
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

    /// Lengths that only the device knows are assumed equal.
    #[test]
    fn sequences_of_unknown_length_share_tiles_by_their_mean() {
        let options = |batch, longest| {
            let lengths = DeviceLengths::cu_seqlens(batch, longest, 4096).unwrap();
            ForwardOptions::new().lengths(lengths)
        };
        assert_eq!(heads_per_tile(64, &options(64, 512)), 8);
        assert_eq!(heads_per_tile(64 * 256, &options(64, 512)), 1);
        assert_eq!(heads_per_tile(64 * 256, &options(64, 1)), 8);
        assert_eq!(heads_per_tile(64, &options(0, 512)), 4);
    }
}
