//! The parts of the backward pass that do not depend on how a kernel multiplies.

pub mod delta;
