//! Layouts: shared-memory tiles and the registers of tensor-core fragments.
//!
//! Plain `const fn`s without a target, so that their properties (one place for each element, no bank conflict)
//! are proved by tests on the CPU.

pub mod ds_tile;
pub mod fragment;
pub mod swizzle;
pub mod swizzle_mode;
pub mod terms;
pub mod wgmma;
