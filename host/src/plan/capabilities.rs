use kernels_gpu::instances::Family;

/// What a backend can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Capabilities {
    /// The host's own processor.
    Cpu,
    /// A GPU, or a simulation of one.
    Gpu(GpuCapabilities),
}

/// What a GPU can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuCapabilities {
    /// Major and minor compute capability; (9, 0) is Hopper.
    pub compute_capability: (u32, u32),
    /// Largest shared memory of one block, in bytes, with opt-in.
    pub shared_bytes: u32,
    /// Streaming multiprocessors, which persistent kernels have a block or a part of a cluster on each of.
    pub multiprocessors: u32,
    /// Families whose instructions it has; a simulator may lack some that its compute capability
    /// promises.
    pub families: &'static [Family],
}
