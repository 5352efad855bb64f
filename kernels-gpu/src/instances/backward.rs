//! The backward kernels: in a table of their own, as a backward pass takes several.

use super::simt_split::INSTANCES as SIMT_SPLIT;
use super::wgmma_backward::INSTANCES as WGMMA;
use super::wgmma_backward_split::INSTANCES as WGMMA_SPLIT;
use super::{Arch, Family, Instance, KernelConfig, Operation};
use crate::config::mma_backward::{self, MmaBackwardConfig};
use crate::config::round;
use crate::config::simt::{self, SimtConfig};
use crate::dtype::DType;

/// The row of a kernel that computes lse in bits and delta.
const fn delta(name: &'static str, dtype: DType) -> Instance {
    Instance::warp_per_row(name, dtype, Operation::BackwardDelta)
}

/// The row of an fp32 kernel.
pub const fn simt(
    name: &'static str,
    operation: Operation,
    config: &'static SimtConfig,
) -> Instance {
    Instance {
        name,
        family: Family::Simt,
        arch: Arch::Sm80,
        dtype: DType::F32,
        head_dim: config.head_dim as u32,
        block_m: config.block_m() as u32,
        block_n: SimtConfig::BLOCK_N as u32,
        threads: config.threads,
        cluster: 1,
        shared_bytes: config.backward_shared_bytes(),
        operation,
        config: KernelConfig::Simt(config),
    }
}

macro_rules! delta_instances {
    ($($name:ident = $dtype:ident $element:path;)*) => {
        $(
            /// lse in bits and delta of every row, which the backward kernels of its dtype need.
            ///
            /// # Safety
            /// `params` describes live allocations that hold every element it can address.
            #[cfg(all(feature = "entries", target_arch = "nvptx64", gpu_arch = "sm_80"))]
            #[cuda_std::launch_bounds(crate::config::warp_per_row::THREADS)]
            #[cuda_std::kernel]
            pub unsafe fn $name(params: crate::abi::DeltaParams) {
                // SAFETY: forwarded to the launch.
                unsafe { crate::backward::delta::delta::<$element>(&params) }
            }
        )*

        const DELTA: &[Instance] = &[$(delta(stringify!($name), DType::$dtype)),*];
    };
}

delta_instances! {
    fa_bwd_delta_simt_sm80_f32 = F32 crate::tile::element::F32;
    fa_bwd_delta_simt_sm80_f16 = F16 cuda_std::half::F16;
    fa_bwd_delta_simt_sm80_bf16 = Bf16 cuda_std::half::Bf16;
}

macro_rules! simt_instances {
    ($($keys:ident, $queries:ident = $config:path;)*) => {
        entries! {
            $(
                crate::__simt_backward!($keys, KeepKeys, $config, "dk and dv in fp32.");
                crate::__simt_backward!($queries, KeepQueries, $config, "dq in fp32.");
            )*
        }

        const SIMT: &[Instance] = &[$(
            simt(stringify!($keys), Operation::BackwardKeys, &$config),
            simt(stringify!($queries), Operation::BackwardQueries, &$config),
        )*];
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __simt_backward {
    ($name:ident, $side:ident, $config:expr, $doc:literal $(, $modifiers:ident $(: $type:ty)?)? $(; $suffix:ident)?) => {
        #[doc = $doc]
        ///
        /// # Safety
        /// `params` describes live allocations that hold every element it can address.
        $(#[$crate::cuda_std::append_name($suffix)])?
        #[$crate::cuda_std::launch_bounds($config.threads, $config.min_blocks)]
        #[$crate::cuda_std::kernel]
        pub unsafe fn $name(
            params: $crate::abi::BackwardParams,
            $($modifiers: $crate::__modifiers!(type $modifiers $(: $type)?),)?
        ) {
            struct Kernel;
            impl $crate::simt::SimtKernel for Kernel {
                const CONFIG: $crate::config::simt::SimtConfig = $config;
                type Modifiers = $crate::__modifiers!(type $($modifiers $(: $type)?)?);
            }
            // SAFETY: forwarded to the launch.
            unsafe {
                $crate::simt::backward::<
                    Kernel,
                    $crate::backward::side::$side,
                    { $config.thread_rows },
                    { $config.output_cols() },
                >(&params, &$crate::__modifiers!(value $($modifiers)?))
            }
        }
    };
}

simt_instances! {
    fa_bwd_dkdv_simt_sm80_f32_hd64, fa_bwd_dq_simt_sm80_f32_hd64 = simt::BACKWARD_HD64;
    fa_bwd_dkdv_simt_sm80_f32_hd64_smem99k, fa_bwd_dq_simt_sm80_f32_hd64_smem99k = simt::BACKWARD_HD64_SMEM99K;
    fa_bwd_dkdv_simt_sm80_f32_hd128, fa_bwd_dq_simt_sm80_f32_hd128 = simt::BACKWARD_HD128;
    fa_bwd_dkdv_simt_sm80_f32_hd128_smem99k, fa_bwd_dq_simt_sm80_f32_hd128_smem99k = simt::BACKWARD_HD128_SMEM99K;
    fa_bwd_dkdv_simt_sm80_f32_hd256, fa_bwd_dq_simt_sm80_f32_hd256 = simt::BACKWARD_HD256;
    fa_bwd_dkdv_simt_sm80_f32_hd256_smem99k, fa_bwd_dq_simt_sm80_f32_hd256_smem99k = simt::BACKWARD_HD256_SMEM99K;
}

/// The row of a 16-bit kernel.
pub const fn mma(
    name: &'static str,
    dtype: DType,
    operation: Operation,
    config: &'static MmaBackwardConfig,
) -> Instance {
    Instance {
        name,
        family: Family::Mma,
        arch: Arch::Sm80,
        dtype,
        head_dim: config.head_dim as u32,
        block_m: config.block_m as u32,
        block_n: config.block_n as u32,
        threads: config.threads(),
        cluster: 1,
        shared_bytes: config.shared_bytes(),
        operation,
        config: KernelConfig::MmaBackward(config),
    }
}

/// The row of a kernel that rounds dq.
pub const fn rounding(name: &'static str, dtype: DType) -> Instance {
    Instance {
        family: Family::Mma,
        block_m: round::ROWS,
        threads: round::THREADS,
        operation: Operation::BackwardRound,
        ..delta(name, dtype)
    }
}

#[doc(hidden)]
#[macro_export]
macro_rules! __round {
    ($name:ident, $dtype:ident $(, $modifiers:ident $(: $type:ty)?)? $(; $suffix:ident)?) => {
        /// dq of the sums that a fused kernel added up.
        ///
        /// # Safety
        /// `params` describes live allocations that hold every element it can address.
        $(#[$crate::cuda_std::append_name($suffix)])?
        #[$crate::cuda_std::launch_bounds($crate::config::round::THREADS, $crate::config::round::MIN_BLOCKS)]
        #[$crate::cuda_std::kernel]
        pub unsafe fn $name(
            params: $crate::abi::BackwardParams,
            $($modifiers: $crate::__modifiers!(type $modifiers $(: $type)?),)?
        ) {
            let modifiers = &$crate::__modifiers!(value $($modifiers)?);
            // SAFETY: forwarded to the launch.
            unsafe {
                $crate::backward::round::round::<$crate::cuda_std::half::$dtype, _>(&params, modifiers)
            }
        }
    };
}

macro_rules! round_instances {
    ($table:ident: $($name:ident = $dtype:ident $(, $modifiers:ident)?;)*) => {
        entries! {
            $(crate::__round!($name, $dtype $(, $modifiers)?);)*
        }

        pub const $table: &[Instance] = &[$(rounding(stringify!($name), DType::$dtype)),*];
    };
}

round_instances! {
    ROUND:
    fa_bwd_round_mma_sm80_f16 = F16;
    fa_bwd_round_mma_sm80_bf16 = Bf16;
}

round_instances! {
    MODIFIED_ROUND:
    fa_bwd_round_mma_sm80_f16_modified = F16, modifiers;
    fa_bwd_round_mma_sm80_bf16_modified = Bf16, modifiers;
}

macro_rules! mma_instances {
    ($($keys:ident, $queries:ident = $dtype:ident $config:path, $($fused:ident = $fused_config:path),+;)*) => {
        entries! {
            $(
                crate::__mma_backward!($keys, $dtype, KeepKeys, false, $config, "dk and dv.");
                crate::__mma_backward!($queries, $dtype, KeepQueries, false, $config, "dq.");
                $(
                    crate::__mma_backward!($fused, $dtype, KeepKeys, true, $fused_config, "dk and dv, and dq added up in f32.");
                )+
            )*
        }

        const MMA: &[Instance] = &[$(
            mma(stringify!($keys), DType::$dtype, Operation::BackwardKeys, &$config),
            mma(stringify!($queries), DType::$dtype, Operation::BackwardQueries, &$config),
            $(mma(stringify!($fused), DType::$dtype, Operation::BackwardFused, &$fused_config),)+
        )*];
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __mma_backward {
    ($name:ident, $dtype:ident, $side:ident, $adds_dq:literal, $config:expr, $doc:literal $(, $modifiers:ident $(: $type:ty)?)? $(; $suffix:ident)?) => {
        #[doc = $doc]
        ///
        /// # Safety
        /// `params` describes live allocations that hold every element it can address.
        $(#[$crate::cuda_std::append_name($suffix)])?
        #[$crate::cuda_std::launch_bounds($config.threads(), $config.min_blocks)]
        #[$crate::cuda_std::kernel]
        pub unsafe fn $name(
            params: $crate::abi::BackwardParams,
            $($modifiers: $crate::__modifiers!(type $modifiers $(: $type)?),)?
        ) {
            const CONFIG: $crate::config::mma_backward::MmaBackwardConfig = $config;
            struct Kernel;
            impl $crate::mma::MmaBackwardKernel for Kernel {
                const CONFIG: $crate::config::mma_backward::MmaBackwardConfig = CONFIG;
                const ADDS_DQ: bool = $adds_dq;
                type Element = $crate::cuda_std::half::$dtype;
                type Side = $crate::backward::side::$side;
                type Modifiers = $crate::__modifiers!(type $($modifiers $(: $type)?)?);
            }
            // SAFETY: forwarded to the launch.
            unsafe {
                $crate::mma::backward::<
                    Kernel,
                    { CONFIG.scores().lane_rows() },
                    { CONFIG.scores().lane_cols() },
                    { CONFIG.output().lane_rows() },
                    { CONFIG.output().lane_cols() },
                    { CONFIG.dq().lane_rows() },
                    { CONFIG.dq().lane_cols() },
                >(&params, &$crate::__modifiers!(value $($modifiers)?))
            }
        }
    };
}

mma_instances! {
    fa_bwd_dkdv_mma_sm80_bf16_hd64, fa_bwd_dq_mma_sm80_bf16_hd64 = Bf16 mma_backward::HD64,
        fa_bwd_fused_mma_sm80_bf16_hd64 = mma_backward::FUSED_HD64;
    fa_bwd_dkdv_mma_sm80_bf16_hd128, fa_bwd_dq_mma_sm80_bf16_hd128 = Bf16 mma_backward::HD128,
        fa_bwd_fused_mma_sm80_bf16_hd128 = mma_backward::FUSED_HD128;
    fa_bwd_dkdv_mma_sm80_bf16_hd128_smem99k, fa_bwd_dq_mma_sm80_bf16_hd128_smem99k = Bf16 mma_backward::HD128_SMEM99K,
        fa_bwd_fused_mma_sm80_bf16_hd128_smem99k = mma_backward::HD128_SMEM99K;
    fa_bwd_dkdv_mma_sm80_bf16_hd256, fa_bwd_dq_mma_sm80_bf16_hd256 = Bf16 mma_backward::HD256,
        fa_bwd_fused_mma_sm80_bf16_hd256 = mma_backward::FUSED_HD256, fa_bwd_fused_mma_sm80_bf16_hd256_smem163k = mma_backward::HD256;
    fa_bwd_dkdv_mma_sm80_bf16_hd256_smem99k, fa_bwd_dq_mma_sm80_bf16_hd256_smem99k = Bf16 mma_backward::HD256_SMEM99K,
        fa_bwd_fused_mma_sm80_bf16_hd256_smem99k = mma_backward::HD256_SMEM99K;
    fa_bwd_dkdv_mma_sm80_f16_hd64, fa_bwd_dq_mma_sm80_f16_hd64 = F16 mma_backward::HD64,
        fa_bwd_fused_mma_sm80_f16_hd64 = mma_backward::FUSED_HD64;
    fa_bwd_dkdv_mma_sm80_f16_hd128, fa_bwd_dq_mma_sm80_f16_hd128 = F16 mma_backward::HD128,
        fa_bwd_fused_mma_sm80_f16_hd128 = mma_backward::FUSED_HD128;
    fa_bwd_dkdv_mma_sm80_f16_hd128_smem99k, fa_bwd_dq_mma_sm80_f16_hd128_smem99k = F16 mma_backward::HD128_SMEM99K,
        fa_bwd_fused_mma_sm80_f16_hd128_smem99k = mma_backward::HD128_SMEM99K;
    fa_bwd_dkdv_mma_sm80_f16_hd256, fa_bwd_dq_mma_sm80_f16_hd256 = F16 mma_backward::HD256,
        fa_bwd_fused_mma_sm80_f16_hd256 = mma_backward::FUSED_HD256, fa_bwd_fused_mma_sm80_f16_hd256_smem163k = mma_backward::HD256;
    fa_bwd_dkdv_mma_sm80_f16_hd256_smem99k, fa_bwd_dq_mma_sm80_f16_hd256_smem99k = F16 mma_backward::HD256_SMEM99K,
        fa_bwd_fused_mma_sm80_f16_hd256_smem99k = mma_backward::HD256_SMEM99K;
}

/// Every kernel of the backward pass.
const TABLES: [&[Instance]; 7] = [DELTA, SIMT, SIMT_SPLIT, MMA, ROUND, WGMMA, WGMMA_SPLIT];

/// Every kernel of the backward pass; of two that differ in nothing a problem asks for, the preferred one first.
pub const BACKWARD: &[Instance] = &{
    let mut all = [delta("", DType::F32);
        DELTA.len()
            + SIMT.len()
            + SIMT_SPLIT.len()
            + MMA.len()
            + ROUND.len()
            + WGMMA.len()
            + WGMMA_SPLIT.len()];
    let (mut table, mut next) = (0, 0);
    while table < TABLES.len() {
        let mut row = 0;
        while row < TABLES[table].len() {
            all[next] = TABLES[table][row];
            row += 1;
            next += 1;
        }
        table += 1;
    }
    all
};
