//! Kernels with a score modification of a user's own ([`ScoreMod`](crate::modifiers::ScoreMod)), which a crate of the user's
//! compiles.

use super::{BLOCK_STATES, Instance, TILE_LIST};
use crate::config::mma_backward::MmaBackwardConfig;
use crate::dtype::DType;

/// The rows of several tables, `N` together.
pub const fn joined<const N: usize>(tables: &[&[Instance]]) -> [Instance; N] {
    let mut all = [TILE_LIST; N];
    let (mut table, mut next) = (0, 0);
    while table < tables.len() {
        let mut row = 0;
        while row < tables[table].len() {
            all[next] = tables[table][row];
            row += 1;
            next += 1;
        }
        table += 1;
    }
    assert!(next == N);
    all
}

/// The row of a kernel that finds what tiles and blocks look like, called `name`.
pub const fn block_states(name: &'static str) -> Instance {
    Instance {
        name,
        ..BLOCK_STATES
    }
}

/// The row of a kernel that rounds dq, called `name`, of problems that kernels of `config` run.
pub const fn rounding(name: &'static str, dtype: DType, config: &MmaBackwardConfig) -> Instance {
    Instance {
        head_dim: config.head_dim as u32,
        ..super::backward::rounding(name, dtype)
    }
}

/// Compiles kernels with a score modification: `score_mod!(Type as name for bf16 64, bf16 128, f32 64);`
///
/// `Type` implements [`ScoreMod`](crate::modifiers::ScoreMod), and gets
/// [`ScoreModKernels`](crate::modifiers::ScoreModKernels) by this. `name` is the end of its kernels' names, and no other
/// modification's of the program. What follows are the dtypes (`f32`, `f16`, `bf16`) and the largest head_dims (64, 128, 256) to
/// compile for, a forward and two backward kernels each. In 16 bits there are two more, of which one adds dq up beside dk and dv and the other
/// rounds it, and for Hopper two forward kernels, and up to a head_dim of 128 one that adds dq up. A problem is given to the next larger head_dim that there is.
///
/// The crate is `no_std`, and has these features where it is compiled for the GPU:
///
/// ```text
/// #![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch))]
/// ```
#[macro_export]
macro_rules! score_mod {
    ($type:ty as $name:ident for $($dtype:tt $head_dim:tt),+ $(,)?) => {
        impl $crate::modifiers::ScoreModKernels for $type {
            const NAME: &'static str = stringify!($name);
            const INSTANCES: &'static [$crate::instances::Instance] = {
                const TABLES: &[&[$crate::instances::Instance]] =
                    &[$($crate::__score_mod_of!(rows, $type, $name, $dtype $head_dim)),+];
                const COUNT: usize = {
                    let (mut table, mut count) = (0, 0);
                    while table < TABLES.len() {
                        count += TABLES[table].len();
                        table += 1;
                    }
                    count
                };
                &$crate::instances::rows::joined::<COUNT>(TABLES)
            };
            const BLOCK_STATES: &'static $crate::instances::Instance =
                &$crate::instances::rows::block_states(concat!(
                    "fa_block_states_simt_sm80_",
                    stringify!($name)
                ));
        }

        $crate::__on_sm_80! {
            $($crate::__score_mod_of!(sm_80, $type, $name, $dtype $head_dim);)+

            /// What the pairs of every tile and block look like.
            ///
            /// # Safety
            /// `params` describes live allocations that hold every element it can address.
            #[$crate::cuda_std::append_name($name)]
            #[$crate::cuda_std::launch_bounds($crate::config::warp_per_row::THREADS)]
            #[$crate::cuda_std::kernel]
            pub unsafe fn fa_block_states_simt_sm80(
                params: $crate::abi::BlockStatesParams,
                score_mod: $type,
            ) {
                let modifiers = $crate::modifiers::WithScoreMod::new(params.modifiers, score_mod);
                // SAFETY: forwarded to the launch.
                unsafe { $crate::tile::block_states::block_states::<{ $crate::config::warp_per_row::ROWS }, _>(&params, &modifiers) }
            }
        }

        $crate::__on_sm_90a! {
            $($crate::__score_mod_of!(sm_90a, $type, $name, $dtype $head_dim);)+
        }
    };
}

/// The kernels of an architecture, or the rows of the table, for a dtype and a head_dim.
#[doc(hidden)]
#[macro_export]
macro_rules! __score_mod_of {
    ($what:ident, $type:ty, $name:ident, f32 64) => {
        $crate::__score_mod_simt! {
            $what, $type, $name, MODIFIED_HD64, MODIFIED_BACKWARD_HD64,
            fa_fwd_simt_sm80_f32_hd64, fa_bwd_dkdv_simt_sm80_f32_hd64, fa_bwd_dq_simt_sm80_f32_hd64
        }
    };
    ($what:ident, $type:ty, $name:ident, f32 128) => {
        $crate::__score_mod_simt! {
            $what, $type, $name, MODIFIED_HD128, MODIFIED_BACKWARD_HD128,
            fa_fwd_simt_sm80_f32_hd128, fa_bwd_dkdv_simt_sm80_f32_hd128, fa_bwd_dq_simt_sm80_f32_hd128
        }
    };
    ($what:ident, $type:ty, $name:ident, f32 256) => {
        $crate::__score_mod_simt! {
            $what, $type, $name, MODIFIED_HD256, MODIFIED_BACKWARD_HD256,
            fa_fwd_simt_sm80_f32_hd256, fa_bwd_dkdv_simt_sm80_f32_hd256, fa_bwd_dq_simt_sm80_f32_hd256
        }
    };
    ($what:ident, $type:ty, $name:ident, f16 64) => {
        $crate::__score_mod_half! {
            $what, $type, $name, F16, MODIFIED_HD64,
            mma: fa_fwd_mma_sm80_f16_hd64, fa_bwd_dkdv_mma_sm80_f16_hd64, fa_bwd_dq_mma_sm80_f16_hd64,
                fa_bwd_fused_mma_sm80_f16_hd64 = FUSED_HD64, fa_bwd_round_mma_sm80_f16_hd64;
            wgmma: fa_fwd_wgmma_sm90a_f16_hd64, fa_fwd_wgmma_sm90a_f16_hd64_varlen; fa_bwd_fused_wgmma_sm90a_f16_hd64 = FUSED_HD64, rs
        }
    };
    ($what:ident, $type:ty, $name:ident, f16 128) => {
        $crate::__score_mod_half! {
            $what, $type, $name, F16, MODIFIED_HD128,
            mma: fa_fwd_mma_sm80_f16_hd128, fa_bwd_dkdv_mma_sm80_f16_hd128, fa_bwd_dq_mma_sm80_f16_hd128,
                fa_bwd_fused_mma_sm80_f16_hd128 = MODIFIED_HD128, fa_bwd_round_mma_sm80_f16_hd128;
            wgmma: fa_fwd_wgmma_sm90a_f16_hd128, fa_fwd_wgmma_sm90a_f16_hd128_varlen; fa_bwd_fused_wgmma_sm90a_f16_hd128 = FUSED_HD128, ss
        }
    };
    ($what:ident, $type:ty, $name:ident, f16 256) => {
        $crate::__score_mod_half! {
            $what, $type, $name, F16, MODIFIED_HD256,
            mma: fa_fwd_mma_sm80_f16_hd256, fa_bwd_dkdv_mma_sm80_f16_hd256, fa_bwd_dq_mma_sm80_f16_hd256,
                fa_bwd_fused_mma_sm80_f16_hd256 = MODIFIED_HD256, fa_bwd_round_mma_sm80_f16_hd256;
            wgmma: fa_fwd_wgmma_sm90a_f16_hd256, fa_fwd_wgmma_sm90a_f16_hd256_varlen;
        }
    };
    ($what:ident, $type:ty, $name:ident, bf16 64) => {
        $crate::__score_mod_half! {
            $what, $type, $name, Bf16, MODIFIED_HD64,
            mma: fa_fwd_mma_sm80_bf16_hd64, fa_bwd_dkdv_mma_sm80_bf16_hd64, fa_bwd_dq_mma_sm80_bf16_hd64,
                fa_bwd_fused_mma_sm80_bf16_hd64 = FUSED_HD64, fa_bwd_round_mma_sm80_bf16_hd64;
            wgmma: fa_fwd_wgmma_sm90a_bf16_hd64, fa_fwd_wgmma_sm90a_bf16_hd64_varlen; fa_bwd_fused_wgmma_sm90a_bf16_hd64 = FUSED_HD64, rs
        }
    };
    ($what:ident, $type:ty, $name:ident, bf16 128) => {
        $crate::__score_mod_half! {
            $what, $type, $name, Bf16, MODIFIED_HD128,
            mma: fa_fwd_mma_sm80_bf16_hd128, fa_bwd_dkdv_mma_sm80_bf16_hd128, fa_bwd_dq_mma_sm80_bf16_hd128,
                fa_bwd_fused_mma_sm80_bf16_hd128 = MODIFIED_HD128, fa_bwd_round_mma_sm80_bf16_hd128;
            wgmma: fa_fwd_wgmma_sm90a_bf16_hd128, fa_fwd_wgmma_sm90a_bf16_hd128_varlen; fa_bwd_fused_wgmma_sm90a_bf16_hd128 = FUSED_HD128, ss
        }
    };
    ($what:ident, $type:ty, $name:ident, bf16 256) => {
        $crate::__score_mod_half! {
            $what, $type, $name, Bf16, MODIFIED_HD256,
            mma: fa_fwd_mma_sm80_bf16_hd256, fa_bwd_dkdv_mma_sm80_bf16_hd256, fa_bwd_dq_mma_sm80_bf16_hd256,
                fa_bwd_fused_mma_sm80_bf16_hd256 = MODIFIED_HD256, fa_bwd_round_mma_sm80_bf16_hd256;
            wgmma: fa_fwd_wgmma_sm90a_bf16_hd256, fa_fwd_wgmma_sm90a_bf16_hd256_varlen;
        }
    };
    ($what:ident, $type:ty, $name:ident, $dtype:tt $head_dim:tt) => {
        compile_error!("a dtype is one of f32, f16 and bf16, and a head_dim one of 64, 128 and 256")
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __score_mod_simt {
    (sm_80, $type:ty, $name:ident, $config:ident, $backward:ident, $forward:ident, $keys:ident, $queries:ident) => {
        $crate::__simt_forward!($forward, $crate::config::simt::$config,
            modifiers: $crate::modifiers::WithScoreMod<$type>; $name);
        $crate::__simt_backward!($keys, KeepKeys, $crate::config::simt::$backward, "dk and dv in fp32.",
            modifiers: $crate::modifiers::WithScoreMod<$type>; $name);
        $crate::__simt_backward!($queries, KeepQueries, $crate::config::simt::$backward, "dq in fp32.",
            modifiers: $crate::modifiers::WithScoreMod<$type>; $name);
    };
    (sm_90a, $($rest:tt)*) => {};
    (rows, $type:ty, $name:ident, $config:ident, $backward:ident, $forward:ident, $keys:ident, $queries:ident) => {
        &[
            $crate::instances::rows::simt_forward(
                concat!(stringify!($forward), "_", stringify!($name)),
                &$crate::config::simt::$config,
            ),
            $crate::instances::rows::simt_backward(
                concat!(stringify!($keys), "_", stringify!($name)),
                $crate::instances::Operation::BackwardKeys,
                &$crate::config::simt::$backward,
            ),
            $crate::instances::rows::simt_backward(
                concat!(stringify!($queries), "_", stringify!($name)),
                $crate::instances::Operation::BackwardQueries,
                &$crate::config::simt::$backward,
            ),
        ]
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __score_mod_half {
    (
        sm_80, $type:ty, $name:ident, $dtype:ident, $config:ident,
        mma: $forward:ident, $keys:ident, $queries:ident, $fused:ident = $fused_config:ident, $round:ident;
        wgmma: $($hopper:tt)*
    ) => {
        $crate::__mma_forward!($forward, $dtype, $crate::config::mma::$config,
            modifiers: $crate::modifiers::WithScoreMod<$type>; $name);
        $crate::__mma_backward!($keys, $dtype, KeepKeys, false, $crate::config::mma_backward::$config, "dk and dv.",
            modifiers: $crate::modifiers::WithScoreMod<$type>; $name);
        $crate::__mma_backward!($queries, $dtype, KeepQueries, false, $crate::config::mma_backward::$config, "dq.",
            modifiers: $crate::modifiers::WithScoreMod<$type>; $name);
        $crate::__mma_backward!($fused, $dtype, KeepKeys, true, $crate::config::mma_backward::$fused_config,
            "dk and dv, and dq added up in f32.",
            modifiers: $crate::modifiers::WithScoreMod<$type>; $name);
        $crate::__round!($round, $dtype, modifiers: $crate::modifiers::WithScoreMod<$type>; $name);
    };
    (
        sm_90a, $type:ty, $name:ident, $dtype:ident, $config:ident,
        mma: $_forward:ident, $_keys:ident, $_queries:ident, $_fused:ident = $_config:ident, $_round:ident;
        wgmma: $forward:ident, $varlen:ident; $($gradients:ident = $gradients_config:ident, $kept:ident)?
    ) => {
        $crate::__wgmma_forward!($forward, $dtype, $crate::config::wgmma::$config.with_score_mod(<$type as $crate::modifiers::ScoreMod>::CHANGES_SCORES), ss,
            modifiers: $crate::modifiers::WithScoreMod<$type>; $name);
        $crate::__wgmma_forward!($varlen, $dtype, $crate::config::wgmma::$config.with_score_mod(<$type as $crate::modifiers::ScoreMod>::CHANGES_SCORES).for_varlen(), ss,
            modifiers: $crate::modifiers::WithScoreMod<$type>; $name);
        $(
            $crate::__wgmma_backward!($gradients, $dtype, KeepKeys, $crate::config::wgmma_backward::$gradients_config, $kept,
                modifiers: $crate::modifiers::WithScoreMod<$type>; $name);
        )?
    };
    (
        rows, $type:ty, $name:ident, $dtype:ident, $config:ident,
        mma: $forward:ident, $keys:ident, $queries:ident, $fused:ident = $fused_config:ident, $round:ident;
        wgmma: $hopper:ident, $varlen:ident; $($gradients:ident = $gradients_config:ident, $kept:ident)?
    ) => {
        &[
            $crate::instances::rows::mma_forward(
                concat!(stringify!($forward), "_", stringify!($name)),
                $crate::dtype::DType::$dtype,
                &$crate::config::mma::$config,
            ),
            $crate::instances::rows::mma_backward(
                concat!(stringify!($keys), "_", stringify!($name)),
                $crate::dtype::DType::$dtype,
                $crate::instances::Operation::BackwardKeys,
                &$crate::config::mma_backward::$config,
            ),
            $crate::instances::rows::mma_backward(
                concat!(stringify!($queries), "_", stringify!($name)),
                $crate::dtype::DType::$dtype,
                $crate::instances::Operation::BackwardQueries,
                &$crate::config::mma_backward::$config,
            ),
            $crate::instances::rows::mma_backward(
                concat!(stringify!($fused), "_", stringify!($name)),
                $crate::dtype::DType::$dtype,
                $crate::instances::Operation::BackwardFused,
                &$crate::config::mma_backward::$fused_config,
            ),
            $crate::instances::rows::rounding(
                concat!(stringify!($round), "_", stringify!($name)),
                $crate::dtype::DType::$dtype,
                &$crate::config::mma_backward::$fused_config,
            ),
            $crate::instances::rows::wgmma_forward(
                concat!(stringify!($hopper), "_", stringify!($name)),
                $crate::dtype::DType::$dtype,
                &$crate::config::wgmma::$config.with_score_mod(<$type as $crate::modifiers::ScoreMod>::CHANGES_SCORES),
            ),
            $crate::instances::rows::wgmma_forward(
                concat!(stringify!($varlen), "_", stringify!($name)),
                $crate::dtype::DType::$dtype,
                &$crate::config::wgmma::$config.with_score_mod(<$type as $crate::modifiers::ScoreMod>::CHANGES_SCORES).for_varlen(),
            ),
            $(
                $crate::instances::rows::wgmma_backward(
                    concat!(stringify!($gradients), "_", stringify!($name)),
                    $crate::dtype::DType::$dtype,
                    $crate::instances::Operation::BackwardFused,
                    &$crate::config::wgmma_backward::$gradients_config,
                ),
            )?
        ]
    };
}
