//! Passes over PTX text, each a pure function.

pub mod finish;
pub mod item;
pub mod lines;
pub mod split;
