//! The memories a kernel sees.

pub(crate) mod bitmap;
pub(crate) mod global;
pub(crate) mod local;
pub(crate) mod shared;

pub use global::Memory;
