//! Layouts: shared-memory tiles, the registers of tensor-core fragments, and the tree over a cache's keys.
//!
//! Plain `const fn`s without a target, so that their properties (one place for each element, no bank conflict)
//! are proved by tests on the CPU.

pub mod ds_tile;
pub mod fragment;
pub mod key_tree;
pub mod swizzle;
pub mod swizzle_mode;
pub mod terms;
pub mod wgmma;
