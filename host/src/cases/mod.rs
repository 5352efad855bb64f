//! Problems to try a backend on: random and planted inputs, from a seed.
//!
//! `ferroflash verify` and the property tests draw from here, so that a case which one of them
//! finds can be given to the other.

mod arrangement;
mod draw;
mod fill;
mod kind;
mod lengths;
mod planted;
mod reachable;
mod spec;
mod stress;

pub use arrangement::Arrangement;
pub use draw::{Limits, dtypes_of, tile_sizes};
pub use fill::normal;
pub use kind::InputKind;
pub use lengths::Lengths;
pub use spec::{AlibiSpec, Case, CaseSpec};
