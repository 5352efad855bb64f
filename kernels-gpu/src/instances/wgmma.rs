//! The Hopper kernels.

use super::{Arch, Family, Instance, Operation, TileConfig};
use crate::config::wgmma::{self, WgmmaTile};
use crate::dtype::DType;

/// The row of a kernel.
const fn instance(name: &'static str, dtype: DType, tile: &'static WgmmaTile) -> Instance {
    Instance {
        name,
        family: Family::Wgmma,
        arch: Arch::Sm90a,
        dtype,
        head_dim: tile.head_dim,
        block_m: tile.block_m(),
        block_n: tile.block_n,
        threads: tile.threads(),
        cluster: tile.cluster,
        shared_bytes: tile.shared_bytes(),
        operation: Operation::Forward,
        config: TileConfig::Wgmma(tile),
    }
}

/// `name = element, tile, registers|shared;`: Q from registers or from shared memory.
macro_rules! instances {
    ($($name:ident = $dtype:ident, $tile:expr, $query:ident;)*) => {
        $(
            /// Forward pass in 16 bits on Hopper.
            ///
            /// # Safety
            /// `params` and the tensor maps of q, k, v and o describe the same live allocations and `schedule` their
            /// tiles; `workspace` is the address of a live [`Workspace`](crate::wgmma::tile_list::Workspace) that no
            /// concurrent launch uses, with a counter of 0 and, in a varlen launch, the list of its tiles.
            #[cfg(all(target_arch = "nvptx64", gpu_arch = "sm_90a"))]
            #[cuda_std::launch_bounds($tile.threads(), 1, $tile.cluster)]
            #[cuda_std::kernel]
            pub unsafe fn $name(
                params: crate::abi::ForwardParams,
                _q: crate::wgmma::tensor_map::TensorMap,
                _k: crate::wgmma::tensor_map::TensorMap,
                _v: crate::wgmma::tensor_map::TensorMap,
                _o: crate::wgmma::tensor_map::TensorMap,
                schedule: crate::wgmma::schedule::Schedule,
                workspace: u64,
            ) {
                use crate::wgmma::device::{forward, policy};
                const TILE: WgmmaTile = $tile;
                struct Kernel;
                impl policy::Maps for Kernel {
                    #[inline(always)]
                    fn address<const PARAMETER: u32>() -> u64 {
                        cuda_std::tensor_map_parameter!($name, PARAMETER)
                    }
                }
                impl policy::Policy<
                    { TILE.block_n as usize / 2 },
                    { TILE.block_n as usize / 4 },
                    { TILE.head_dim_v as usize / 2 },
                > for Kernel {
                    const TILE: WgmmaTile = TILE;
                    type Element = cuda_std::half::$dtype;
                    type Query = instances!(@query $query, $dtype);
                }
                // SAFETY: forwarded to the launch.
                unsafe {
                    forward::<
                        Kernel,
                        { TILE.producer_registers },
                        { TILE.consumer_registers },
                        { TILE.block_n as usize / 2 },
                        { TILE.block_n as usize / 4 },
                        { TILE.head_dim_v as usize / 2 },
                    >(&params, &schedule, workspace)
                }
            }
        )*

        pub const INSTANCES: &[Instance] =
            &[$(instance(stringify!($name), DType::$dtype, &$tile)),*];
    };
    (@query registers, $dtype:ident) => {
        policy::RegisterQuery<cuda_std::half::$dtype, { TILE.head_dim as usize / 4 }>
    };
    (@query shared, $dtype:ident) => {
        policy::SharedQuery<cuda_std::half::$dtype, { TILE.head_dim as usize }>
    };
}

instances! {
    fa_fwd_sm90_bf16_hd64 = Bf16, wgmma::HD64, shared;
    fa_fwd_sm90_bf16_hd96 = Bf16, wgmma::HD96, registers;
    fa_fwd_sm90_bf16_hd128 = Bf16, wgmma::HD128, registers;
    fa_fwd_sm90_bf16_hd128_single = Bf16, wgmma::HD128_SINGLE, registers;
    fa_fwd_sm90_bf16_hd192_v128 = Bf16, wgmma::HD192_V128, shared;
    fa_fwd_sm90_bf16_hd192 = Bf16, wgmma::HD192, shared;
    fa_fwd_sm90_bf16_hd256 = Bf16, wgmma::HD256, shared;
    fa_fwd_sm90_bf16_hd256_single = Bf16, wgmma::HD256_SINGLE, shared;
    fa_fwd_sm90_f16_hd64 = F16, wgmma::HD64, shared;
    fa_fwd_sm90_f16_hd96 = F16, wgmma::HD96, registers;
    fa_fwd_sm90_f16_hd128 = F16, wgmma::HD128, registers;
    fa_fwd_sm90_f16_hd128_single = F16, wgmma::HD128_SINGLE, registers;
    fa_fwd_sm90_f16_hd192_v128 = F16, wgmma::HD192_V128, shared;
    fa_fwd_sm90_f16_hd192 = F16, wgmma::HD192, shared;
    fa_fwd_sm90_f16_hd256 = F16, wgmma::HD256, shared;
    fa_fwd_sm90_f16_hd256_single = F16, wgmma::HD256_SINGLE, shared;
    fa_fwd_sm90_bf16_hd64_varlen = Bf16, wgmma::HD64.for_varlen(), shared;
    fa_fwd_sm90_bf16_hd96_varlen = Bf16, wgmma::HD96.for_varlen(), registers;
    fa_fwd_sm90_bf16_hd128_varlen = Bf16, wgmma::HD128.for_varlen(), registers;
    fa_fwd_sm90_bf16_hd128_single_varlen = Bf16, wgmma::HD128_SINGLE.for_varlen(), registers;
    fa_fwd_sm90_bf16_hd192_v128_varlen = Bf16, wgmma::HD192_V128.for_varlen(), shared;
    fa_fwd_sm90_bf16_hd192_varlen = Bf16, wgmma::HD192.for_varlen(), shared;
    fa_fwd_sm90_bf16_hd256_varlen = Bf16, wgmma::HD256.for_varlen(), shared;
    fa_fwd_sm90_bf16_hd256_single_varlen = Bf16, wgmma::HD256_SINGLE.for_varlen(), shared;
    fa_fwd_sm90_f16_hd64_varlen = F16, wgmma::HD64.for_varlen(), shared;
    fa_fwd_sm90_f16_hd96_varlen = F16, wgmma::HD96.for_varlen(), registers;
    fa_fwd_sm90_f16_hd128_varlen = F16, wgmma::HD128.for_varlen(), registers;
    fa_fwd_sm90_f16_hd128_single_varlen = F16, wgmma::HD128_SINGLE.for_varlen(), registers;
    fa_fwd_sm90_f16_hd192_v128_varlen = F16, wgmma::HD192_V128.for_varlen(), shared;
    fa_fwd_sm90_f16_hd192_varlen = F16, wgmma::HD192.for_varlen(), shared;
    fa_fwd_sm90_f16_hd256_varlen = F16, wgmma::HD256.for_varlen(), shared;
    fa_fwd_sm90_f16_hd256_single_varlen = F16, wgmma::HD256_SINGLE.for_varlen(), shared;
}
