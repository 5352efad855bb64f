//! The three modifications: their definitions, both passes on every backend, and what is refused.

mod definitions;
mod passes;
mod refusals;
