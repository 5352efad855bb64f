//! The modifications: their definitions, both passes on every backend, their PTX, and what is refused.

mod definitions;
mod passes;
mod ptx;
mod refusals;
