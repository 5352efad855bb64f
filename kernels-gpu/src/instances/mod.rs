//! The instance table: the only place that names an exported kernel.
//!
//! One file per family lists what is instantiated. On the GPU each row becomes a kernel; everywhere it becomes
//! an entry of [`INSTANCES`], from which the host computes launches.

mod ladder;
mod mma;
mod probe;
mod simt;
mod tile_list;
mod wgmma;

pub use ladder::LADDER;
pub use probe::PROBES;
pub use tile_list::TILE_LIST;

use crate::config::limits::SM86_SHARED_BYTES;
use crate::config::mma::MmaTile;
use crate::config::simt::SimtTile;
use crate::config::wgmma::WgmmaTile;
use crate::dtype::DType;

/// Oldest architecture a kernel's PTX runs on. `Sm90a` runs on Hopper only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arch {
    Sm80,
    Sm90a,
}

impl Arch {
    pub const ALL: [Self; 2] = [Self::Sm80, Self::Sm90a];

    /// The name rustc and ptxas use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sm80 => "sm_80",
            Self::Sm90a => "sm_90a",
        }
    }
}

/// How a kernel computes; the values `--force` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// fp32 on CUDA cores.
    Simt,
    /// f16 and bf16 by `mma.sync`, which every tensor core since Ampere runs.
    Mma,
    /// f16 and bf16 by TMA and warpgroup matrix multiplication, on Hopper.
    Wgmma,
    /// The steps towards the others that `ferroflash ladder` shows; in no table that problems are given to.
    Ladder,
    /// What `ferroflash roofline --device measured` times; in no table that problems are given to.
    Probe,
}

impl Family {
    /// What a problem may be given to.
    pub const ALL: [Self; 3] = [Self::Simt, Self::Mma, Self::Wgmma];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Simt => "simt",
            Self::Mma => "mma",
            Self::Wgmma => "wgmma",
            Self::Ladder => "ladder",
            Self::Probe => "probe",
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
    /// What it computes.
    pub operation: Operation,
    /// Its tile shape.
    pub config: TileConfig,
}

impl Instance {
    /// The tile shape of a Hopper kernel; `None` of any other.
    pub const fn wgmma(&self) -> Option<&'static WgmmaTile> {
        match self.config {
            TileConfig::Wgmma(tile) => Some(tile),
            _ => None,
        }
    }
}

/// What a kernel computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// o and lse of q, k and v.
    Forward,
    /// The list of a varlen launch's tiles.
    TileList,
    /// Something to learn or measure from; problems are never given to it.
    Insight,
}

/// The tile shape of a kernel, by family.
#[derive(Clone, Copy, Debug)]
pub enum TileConfig {
    Simt(&'static SimtTile),
    Mma(&'static MmaTile),
    Wgmma(&'static WgmmaTile),
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
            "a kernel for every GPU has a tile that fits the smallest shared memory among them"
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

const fn count() -> usize {
    let (mut family, mut total) = (0, 0);
    while family < FAMILIES.len() {
        total += FAMILIES[family].len();
        family += 1;
    }
    total
}

/// Every exported kernel: [`INSTANCES`], [`TILE_LIST`], [`LADDER`] and [`PROBES`].
pub fn all() -> impl Iterator<Item = &'static Instance> {
    const OTHERS: &[Instance] = &[TILE_LIST];
    INSTANCES.iter().chain(OTHERS).chain(LADDER).chain(PROBES)
}

/// The exported kernel of that name.
pub fn find(name: &str) -> Option<&'static Instance> {
    all().find(|instance| instance.name == name)
}
