//! What fronts share that know operands by their addresses, whichever framework these are of.
//!
//! | file | what it does |
//! |---|---|
//! | `place` | backends by GPU and stream: what a framework's streams are to the library |
//! | `options` | windows and lengths, as frameworks give them |
//! | `problem` | a pass of either direction, by its tensors in their order |
//! | `cache` | caches of keys and values, and appending to them |

mod cache;
mod options;
mod place;
mod problem;

pub use cache::{BlockTable, Cache, NewRows, Operand};
pub use options::{lengths, visible};
pub use place::{Place, lock};
pub use problem::problem;
