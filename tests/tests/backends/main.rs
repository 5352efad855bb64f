//! Every backend against the oracle. One binary: each would link the library, the simulator and all kernels.

mod append;
mod backward;
mod borders;
mod corpus;
mod decode;
mod determinism;
mod device_lengths;
mod every_kernel;
mod extremes;
mod few_queries;
mod gqa;
mod growing_scores;
mod hooks;
mod hopper_modifiers;
mod long_lists;
mod merge;
mod modifiers;
mod non_finite;
mod oracle;
mod packed;
mod peer_shapes;
mod properties;
mod score_limits;
mod selection;
mod stress;
mod training;
