//! The simulator on kernels written for the purpose.

mod divergence;
mod faults;
mod fuzz;
mod grids;
mod machine;
mod majors;
mod reductions;
mod start_order;
mod statistics;
