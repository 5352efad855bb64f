use kernels_gpu::instances::Family;

/// Capabilities of a backend, from which a plan's kernels are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Capabilities {
    /// The host's own processor.
    Cpu,
    /// A GPU, or a simulation of one.
    Gpu(GpuCapabilities),
}

/// Capabilities of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuCapabilities {
    /// Major and minor compute capability; (9, 0) is Hopper.
    pub compute_capability: (u32, u32),
    /// Largest shared memory of one block, in bytes, with opt-in.
    pub shared_bytes: u32,
    /// Streaming multiprocessors. Persistent kernels run one block on each, alone or as part of a cluster.
    pub multiprocessors: u32,
    /// Kernel families whose instructions it has; a simulator may lack some that its compute capability implies.
    #[doc(hidden)]
    pub families: &'static [Family],
}

impl GpuCapabilities {
    /// A GPU of this compute capability, with `shared_bytes` of shared memory a block and this many multiprocessors.
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

    /// The same GPU, restricted to these kernel families.
    #[doc(hidden)]
    pub const fn with_families(self, families: &'static [Family]) -> Self {
        Self { families, ..self }
    }
}
