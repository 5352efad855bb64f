//! The shapes of the Hopper forward kernels, each with what was measured for it.

use super::{EpilogueSmem, WgmmaConfig};
use crate::config::biases::Biases;

/// From here on clusters pay: measured at 512 (−3 % causal) and 1024 (+2 % causal, +7 % full).
const LONG: u32 = 1024;

/// head_dim ≤ 64. Three consumers, as exponentials bind as much as the tensor cores and more warps hide each
/// other's; for the same reason no overlap inside a warpgroup, which costs 5 % there. Four stages of K: a block
/// stays until its exponentials are done, which take most of a step.
pub const HD64: WgmmaConfig = WgmmaConfig {
    head_dim: 64,
    head_dim_v: 64,
    consumers: 3,
    block_n: 128,
    q_stages: 2,
    k_stages: 4,
    v_stages: 3,
    cluster: 1,
    q_in_registers: false,
    overlap: false,
    min_rows: 0,
    producer_registers: 32,
    consumer_registers: 160,
    ..HD128
};
/// head_dim ≤ 96: as 128.
pub const HD96: WgmmaConfig = WgmmaConfig {
    head_dim: 96,
    head_dim_v: 96,
    ..HD128
};
/// head_dim ≤ 128, a cluster of two: multicast halves the L2 traffic, and with it power. The third stage of K fills what
/// shared memory is left (2k full +2 %, else nothing).
pub const HD128: WgmmaConfig = WgmmaConfig {
    head_dim: 128,
    head_dim_v: 128,
    consumers: 2,
    block_n: 128,
    q_stages: 1,
    k_stages: 3,
    v_stages: 2,
    cluster: 2,
    q_in_registers: true,
    overlap: true,
    ping_pong: true,
    epilogue_smem: EpilogueSmem::Own,
    varlen: false,
    modified: false,
    keep_warps: 0,
    biases: Biases::None,
    cached: false,
    min_rows: LONG,
    producer_registers: 40,
    consumer_registers: 232,
};
/// head_dim ≤ 128 without clusters, for short sequences: a cluster's blocks wait for each other.
pub const HD128_NOCLUSTER: WgmmaConfig = WgmmaConfig {
    cluster: 1,
    min_rows: 0,
    ..HD128
};
/// head_dim ≤ 192 with head_dim_v ≤ 128 (DeepSeek's 192/128).
pub const HD192_V128: WgmmaConfig = WgmmaConfig {
    head_dim_v: 128,
    epilogue_smem: EpilogueSmem::Own,
    ..HD192
};
/// head_dim ≤ 192. The longest block for which two stages of K and V fit beside Q, and the scores beside O.
pub const HD192: WgmmaConfig = WgmmaConfig {
    head_dim: 192,
    head_dim_v: 192,
    block_n: 112,
    k_stages: 2,
    q_in_registers: false,
    epilogue_smem: EpilogueSmem::ReuseV,
    ..HD128
};
/// head_dim ≤ 256: as 192.
pub const HD256: WgmmaConfig = WgmmaConfig {
    head_dim: 256,
    head_dim_v: 256,
    block_n: 80,
    ..HD192
};
/// head_dim ≤ 256 without clusters, for short sequences: as 128.
pub const HD256_NOCLUSTER: WgmmaConfig = WgmmaConfig {
    cluster: 1,
    min_rows: 0,
    ..HD256
};
/// head_dim ≤ 64, keys of a cache.
pub const CACHED_HD64: WgmmaConfig = HD64.for_cache();
/// head_dim ≤ 128, keys of a cache.
pub const CACHED_HD128: WgmmaConfig = HD128.for_cache();
/// head_dim ≤ 256, keys of a cache: a block of whole boxes.
pub const CACHED_HD256: WgmmaConfig = WgmmaConfig {
    block_n: 64,
    ..HD256
}
.for_cache();
/// head_dim ≤ 64 with modifiers: two consumers, which have the registers that options need.
pub const MODIFIED_HD64: WgmmaConfig = NARROW_HD64.with_modifiers().with_keep_warpgroup();
/// As [`HD64`], with two consumers.
const NARROW_HD64: WgmmaConfig = WgmmaConfig {
    consumers: 2,
    ..HD64
};
/// head_dim ≤ 128 with modifiers.
pub const MODIFIED_HD128: WgmmaConfig = HD128.with_modifiers().with_keep_warpgroup();
/// head_dim ≤ 256 with modifiers: a shorter block, which leaves registers for what they need.
pub const MODIFIED_HD256: WgmmaConfig = WgmmaConfig {
    block_n: 64,
    ..HD256
}
.with_modifiers();

/// head_dim ≤ 64 with biases, among other modifiers. Three warps keep up with consumers that add biases.
pub const BIASED_HD64: WgmmaConfig = NARROW_HD64.with_modifiers().with_biases(Biases::Copied);
/// head_dim ≤ 128 with biases: in place of a third stage of K.
pub const BIASED_HD128: WgmmaConfig = WgmmaConfig {
    k_stages: 2,
    ..HD128
}
.with_modifiers()
.with_biases(Biases::Copied);
/// head_dim ≤ 256 with biases.
pub const BIASED_HD256: WgmmaConfig = MODIFIED_HD256.with_biases(Biases::Copied);

const _: () = {
    HD64.check();
    HD96.check();
    HD128.check();
    HD128_NOCLUSTER.check();
    HD192_V128.check();
    HD192.check();
    HD256.check();
    HD256_NOCLUSTER.check();
    BIASED_HD64.for_varlen().check();
    BIASED_HD128.for_varlen().check();
    BIASED_HD256.for_varlen().check();
    MODIFIED_HD64.for_varlen().check();
    MODIFIED_HD128.for_varlen().check();
    MODIFIED_HD256.for_varlen().check();
    CACHED_HD64.check();
    CACHED_HD128.check();
    CACHED_HD256.check();
    // A varlen kernel publishes more.
    HD64.for_varlen().check();
    HD96.for_varlen().check();
    HD128.for_varlen().check();
    HD128_NOCLUSTER.for_varlen().check();
    HD192_V128.for_varlen().check();
    HD192.for_varlen().check();
    HD256.for_varlen().check();
    HD256_NOCLUSTER.for_varlen().check();
};
