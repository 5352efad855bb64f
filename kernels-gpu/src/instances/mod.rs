//! The instance table: the only place that names an exported kernel.
//!
//! One file per family lists what is instantiated. On the GPU each row becomes a kernel; everywhere it becomes
//! an entry of [`INSTANCES`], from which the host computes launches.
//!
//! # Names
//!
//! ```text
//! fa_<operation>_<family>_<arch>[_<dtype>[_hd<head_dim>[_v<head_dim_v>][_nocluster | _smem163k | _smem99k][_varlen][_e4m3][_rows16][_modified | _biased | _<score_mod>]]]
//! ```
//!
//! | part | values |
//! |---|---|
//! | operation | `fwd`; `bwd_dkdv`, `bwd_dq`, `bwd_split_dkdv`, `bwd_split_dq`, `bwd_fused`, `bwd_delta`, `bwd_round`, `bwd_slopes`, `bwd_slope_sums`, `bwd_sinks`, `bwd_bias`; `decode`; `append`; `merge`; `tile_list`, `check_cache` and `block_states`, which no problem is given to |
//! | family | `simt`, `mma`, `wgmma` ([`Family`]) |
//! | arch | `sm80`, `sm89`, `sm90a` ([`Arch`]) |
//! | head_dim, head_dim_v | the largest; head_dim_v where it is less than head_dim |
//! | `nocluster` | its blocks form no clusters, unlike those of the kernel without it |
//! | `smem163k`, `smem99k` | it fits so many KiB of shared memory, unlike the kernel without it |
//! | `e4m3` | keys and values of its cache are e4m3 codes |
//! | `rows16` | tiles have 16 rows, where others of decode have 8 |
//! | `modified` | it takes modifiers of single pairs: masks, biases, dropout ([`crate::modifiers`]) |
//! | `biased` | as `modified`, of problems with a bias; where there is such a kernel, the other is for those without |
//! | score_mod | a user's score modification is compiled in, by that name ([`crate::score_mod!`]) |
//! | `varlen` | it takes varlen launches only, and the kernel without it none |
//!
//! Every operation is to be named like that; a test holds the table to it.

#[macro_use]
mod macros;

mod append;
mod backward;
mod bias;
mod check_cache;
mod decode;
mod merge;
mod mma;
mod modified;
mod score_mod;
mod simt;
mod simt_split;
mod slopes;
mod tile_list;
mod wgmma;
mod wgmma_backward;
mod wgmma_backward_split;

/// Makers of rows, for [`score_mod!`](crate::score_mod).
#[doc(hidden)]
pub mod rows {
    pub use super::backward::{mma as mma_backward, simt as simt_backward};
    pub use super::mma::instance as mma_forward;
    pub use super::score_mod::{block_states, joined, rounding};
    pub use super::simt::instance as simt_forward;
    pub use super::wgmma::instance as wgmma_forward;
    pub use super::wgmma_backward::instance as wgmma_backward;
}

pub use append::{APPEND, APPEND_E4M3};
pub use backward::BACKWARD;
pub use bias::BIAS;
pub use check_cache::CHECK_CACHE;
pub use decode::DECODE;
pub use merge::MERGE;
pub use modified::{BLOCK_STATES, KEEP_MASK, MODIFIED, SINK_GRADIENT};
pub use slopes::{SLOPE_SUMS, SLOPES};
pub use tile_list::TILE_LIST;
pub use wgmma::CACHED;

use crate::config::biases::Biases;
use crate::config::decode::DecodeConfig;
use crate::config::limits::SM86_SHARED_BYTES;
use crate::config::mma::MmaConfig;
use crate::config::mma_backward::MmaBackwardConfig;
use crate::config::simt::SimtConfig;
use crate::config::warp_per_row;
use crate::config::wgmma::WgmmaConfig;
use crate::config::wgmma_backward::WgmmaBackwardConfig;
use crate::dtype::DType;

/// Oldest architecture a kernel's PTX runs on. `Sm89` has conversions of e4m3; `Sm90a` runs on Hopper only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arch {
    Sm80,
    Sm89,
    Sm90a,
}

impl Arch {
    pub const ALL: [Self; 3] = [Self::Sm80, Self::Sm89, Self::Sm90a];

    /// The name rustc and ptxas use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sm80 => "sm_80",
            Self::Sm89 => "sm_89",
            Self::Sm90a => "sm_90a",
        }
    }

    /// The oldest compute capability of GPUs that run it.
    pub const fn oldest(self) -> (u32, u32) {
        match self {
            Self::Sm80 => (8, 0),
            Self::Sm89 => (8, 9),
            Self::Sm90a => (9, 0),
        }
    }

    /// Whether GPUs of `compute_capability` run it.
    pub fn runs_on(self, compute_capability: (u32, u32)) -> bool {
        match self {
            Self::Sm80 | Self::Sm89 => compute_capability >= self.oldest(),
            Self::Sm90a => compute_capability == self.oldest(),
        }
    }
}

/// How a kernel computes; the values `--force` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// fp32 on CUDA cores.
    Simt,
    /// f16 and bf16 by `mma.sync`, which every tensor core since Ampere runs; and f32, forward, as sums of tf32 parts.
    Mma,
    /// f16 and bf16 by TMA and warpgroup matrix multiplication, on Hopper.
    Wgmma,
}

impl Family {
    pub const ALL: [Self; 3] = [Self::Simt, Self::Mma, Self::Wgmma];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Simt => "simt",
            Self::Mma => "mma",
            Self::Wgmma => "wgmma",
        }
    }
}

/// One exported kernel and what a launch of it needs.
#[derive(Clone, Copy, Debug)]
pub struct Instance {
    /// Entry name in the PTX.
    pub name: &'static str,
    pub family: Family,
    pub arch: Arch,
    /// Element type of q, k, v and o.
    pub dtype: DType,
    /// Largest head_dim and head_dim_v it takes.
    pub head_dim: u32,
    /// Query rows a block owns.
    pub block_m: u32,
    /// Keys a step of the inner loop covers.
    pub block_n: u32,
    /// Threads in a block.
    pub threads: u32,
    /// Blocks in a cluster; 1 is no cluster.
    pub cluster: u32,
    /// Dynamic shared memory of a launch.
    pub shared_bytes: u32,
    /// The operation it performs.
    pub operation: Operation,
    /// Its tile shape.
    pub config: KernelConfig,
}

impl Instance {
    /// Whether its products are sums of parts: f32 on tensor cores, whose numbers are two tf32 each.
    pub const fn adds_parts(&self) -> bool {
        matches!(self.dtype, DType::F32) && matches!(self.family, Family::Mma)
    }

    /// The row of a kernel in which a warp takes a row of o at a time.
    const fn warp_per_row(name: &'static str, dtype: DType, operation: Operation) -> Self {
        Self {
            name,
            family: Family::Simt,
            arch: Arch::Sm80,
            dtype,
            head_dim: 0,
            block_m: warp_per_row::ROWS,
            block_n: 0,
            threads: warp_per_row::THREADS,
            cluster: 1,
            shared_bytes: 0,
            operation,
            config: KernelConfig::Fixed,
        }
    }

    /// The row of a kernel that goes before those of Hopper, runs on any GPU, and touches no elements.
    const fn before_wgmma(
        name: &'static str,
        operation: Operation,
        threads: u32,
        shared_bytes: u32,
    ) -> Self {
        Self {
            name,
            family: Family::Wgmma,
            arch: Arch::Sm80,
            dtype: DType::F32,
            head_dim: 0,
            block_m: 0,
            block_n: 0,
            threads,
            cluster: 1,
            shared_bytes,
            operation,
            config: KernelConfig::Fixed,
        }
    }

    /// The tile shape of a Hopper kernel; `None` of any other.
    pub const fn wgmma(&self) -> Option<&'static WgmmaConfig> {
        match self.config {
            KernelConfig::Wgmma(config) => Some(config),
            _ => None,
        }
    }

    /// Whether it is for problems with a bias, or for others; most are for both.
    pub fn is_for(&self, has_bias: bool) -> bool {
        let biases = match self.config {
            KernelConfig::Wgmma(config) => config.biases,
            KernelConfig::WgmmaBackward(config) => config.biases,
            KernelConfig::MmaBackward(config) => config.biases,
            _ => Biases::Read,
        };
        biases.is_for(has_bias)
    }

    /// The tile shape of a decode kernel; `None` of any other.
    pub const fn decode(&self) -> Option<&'static DecodeConfig> {
        match self.config {
            KernelConfig::Decode(config) => Some(config),
            _ => None,
        }
    }
}

/// The operation that a kernel performs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// o and lse of q, k and v.
    Forward,
    /// The terms that the backward pass needs of each row: lse in bits, and delta.
    BackwardDelta,
    /// dk and dv.
    BackwardKeys,
    /// dq.
    BackwardQueries,
    /// dk and dv, and dS to a workspace.
    BackwardSplitKeys,
    /// dq, of that dS.
    BackwardSplitQueries,
    /// dk and dv, and dq added up in f32.
    BackwardFused,
    /// dq, of those sums.
    BackwardRound,
    /// What the gradients by ALiBi's slopes are sums of.
    BackwardSlopes,
    /// Those gradients.
    BackwardSlopeSums,
    /// The gradients by sinks.
    BackwardSinks,
    /// The gradient by a bias.
    BackwardBias,
    /// What the pairs of each tile of queries and block of keys look like, for the kernels that take modifiers.
    BlockStates,
    /// Which probabilities a part of a backward pass keeps.
    KeepMask,
    /// o and lse of q and a cache of keys and values.
    Decode,
    /// New keys and values into a cache.
    Append,
    /// o and lse from those for parts of the keys.
    Merge,
    /// The list of a varlen launch's tiles.
    TileList,
    /// Lengths of a cache that the kernels behind it can go by.
    CheckCache,
    /// Something to learn or measure from; problems are never given to it.
    Insight,
}

impl Operation {
    /// Its name in the names of kernels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forward => "fwd",
            Self::BackwardDelta => "bwd_delta",
            Self::BackwardKeys => "bwd_dkdv",
            Self::BackwardQueries => "bwd_dq",
            Self::BackwardSplitKeys => "bwd_split_dkdv",
            Self::BackwardSplitQueries => "bwd_split_dq",
            Self::BackwardFused => "bwd_fused",
            Self::BackwardRound => "bwd_round",
            Self::BackwardSlopes => "bwd_slopes",
            Self::BackwardSlopeSums => "bwd_slope_sums",
            Self::BackwardSinks => "bwd_sinks",
            Self::BackwardBias => "bwd_bias",
            Self::BlockStates => "block_states",
            Self::KeepMask => "keep_mask",
            Self::Decode => "decode",
            Self::Append => "append",
            Self::Merge => "merge",
            Self::TileList => "tile_list",
            Self::CheckCache => "check_cache",
            Self::Insight => "insight",
        }
    }
}

/// The tile shape of a kernel, by family.
#[derive(Clone, Copy, Debug)]
pub enum KernelConfig {
    Simt(&'static SimtConfig),
    Mma(&'static MmaConfig),
    MmaBackward(&'static MmaBackwardConfig),
    Wgmma(&'static WgmmaConfig),
    WgmmaBackward(&'static WgmmaBackwardConfig),
    Decode(&'static DecodeConfig),
    /// None that a host computes with.
    Fixed,
}

/// The rows of every family.
const FAMILIES: [&[Instance]; Family::ALL.len()] =
    [simt::INSTANCES, mma::INSTANCES, wgmma::INSTANCES];

/// Every kernel that problems are given to, family by family; of two that differ in nothing a problem asks for, the
/// preferred one first.
pub const INSTANCES: &[Instance] = &{
    let mut all = [TILE_LIST; count()];
    let (mut family, mut next) = (0, 0);
    while family < FAMILIES.len() {
        let mut row = 0;
        while row < FAMILIES[family].len() {
            all[next] = FAMILIES[family][row];
            row += 1;
            next += 1;
        }
        family += 1;
    }
    all
};

const _: () = {
    let mut i = 0;
    while i < INSTANCES.len() {
        let is_portable = matches!(INSTANCES[i].arch, Arch::Sm80);
        assert!(
            !is_portable || fits_everywhere(&INSTANCES[i]),
            "a kernel for every GPU has a config that fits the smallest shared memory among them"
        );
        i += 1;
    }
};

/// Whether a kernel like `wanted` fits every GPU that runs sm_80 PTX.
const fn fits_everywhere(wanted: &Instance) -> bool {
    let mut i = 0;
    while i < INSTANCES.len() {
        let row = &INSTANCES[i];
        if matches!(row.arch, Arch::Sm80)
            && row.family as u8 == wanted.family as u8
            && row.dtype as u8 == wanted.dtype as u8
            && row.head_dim == wanted.head_dim
            && row.shared_bytes <= SM86_SHARED_BYTES
        {
            return true;
        }
        i += 1;
    }
    false
}

/// The rows of two tables, `N` together.
const fn joined<const N: usize>(first: &[Instance], second: &[Instance]) -> [Instance; N] {
    let mut all = [TILE_LIST; N];
    let mut row = 0;
    while row < N {
        all[row] = if row < first.len() {
            first[row]
        } else {
            second[row - first.len()]
        };
        row += 1;
    }
    all
}

const fn count() -> usize {
    let (mut family, mut total) = (0, 0);
    while family < FAMILIES.len() {
        total += FAMILIES[family].len();
        family += 1;
    }
    total
}

/// Every exported kernel of this crate: [`INSTANCES`], [`MODIFIED`], [`BACKWARD`], [`SLOPES`], [`BIAS`], [`DECODE`], [`CACHED`], [`APPEND`], [`APPEND_E4M3`], [`MERGE`], and those that there is one of.
pub fn all() -> impl Iterator<Item = &'static Instance> {
    const OTHERS: &[Instance] = &[
        SLOPE_SUMS,
        TILE_LIST,
        CHECK_CACHE,
        BLOCK_STATES,
        KEEP_MASK,
        SINK_GRADIENT,
    ];
    let backward = BACKWARD.iter().chain(SLOPES).chain(BIAS);
    let of_problems = INSTANCES.iter().chain(MODIFIED).chain(backward);
    let decode = DECODE.iter().chain(CACHED);
    let of_caches = decode.chain(APPEND).chain(APPEND_E4M3);
    of_problems.chain(of_caches).chain(MERGE).chain(OTHERS)
}

/// The exported kernel of that name.
pub fn find(name: &str) -> Option<&'static Instance> {
    all().find(|instance| instance.name == name)
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::string::String;

    use super::*;
    use crate::config::limits::SM80_SHARED_BYTES;

    /// The name of a row, as the module's documentation has it.
    fn name(instance: &Instance) -> String {
        let (operation, family) = (instance.operation.name(), instance.family.name());
        let arch = instance.arch.name().replace('_', "");
        let kernel = format!("fa_{operation}_{family}_{arch}");
        if matches!(
            instance.operation,
            Operation::TileList
                | Operation::CheckCache
                | Operation::BlockStates
                | Operation::KeepMask
        ) {
            return kernel;
        }
        let (dtype, head_dim) = (instance.dtype.name(), instance.head_dim);
        let is_modified = MODIFIED.iter().any(|other| other.name == instance.name);
        if instance.head_dim == 0 {
            let is_e4m3 = APPEND_E4M3.iter().any(|other| other.name == instance.name);
            let of_cache = if is_e4m3 { "_e4m3" } else { "" };
            let of_modifiers = if is_modified { "_modified" } else { "" };
            return format!("{kernel}_{dtype}{of_cache}{of_modifiers}");
        }
        let mut name = format!("{kernel}_{dtype}_hd{head_dim}");
        let of_modifiers = if instance.is_for(false) {
            "_modified"
        } else {
            "_biased"
        };
        if let (true, Some(config)) = (is_modified, instance.wgmma()) {
            let of_lengths = if config.varlen { "_varlen" } else { "" };
            return name + of_lengths + of_modifiers;
        }
        let like = |other: &&Instance| {
            other.operation == instance.operation
                && other.family == instance.family
                && other.dtype == instance.dtype
                && other.head_dim == head_dim
                && other.is_for(false) == instance.is_for(false)
        };
        let tables = match is_modified {
            true => [MODIFIED, &[]],
            false => [INSTANCES, BACKWARD],
        };
        let mut others = tables.into_iter().flatten().filter(like);
        match instance.config {
            KernelConfig::Decode(config) => {
                if config.is_e4m3 {
                    name += "_e4m3";
                }
                if config.rows == 2 * DecodeConfig::HALF_ROWS {
                    name += "_rows16";
                }
            }
            KernelConfig::Wgmma(config) => {
                if config.head_dim_v < config.head_dim {
                    name += &format!("_v{}", config.head_dim_v);
                }
                if config.cluster == 1 && others.any(|other| other.cluster > 1) {
                    name += "_nocluster";
                }
                if config.varlen && !config.cached {
                    name += "_varlen";
                }
            }
            _ => {
                let largest = others.map(|other| other.shared_bytes).max();
                let limits = [
                    (SM86_SHARED_BYTES, "_smem99k"),
                    (SM80_SHARED_BYTES, "_smem163k"),
                ];
                let fits = |limit| instance.shared_bytes <= limit && largest > Some(limit);
                if let Some((_, suffix)) = limits.into_iter().find(|(limit, _)| fits(*limit)) {
                    name += suffix;
                }
                if is_modified {
                    name += of_modifiers;
                }
            }
        }
        name
    }

    #[test]
    fn names_follow_one_scheme() {
        for instance in all() {
            assert_eq!(instance.name, name(instance));
        }
    }
}
