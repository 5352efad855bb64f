//! The reference every backend is held to: attention in f64, from its formula.
//!
//! Nothing here is shared with the kernels: no tiles, no running maximum, no band. A row's scores are
//! all formed, then their maximum, exponentials and sum, then the output.

mod backward;
mod bound;
mod check;
mod naive;
mod pairs;
mod rotary;
mod row;
mod sample;
mod score;
mod worst;

pub use backward::{BackwardInputs, BackwardVerdict, GradientTensors, check_backward};
pub use check::{Verdict, check, check_as, quality};
pub use rotary::{Bounded, rotated_row};
#[cfg(test)]
pub(crate) use row::scores;
pub use row::{Inputs, RowReference};
pub use sample::Rows;
pub use worst::{At, Worst};
