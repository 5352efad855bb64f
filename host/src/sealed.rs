//! Seals the crate's public traits, so that they may gain methods.

/// Supertrait of sealed traits. Its name is private to this crate, so only this crate can implement them.
pub trait Sealed {}
