//! The decode kernels: attention to a cache of keys and values. In a table of their own.

use super::{Arch, Family, Instance, KernelConfig, Operation};
use crate::config::decode::{self, DecodeConfig};
use crate::dtype::DType;

macro_rules! decode_instances {
    ($($name:ident = $arch:ident $gpu_arch:literal, $element:ident, $config:path $(, $weight:ident, $scales:ident)?;)*) => {
        $(
            /// Attention of a few queries to a cache, on 16-bit elements by `mma.sync`.
            ///
            /// # Safety
            /// The parameters describe live allocations that hold every element they can address.
            #[cfg(all(feature = "entries", target_arch = "nvptx64", gpu_arch = $gpu_arch))]
            #[cuda_std::launch_bounds(DecodeConfig::THREADS, $config.min_blocks)]
            #[cuda_std::kernel]
            pub unsafe fn $name(
                params: crate::abi::DecodeParams,
                $($scales: crate::abi::CacheScales,)?
            ) {
                const CONFIG: DecodeConfig = $config;
                struct Kernel;
                impl crate::mma::DecodeKernel for Kernel {
                    const CONFIG: DecodeConfig = CONFIG;
                    type Element = cuda_std::half::$element;
                    type Weight = decode_instances!(weight $element $($weight)?);
                }
                // SAFETY: forwarded to the launch.
                unsafe {
                    crate::mma::decode::<
                        Kernel,
                        { CONFIG.halves() },
                        { CONFIG.output_cols() },
                        { CONFIG.head_dim / 16 },
                        { CONFIG.score_cols() },
                        { CONFIG.slots() as usize - 1 },
                    >(&params, decode_instances!(scales $($scales)?))
                }
            }
        )*

        /// Every kernel for a cache, of a head_dim those with fewer rows first. They take [`DecodeParams`](crate::abi::DecodeParams), and those of e4m3 caches
        /// [`CacheScales`](crate::abi::CacheScales) behind them.
        pub const DECODE: &[Instance] =
            &[$(instance(stringify!($name), Arch::$arch, DType::$element, &$config)),*];
    };
    (weight $element:ident) => { cuda_std::half::$element };
    (weight $element:ident $weight:ident) => { cuda_std::half::$weight };
    (scales) => { &crate::abi::CacheScales::NONE };
    (scales $scales:ident) => { &$scales };
}

const fn instance(
    name: &'static str,
    arch: Arch,
    dtype: DType,
    config: &'static DecodeConfig,
) -> Instance {
    Instance {
        name,
        family: Family::Mma,
        arch,
        dtype,
        head_dim: config.head_dim as u32,
        block_m: config.rows,
        block_n: config.step_keys(),
        threads: DecodeConfig::THREADS,
        cluster: 1,
        shared_bytes: config.shared_bytes(),
        operation: Operation::Decode,
        config: KernelConfig::Decode(config),
    }
}

decode_instances! {
    fa_decode_mma_sm80_bf16_hd64 = Sm80 "sm_80", Bf16, decode::HD64;
    fa_decode_mma_sm80_bf16_hd64_rows16 = Sm80 "sm_80", Bf16, decode::HD64_ROWS16;
    fa_decode_mma_sm80_bf16_hd128 = Sm80 "sm_80", Bf16, decode::HD128;
    fa_decode_mma_sm80_bf16_hd128_rows16 = Sm80 "sm_80", Bf16, decode::HD128_ROWS16;
    fa_decode_mma_sm80_bf16_hd256 = Sm80 "sm_80", Bf16, decode::HD256;
    fa_decode_mma_sm80_f16_hd64 = Sm80 "sm_80", F16, decode::HD64;
    fa_decode_mma_sm80_f16_hd64_rows16 = Sm80 "sm_80", F16, decode::HD64_ROWS16;
    fa_decode_mma_sm80_f16_hd128 = Sm80 "sm_80", F16, decode::HD128;
    fa_decode_mma_sm80_f16_hd128_rows16 = Sm80 "sm_80", F16, decode::HD128_ROWS16;
    fa_decode_mma_sm80_f16_hd256 = Sm80 "sm_80", F16, decode::HD256;
    fa_decode_mma_sm80_bf16_hd64_e4m3 = Sm80 "sm_80", Bf16, decode::E4M3_HD64, F16, scales;
    fa_decode_mma_sm80_bf16_hd64_e4m3_rows16 = Sm80 "sm_80", Bf16, decode::E4M3_HD64_ROWS16, F16, scales;
    fa_decode_mma_sm80_bf16_hd128_e4m3 = Sm80 "sm_80", Bf16, decode::E4M3_HD128, F16, scales;
    fa_decode_mma_sm80_bf16_hd128_e4m3_rows16 = Sm80 "sm_80", Bf16, decode::E4M3_HD128_ROWS16, F16, scales;
    fa_decode_mma_sm80_bf16_hd256_e4m3 = Sm80 "sm_80", Bf16, decode::E4M3_HD256, F16, scales;
    fa_decode_mma_sm80_f16_hd64_e4m3 = Sm80 "sm_80", F16, decode::E4M3_HD64, F16, scales;
    fa_decode_mma_sm80_f16_hd64_e4m3_rows16 = Sm80 "sm_80", F16, decode::E4M3_HD64_ROWS16, F16, scales;
    fa_decode_mma_sm80_f16_hd128_e4m3 = Sm80 "sm_80", F16, decode::E4M3_HD128, F16, scales;
    fa_decode_mma_sm80_f16_hd128_e4m3_rows16 = Sm80 "sm_80", F16, decode::E4M3_HD128_ROWS16, F16, scales;
    fa_decode_mma_sm80_f16_hd256_e4m3 = Sm80 "sm_80", F16, decode::E4M3_HD256, F16, scales;
    fa_decode_mma_sm89_bf16_hd64_e4m3 = Sm89 "sm_89", Bf16, decode::CVT_HD64, F16, scales;
    fa_decode_mma_sm89_bf16_hd64_e4m3_rows16 = Sm89 "sm_89", Bf16, decode::CVT_HD64_ROWS16, F16, scales;
    fa_decode_mma_sm89_bf16_hd128_e4m3 = Sm89 "sm_89", Bf16, decode::CVT_HD128, F16, scales;
    fa_decode_mma_sm89_bf16_hd128_e4m3_rows16 = Sm89 "sm_89", Bf16, decode::CVT_HD128_ROWS16, F16, scales;
    fa_decode_mma_sm89_bf16_hd256_e4m3 = Sm89 "sm_89", Bf16, decode::CVT_HD256, F16, scales;
    fa_decode_mma_sm89_f16_hd64_e4m3 = Sm89 "sm_89", F16, decode::CVT_HD64, F16, scales;
    fa_decode_mma_sm89_f16_hd64_e4m3_rows16 = Sm89 "sm_89", F16, decode::CVT_HD64_ROWS16, F16, scales;
    fa_decode_mma_sm89_f16_hd128_e4m3 = Sm89 "sm_89", F16, decode::CVT_HD128, F16, scales;
    fa_decode_mma_sm89_f16_hd128_e4m3_rows16 = Sm89 "sm_89", F16, decode::CVT_HD128_ROWS16, F16, scales;
    fa_decode_mma_sm89_f16_hd256_e4m3 = Sm89 "sm_89", F16, decode::CVT_HD256, F16, scales;
}
