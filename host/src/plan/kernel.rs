//! A kernel that was found for a problem.

use kernels_gpu::instances::Instance;

use super::backward::BackwardKernels;
use super::decode::DecodeLaunch;
use super::hopper::HopperForward;

/// A kernel that can run a problem, and how.
#[derive(Debug)]
pub(super) struct Kernel {
    pub instance: &'static Instance,
    pub how: How,
}

/// A decode kernel beside another, and its launch.
pub(super) type Companion = (&'static Instance, Box<DecodeLaunch>);

/// How a kernel runs a problem.
#[derive(Debug)]
pub(super) enum How {
    /// With the parameters of every forward kernel alone.
    Plain,
    /// With those and the launch data of a Hopper kernel; and, of packed queries beside a cache, with a decode kernel for sequences
    /// with few of them.
    Hopper(Box<HopperForward>, Option<Companion>),
    /// With those and the parameters of modifiers.
    Modified,
    /// With those of a decode kernel.
    Decode(Box<DecodeLaunch>),
    /// A backward pass, with several kernels.
    Backward(Box<BackwardKernels>),
    /// There is nothing to compute.
    NotAtAll,
}
