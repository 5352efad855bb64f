use std::sync::OnceLock;

/// The PTX module that holds one kernel, compressed.
pub struct Module {
    entry: &'static str,
    /// Bytes of the text.
    pub(crate) bytes: usize,
    /// A DEFLATE stream (RFC 1951).
    pub(crate) deflated: &'static [u8],
    text: OnceLock<String>,
}

impl Module {
    /// The module of the kernel `entry`, whose PTX takes `bytes` bytes and was compressed into `deflated`.
    pub const fn new(entry: &'static str, bytes: usize, deflated: &'static [u8]) -> Self {
        Self {
            entry,
            bytes,
            deflated,
            text: OnceLock::new(),
        }
    }

    /// Name of its kernel.
    pub fn entry(&self) -> &'static str {
        self.entry
    }

    /// Its PTX, inflated the first time.
    ///
    /// # Panics
    /// If the bytes given to [`new`](Self::new) are not compressed text of that size.
    pub fn text(&self) -> &str {
        self.text.get_or_init(|| {
            let text =
                miniz_oxide::inflate::decompress_to_vec_with_limit(self.deflated, self.bytes);
            let text = text.expect("the build script compressed it");
            String::from_utf8(text).expect("PTX is ASCII")
        })
    }
}

/// The text of the module of `modules` that holds the kernel `entry`.
pub fn find(modules: &'static [Module], entry: &str) -> Option<&'static str> {
    let module = modules.iter().find(|module| module.entry == entry);
    module.map(Module::text)
}
