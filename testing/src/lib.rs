//! Test tools of ferroflash: problems to try a backend on ([`cases`]), and the reference that results are compared with
//! ([`oracle`]); and the matrices of what is trained with its gradients ([`matrix`]).
//!
//! `ferroflash verify`, the property tests and `ferroflash bench` share them. Depends on the library's interface, and
//! on no backend.

pub mod cases;
pub mod matrix;
pub mod oracle;
mod round;

pub use round::round;
