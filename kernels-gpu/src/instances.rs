//! The instance table: the only place that names an exported kernel.
//!
//! On the GPU each row becomes a kernel; everywhere it becomes an entry of [`INSTANCES`], from which the
//! host computes launches.

use crate::config::{self, SimtTile};

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
}

impl Family {
    pub const ALL: [Self; 1] = [Self::Simt];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Simt => "simt",
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
    /// Largest head_dim and head_dim_v it takes.
    pub head_dim: u32,
    /// Query rows a block owns.
    pub block_m: u32,
    /// Keys a step of the inner loop covers.
    pub block_n: u32,
    /// Threads in a block.
    pub threads: u32,
    /// Dynamic shared memory of a launch.
    pub shared_bytes: u32,
}

impl Instance {
    const fn simt(name: &'static str, tile: &SimtTile) -> Self {
        Self {
            name,
            family: Family::Simt,
            arch: Arch::Sm80,
            head_dim: tile.head_dim as u32,
            block_m: tile.block_m() as u32,
            block_n: SimtTile::BLOCK_N as u32,
            threads: tile.threads,
            shared_bytes: tile.shared_bytes(),
        }
    }
}

macro_rules! instances {
    ($(simt $name:ident = $tile:path;)*) => {
        $(
            /// Forward pass in fp32; see [`crate::simt`].
            ///
            /// # Safety
            /// `params` describes live allocations that hold every element it can address.
            #[cfg(all(target_arch = "nvptx64", gpu_arch = "sm_80"))]
            #[cuda_std::launch_bounds($tile.threads, $tile.min_blocks)]
            #[cuda_std::kernel]
            pub unsafe fn $name(params: crate::abi::ForwardParams) {
                const TILE: SimtTile = $tile;
                // SAFETY: forwarded to the launch.
                unsafe {
                    crate::simt::forward::<
                        { TILE.head_dim },
                        { TILE.threads },
                        { TILE.thread_rows },
                        { TILE.head_dim / SimtTile::LANES_PER_ROW },
                    >(&params)
                }
            }
        )*

        /// Every exported kernel.
        pub const INSTANCES: &[Instance] = &[$(Instance::simt(stringify!($name), &$tile)),*];
    };
}

instances! {
    simt fa_fwd_simt_f32_hd64 = config::SIMT_HD64;
    simt fa_fwd_simt_f32_hd128 = config::SIMT_HD128;
    simt fa_fwd_simt_f32_hd256 = config::SIMT_HD256;
}
