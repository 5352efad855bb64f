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
#[non_exhaustive]
pub struct GpuCapabilities {
    /// Major and minor compute capability; (9, 0) is Hopper.
    pub compute_capability: (u32, u32),
    /// Largest shared memory of one block, in bytes, with opt-in.
    pub shared_bytes: u32,
    /// Streaming multiprocessors, which persistent kernels have a block or a part of a cluster on each of.
    pub multiprocessors: u32,
    /// Families whose instructions it has; a simulator may lack some that its compute capability
    /// promises.
    #[doc(hidden)]
    pub families: &'static [Family],
}

impl GpuCapabilities {
    /// A GPU of this compute capability, with so many bytes of shared memory for a block and so many multiprocessors.
    pub const fn new(
        compute_capability: (u32, u32),
        shared_bytes: u32,
        multiprocessors: u32,
    ) -> Self {
        Self {
            compute_capability,
            shared_bytes,
            multiprocessors,
            families: &Family::ALL,
        }
    }

    /// The same GPU, which runs these families of kernels alone.
    #[doc(hidden)]
    pub const fn with_families(self, families: &'static [Family]) -> Self {
        Self { families, ..self }
    }
}
