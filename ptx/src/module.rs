use std::ops::Range;
use std::sync::OnceLock;

/// The PTX of several kernels, one after the other, compressed together: kernels of a family differ in little.
pub struct Pack {
    /// Bytes of the text.
    pub(crate) bytes: usize,
    /// As [`ptx_pack`] has it.
    pub(crate) compressed: &'static [u8],
    text: OnceLock<String>,
}

impl Pack {
    /// Text of `bytes` bytes that was compressed into `compressed`.
    pub const fn new(bytes: usize, compressed: &'static [u8]) -> Self {
        Self {
            bytes,
            compressed,
            text: OnceLock::new(),
        }
    }

    /// The text, decompressed the first time.
    ///
    /// # Panics
    /// If the bytes given to [`new`](Self::new) are not compressed text of that size.
    fn text(&self) -> &str {
        self.text.get_or_init(|| {
            let text = ptx_pack::decompress(self.compressed, self.bytes);
            text.expect("the build script compressed it")
        })
    }
}

/// The PTX module that holds one kernel, in a [`Pack`].
pub struct Module {
    entry: &'static str,
    pack: &'static Pack,
    /// Where it stands in the pack's text.
    pub(crate) place: Range<usize>,
}

impl Module {
    /// The module of the kernel `entry`, whose PTX stands at bytes `place` of the text of `pack`.
    pub const fn new(entry: &'static str, pack: &'static Pack, place: Range<usize>) -> Self {
        Self { entry, pack, place }
    }

    /// Name of its kernel.
    pub fn entry(&self) -> &'static str {
        self.entry
    }

    /// Its PTX. The whole pack is decompressed with the first one.
    ///
    /// # Panics
    /// If the pack's text has no such place, or is not what the pack says.
    pub fn text(&self) -> &'static str {
        &self.pack.text()[self.place.clone()]
    }
}

/// The text of the module of `modules` that holds the kernel `entry`.
pub fn find(modules: &'static [Module], entry: &str) -> Option<&'static str> {
    let module = modules.iter().find(|module| module.entry == entry);
    module.map(Module::text)
}
