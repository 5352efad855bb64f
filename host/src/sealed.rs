//! What keeps a public trait to this crate, so that it may gain methods.

/// Nobody else can name it, and so nobody else can implement a trait that asks for it.
pub trait Sealed {}
