//! Matrix instructions.

pub(super) mod element;
mod matrix_move;
mod mma;
