//! The PTX that this crate was built with.

use kernels_gpu::instances::Instance;

/// The PTX module that holds the kernel of `instance`.
pub(super) fn ptx_of(instance: &Instance) -> &'static str {
    ferroflash_ptx::ptx(instance.name).expect("every instance has a module")
}
