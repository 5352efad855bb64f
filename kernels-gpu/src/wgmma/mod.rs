//! Attention on Hopper: TMA, `wgmma` and warp specialisation (after FlashAttention-3, Shah et al. 2024). This page is about
//! the forward pass; the backward pass has its own (`backward/mod.rs`).
//!
//! | who | does |
//! |---|---|
//! | cluster | owns `cluster_m` rows at a time, of one query head or of several (`pack_gqa.rs`), the next tile fetched from a semaphore |
//! | block | owns `block_m` of them; loads its part of every block of K and V for the whole cluster |
//! | warpgroup 0, a thread of its first warp | the producer: fetches tiles, starts all TMA loads (`forward/producer.rs`); of a cache a thread of its second warp starts those of V |
//! | warpgroups 1.. | consumers: 64 rows each, scores to output (`forward/consumer.rs`), TMA store (`forward/epilogue.rs`) |
//!
//! | barrier | completes when |
//! |---|---|
//! | `q_full` | the tile's Q is in shared memory |
//! | `q_empty` | every consumer is done with it |
//! | `k_full[stage]`, `v_full[stage]` | a block of K or V is in shared memory, all parts; or the stage of V is reserved for the output |
//! | `k_empty[stage]`, `v_empty[stage]` | the consumers of all blocks of the cluster have read it |
//! | `work_full[stage]`, `work_empty[stage]` | the next tile is published, is no longer read |
//! | `WARP_SCHEDULER` (named) | a warpgroup may issue its GEMMs, under which the others' softmax runs |
//! | `WARPGROUP_SYNC` (named) | the four warps of a warpgroup are together |
//!
//! ```text
//! shared memory   Q      [stage][consumer][atom column][64 rows][128 bytes]   128-byte swizzle throughout
//!                 K      [stage][atom column][block_n rows][128 bytes]
//!                 V      [stage][atom column][block_n rows][128 bytes]
//!                 O      [consumer][atom column][64 rows][128 bytes]   or in the next stages of V
//!                 work   [stage][16 bytes, varlen 32]
//!                 mbarriers
//!                 blocks [stage of K]   with modifiers: which block of keys the stage holds
//! ```
//!
//! Blocks of keys go from the last visible one to the first: the first taken and those with a mask by the online softmax,
//! the others under a stale maximum (`forward/softmax.rs`). Those of a cache come from its pages (`pages.rs`), which another kernel
//! has checked (`check_cache.rs`). An *atom column* is a column of the swizzle's atoms, 64 elements wide.

pub mod pack_gqa;
pub mod scheduler;
pub mod tensor_map;

#[cfg(all(target_arch = "nvptx64", gpu_arch = "sm_90a"))]
pub mod backward;
#[cfg(all(target_arch = "nvptx64", gpu_arch = "sm_90a"))]
mod barriers;
#[cfg(all(target_arch = "nvptx64", gpu_arch = "sm_80"))]
pub(crate) mod check_cache;
#[cfg(all(target_arch = "nvptx64", gpu_arch = "sm_90a"))]
pub mod forward;
#[cfg(all(target_arch = "nvptx64", gpu_arch = "sm_90a"))]
mod pages;
#[cfg(all(target_arch = "nvptx64", gpu_arch = "sm_90a"))]
mod pipeline;
