//! Forward attention on Hopper: TMA, `wgmma` and warp specialisation (after FlashAttention-3, Shah et al. 2024).
//!
//! | who | does |
//! |---|---|
//! | cluster | owns `cluster_m` rows at a time, of one query head or of several (`gqa.rs`), the next tile drawn from a counter |
//! | block | owns `block_m` of them; loads its part of every block of K and V for the whole cluster |
//! | warpgroup 0, thread 0 | the producer: draws tiles, starts all TMA loads (`device/producer.rs`) |
//! | warpgroups 1.. | consumers: 64 rows each, scores to output (`consumer.rs`), TMA store (`epilogue.rs`) |
//!
//! | barrier | completes when |
//! |---|---|
//! | `q_full` | the tile's Q is in shared memory |
//! | `q_empty` | every consumer is done with it |
//! | `k_full[stage]`, `v_full[stage]` | a block of K or V is in shared memory, all parts; or V's stage is lent for the output |
//! | `k_empty[stage]`, `v_empty[stage]` | the consumers of all blocks of the cluster have read it |
//! | `work_full[slot]`, `work_empty[slot]` | the next tile is announced, has been read |
//! | `GEMM_TURN` (named) | a warpgroup may issue its GEMMs: the others' softmax is hidden under them |
//! | `GROUP` (named) | the four warps of a warpgroup are together |
//!
//! ```text
//! shared memory   Q      [stage][consumer][panel][64 rows][128 bytes]   128-byte swizzle throughout
//!                 K      [stage][panel][block_n rows][128 bytes]
//!                 V      [stage][panel][block_n rows][128 bytes]
//!                 O      [consumer][panel][64 rows][128 bytes]       or in the next stages of V
//!                 work   [slot][16 bytes, varlen 32]
//!                 mbarriers
//! ```
//!
//! Blocks of keys go from the last visible one to the first: the first taken and those with a mask by the online softmax,
//! the others by the max-free one (`softmax.rs`).

pub mod gqa;
pub mod schedule;
pub mod tensor_map;
pub mod tile_list;

#[cfg(all(target_arch = "nvptx64", gpu_arch = "sm_90a"))]
pub(crate) mod device;
