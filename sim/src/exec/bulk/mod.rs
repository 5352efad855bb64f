//! Bulk asynchronous copies (PTX ISA §9.7.9.25–27): issued here, performed later.
//!
//! A copy *flies* from its issue until it lands: its source is read and its destination written at
//! the landing, which comes as late as the program allows (when it is waited for, or when no warp can
//! go on), or at a moment the schedule seed picks.

mod boxes;
mod flight;
mod issue;
mod land;
mod order;

pub(crate) use flight::Flight;
