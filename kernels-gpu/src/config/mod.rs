//! Tile shapes: one row per kernel instance, with the measured reason beside it; one file per family. [`limits`] holds what
//! GPUs allow them.

pub mod biases;
pub mod check_cache;
pub mod decode;
pub mod limits;
pub mod mma;
pub mod mma_backward;
pub mod round;
pub mod simt;
pub mod simt_split;
pub mod tile_list;
pub mod warp_per_row;
pub mod wgmma;
pub mod wgmma_backward;
pub mod wgmma_backward_split;
