//! Tile shapes of these kernels.

pub mod ladder;
pub mod probe;
