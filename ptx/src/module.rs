use std::io::Read;
use std::sync::OnceLock;

use lzma_rust2::LzmaReader;

/// Memory that the decompressor of one module may take, several times what it needs.
const MEMORY_KIB: u32 = 16 << 10;

/// The PTX module that holds one kernel, compressed.
pub struct Module {
    entry: &'static str,
    /// Bytes of the text.
    pub(crate) bytes: usize,
    /// A .lzma file.
    pub(crate) compressed: &'static [u8],
    text: OnceLock<String>,
}

impl Module {
    /// The module of the kernel `entry`, whose PTX takes `bytes` bytes and was compressed into `compressed`.
    pub const fn new(entry: &'static str, bytes: usize, compressed: &'static [u8]) -> Self {
        Self {
            entry,
            bytes,
            compressed,
            text: OnceLock::new(),
        }
    }

    /// Name of its kernel.
    pub fn entry(&self) -> &'static str {
        self.entry
    }

    /// Its PTX, decompressed the first time.
    ///
    /// # Panics
    /// If the bytes given to [`new`](Self::new) are not compressed text of that size.
    pub fn text(&self) -> &str {
        self.text.get_or_init(|| {
            let mut text = String::with_capacity(self.bytes);
            let mut reader = LzmaReader::new_mem_limit(self.compressed, MEMORY_KIB, None)
                .expect("the build script wrote it");
            let bytes = reader.read_to_string(&mut text).expect("PTX is ASCII");
            assert_eq!(bytes, self.bytes, "{}", self.entry);
            text
        })
    }
}

/// The text of the module of `modules` that holds the kernel `entry`.
pub fn find(modules: &'static [Module], entry: &str) -> Option<&'static str> {
    let module = modules.iter().find(|module| module.entry == entry);
    module.map(Module::text)
}
