//! Matrix instructions.

mod descriptor;
pub(super) mod element;
mod matrix_move;
mod mma;
mod product;
pub(crate) mod wgmma;
mod wgmma_product;
pub(crate) mod wgmma_registers;
