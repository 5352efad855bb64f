//! Floating-point arithmetic with PTX rounding.
//!
//! Every operation is computed in f64 *rounded to odd* (`exact`), then rounded once to its format
//! (`round`). Rounding to odd keeps the sticky information, so the second rounding is correct for
//! every format with at most 51 significant bits and every mode (Boldo and Melquiond, "Emulation of
//! FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008).

pub(crate) mod exact;
pub(crate) mod half;
pub(crate) mod ops;
pub(crate) mod round;
