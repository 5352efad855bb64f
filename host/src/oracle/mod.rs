//! The reference every backend is held to: attention in f64, from its formula.
//!
//! Nothing here is shared with the kernels: no tiles, no running maximum, no band. A row's scores are
//! all formed, then their maximum, exponentials and sum, then the output.

mod bound;
mod check;
mod naive;
mod row;
mod score;

pub use check::{At, Rows, Verdict, Worst, check};
#[cfg(test)]
pub(crate) use row::scores;
pub use row::{Inputs, RowReference};
