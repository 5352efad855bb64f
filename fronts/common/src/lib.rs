//! What fronts share that know operands by their addresses, whichever framework these are of.
//!
//! | file | what it does |
//! |---|---|
//! | `place` | backends by GPU and stream: what a framework's streams are to the library |
//! | `options` | windows and lengths, as frameworks give them |
//! | `problem` | a pass of either direction, by its tensors in their order |
//! | `addresses` | those of a pass, by the order of its tensors and arrays |
//! | `cache` | caches of keys and values, and appending to them |

mod addresses;
mod cache;
mod options;
mod place;
mod problem;

pub use addresses::{forward_operands, gradient_operands};
pub use cache::{BlockTable, Cache, NewRows, Operand};
pub use options::{lengths, precision, visible};
pub use place::{Place, lock};
pub use problem::problem;
