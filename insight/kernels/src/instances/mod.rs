//! The instance table: the only place that names a kernel of this crate.

mod ladder;
mod probe;

pub use ladder::LADDER;
pub use probe::PROBES;

use kernels_gpu::instances::Instance;

/// Every exported kernel: [`LADDER`] and [`PROBES`].
pub fn all() -> impl Iterator<Item = &'static Instance> {
    LADDER.iter().chain(PROBES)
}

/// The exported kernel of that name.
pub fn find(name: &str) -> Option<&'static Instance> {
    all().find(|instance| instance.name == name)
}
