//! The PTX of every kernel, embedded when this crate was built: one module per kernel, compressed.
//!
//! PTX is text that repeats itself: compressed it takes a sixth of the space. A module is inflated when it is first asked
//! for, in about a millisecond, where the driver then takes hundreds to compile it, and kept.

use std::sync::OnceLock;

use kernels_gpu::instances::Instance;

/// The compressed module of a kernel.
struct Module {
    entry: &'static str,
    /// Of the text.
    bytes: usize,
    /// A DEFLATE stream (RFC 1951).
    deflated: &'static [u8],
    text: OnceLock<String>,
}

impl Module {
    const fn new(entry: &'static str, bytes: usize, deflated: &'static [u8]) -> Self {
        Self {
            entry,
            bytes,
            deflated,
            text: OnceLock::new(),
        }
    }

    fn text(&self) -> &str {
        self.text.get_or_init(|| {
            let text =
                miniz_oxide::inflate::decompress_to_vec_with_limit(self.deflated, self.bytes);
            let text = text.expect("the build script compressed it");
            String::from_utf8(text).expect("PTX is ASCII")
        })
    }
}

// `static MODULES: [Module; …]`, one a kernel.
include!(concat!(env!("OUT_DIR"), "/modules.rs"));

/// The PTX module that holds the kernel `entry`; every name among
/// [`instances::all`](kernels_gpu::instances::all) has one.
pub fn ptx(entry: &str) -> Option<&'static str> {
    MODULES
        .iter()
        .find(|module| module.entry == entry)
        .map(Module::text)
}

/// The PTX module that holds the kernel of `instance`.
pub fn of(instance: &Instance) -> &'static str {
    ptx(instance.name).expect("every instance has a module")
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels_gpu::instances;

    #[test]
    fn instances_and_modules_match() {
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
            assert_eq!(text.len(), module.bytes, "{}", module.entry);
            assert!(text.trim_end().ends_with('}'), "{}", module.entry);
            assert!(module.deflated.len() * 3 < module.bytes, "{}", module.entry);
            // The second time it is the same text, not another copy.
            assert_eq!(text.as_ptr(), module.text().as_ptr());
        }
        assert_eq!(ptx("no_such_kernel"), None);
    }
}
