//! Pictures of layouts: which thread holds which element of an instruction's operands, and where the pieces of a tile
//! lie in shared memory. Every place comes from [`kernels_gpu::layout`], the maps the kernels are built on.

pub mod banks;
pub mod fragments;
pub mod grid;
pub mod shared;
mod svg;
