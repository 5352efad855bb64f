//! PTX of kernels that a crate of the caller's brings.

use std::fmt;

/// The PTX of a crate of kernels that is not ferroflash's own, as [`include_ptx!`](crate::include_ptx) embeds it.
#[derive(Clone, Copy)]
pub struct PtxModules {
    #[cfg(feature = "gpu")]
    modules: &'static [ferroflash_ptx::Module],
}

impl PtxModules {
    /// No kernels: what uses them runs on the CPU alone.
    pub const NONE: Self = Self {
        #[cfg(feature = "gpu")]
        modules: &[],
    };

    /// Those of the table that `cuda_builder::build_script::embed` writes.
    #[cfg(feature = "gpu")]
    pub const fn new(modules: &'static [ferroflash_ptx::Module]) -> Self {
        Self { modules }
    }

    /// Whether there is a module with the kernel `entry`.
    pub(crate) fn has(&self, entry: &str) -> bool {
        self.entries().any(|found| found == entry)
    }

    #[cfg(feature = "gpu")]
    fn entries(&self) -> impl Iterator<Item = &'static str> {
        self.modules.iter().map(|module| module.entry())
    }

    #[cfg(not(feature = "gpu"))]
    fn entries(&self) -> impl Iterator<Item = &'static str> {
        std::iter::empty()
    }

    /// The text of that module.
    #[cfg(feature = "gpu")]
    pub(crate) fn text(&self, entry: &str) -> Option<&'static str> {
        ferroflash_ptx::find(self.modules, entry)
    }

    #[cfg(not(feature = "gpu"))]
    pub(crate) fn text(&self, _: &str) -> Option<&'static str> {
        None
    }
}

impl PartialEq for PtxModules {
    fn eq(&self, other: &Self) -> bool {
        self.entries().eq(other.entries())
    }
}

impl fmt::Debug for PtxModules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.entries()).finish()
    }
}

/// The [`PtxModules`] whose table stands in the file that environment variable `$table` named at compile time: the path that the
/// crate's build script got from `cuda_builder::build_script::embed`.
#[cfg(feature = "gpu")]
#[macro_export]
macro_rules! include_ptx {
    ($table:literal) => {{
        mod embedded {
            use $crate::{__PtxModule as Module, __PtxPack as Pack};
            include!(env!($table));

            pub fn modules() -> &'static [Module] {
                &MODULES
            }
        }
        $crate::PtxModules::new(embedded::modules())
    }};
}
