//! Backward in fp32 where dS passes from the kernel of dk and dv to that of dq, through a workspace: five matrix products
//! for seven, and still every sum by one thread in one order.
//!
//! | kernel | owns | passes over | products |
//! |---|---|---|---|
//! | `keys.rs` | K, V of a block of keys | Q, dO of every query head that shares them | S, dP, dV, dK |
//! | `queries.rs` | a block of queries | the tiles of dS in which keys meet them, K | dQ |
//!
//! A tile of dS lies in the workspace as `[key][query]`, [`DsTiles`] says where.

mod group;
mod keys;
mod products;
mod queries;

pub use keys::keys;
pub use queries::queries;

use crate::abi::AttentionParams;
use crate::config::simt_split::{SplitKeysConfig, SplitQueriesConfig};
use crate::tile::ds_tiles::DsTiles;
use crate::units::F32_BYTES;

/// One instance of the kernel of dk and dv.
pub trait SplitKeysKernel {
    const CONFIG: SplitKeysConfig;
}

/// One instance of the kernel of dq.
pub trait SplitQueriesKernel {
    const CONFIG: SplitQueriesConfig;
}

/// Bytes of a key's dS in a tile.
const DS_ROW_BYTES: u32 = SplitQueriesConfig::BLOCK_M as u32 * F32_BYTES;

/// The extents of dS.
#[inline(always)]
fn ds_tiles(params: &AttentionParams, config: &SplitKeysConfig) -> DsTiles {
    let block_m = config.group.block_m() as u32;
    DsTiles::new(
        params,
        SplitQueriesConfig::BLOCK_M as u32,
        block_m,
        F32_BYTES,
    )
}
