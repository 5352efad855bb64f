//! What ferroflash is tested with: problems to try a backend on ([`cases`]), and the reference that its results are held to
//! ([`oracle`]).
//!
//! `ferroflash verify`, the property tests and `ferroflash bench` share it. It knows the library's interface and no backend.

pub mod cases;
pub mod oracle;
mod round;

pub use round::round;
