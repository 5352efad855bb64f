//! The parts of the backward pass that do not depend on how a kernel multiplies.

pub mod bias;
pub mod careful;
pub mod delta;
pub mod exponent;
pub mod round;
pub mod side;
pub mod sinks;
pub mod slope_sums;
