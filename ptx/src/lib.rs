//! The PTX of ferroflash's GPU kernels: one module per kernel, compressed.
//!
//! PTX is text that repeats itself: compressed it takes a thirtieth of the space. Kernels of a family stand in a pack, which
//! is decompressed when one of them is first asked for, in less than a tenth of a second, where the driver then takes several to
//! compile it, and kept.
//!
//! In a checkout of ferroflash's workspace the build script compiles the kernels, for which it needs a GPU compiler; it
//! installs none. The published crate carries their PTX.

mod module;

pub use module::{Module, Pack, find};

// `static MODULES: [Module; …]`, one a kernel, and `static PACKS: [Pack; …]`.
include!(env!("FERROFLASH_PTX_MODULES"));

/// Every module.
pub fn modules() -> &'static [Module] {
    &MODULES
}

/// The PTX module that holds the kernel `entry`; every name in the instance table has one.
pub fn ptx(entry: &str) -> Option<&'static str> {
    find(&MODULES, entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels_gpu::instances;

    #[test]
    fn instances_and_modules_match() {
        // And no other modules: the kernels for teaching and measuring are not in a user's binary.
        assert_eq!(MODULES.len(), instances::all().count());
        for instance in instances::all() {
            let ptx = ptx(instance.name).expect("a module for every instance");
            assert!(ptx.contains(&format!(".entry {}(", instance.name)));
            assert!(ptx.contains(&format!(".target {}", instance.arch.name())));
            assert!(ptx.contains(&format!(".maxntid {}, 1, 1", instance.threads)));
        }
    }

    /// Whole, and no text of another module behind it.
    #[test]
    fn modules_come_out_as_they_went_in() {
        for module in &MODULES {
            let text = module.text();
            assert_eq!(text.len(), module.place.len(), "{}", module.entry());
            let is_one = text.matches(".version ").count() == 1;
            let is_whole = is_one && text.trim_end().ends_with('}');
            assert!(is_whole, "{}", module.entry());
            // The second time it is the same text, not another copy.
            assert_eq!(text.as_ptr(), module.text().as_ptr());
        }
        for pack in &PACKS {
            assert!(pack.compressed.len() * 3 < pack.bytes);
        }
        assert_eq!(ptx("no_such_kernel"), None);
    }
}
