//! What is checked and counted beside the execution itself.

mod counting;
mod order;

pub(crate) use order::Touch;
