//! Gradients of every backend against the f64 oracle, and what must hold of gradients whatever computes them.

mod bad_input;
mod bias;
mod by_plan;
mod differences;
mod few_rows;
mod not_finite;
pub mod planted;
mod random;
mod scattered;
mod slopes;
mod stored_ds;
mod stored_ds_f32;
mod used_keys;
mod without_pairs;
