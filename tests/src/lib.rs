//! Tools shared by the test files in `tests/`.
//!
//! The test binaries also run where there is no cargo and no source tree (`cargo xtask dist`):
//! [`paths`] finds what they need in both.

pub mod command;
pub mod corpus;
pub mod device_lengths;
pub mod files;
pub mod folder;
pub mod gpu;
pub mod not_run;
pub mod packed_kernels;
pub mod paths;
pub mod random_cases;
pub mod record;
pub mod replaced;
pub mod schedules;
pub mod specs;
pub mod tensors;
pub mod verdicts;
