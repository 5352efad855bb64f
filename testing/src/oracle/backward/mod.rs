//! The reference of the backward pass: gradients in f64, from their formulas, with o and lse as they were given.
//!
//! A row of dq needs one query and every key it sees, a row of dk and dv one key and every query that sees it: no matrix is
//! formed, so rows of any problem can be checked alone.

mod bound;
mod check;
mod exact;

pub use check::{BackwardVerdict, GradientTensors, check_backward};
pub use exact::BackwardInputs;
