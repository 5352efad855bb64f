//! PTX that runs in place of a kernel's own, for `cargo xtask mutants --ptx`.

use std::path::Path;
use std::sync::OnceLock;
use std::{env, fs};

/// Environment variable that names a file `KERNEL.ptx`, whose text simulated GPUs run in place of that kernel's own.
pub const FILE_VAR: &str = "FERROFLASH_SIM_PTX";

/// A kernel, and the text that replaces its own.
struct Replaced {
    kernel: String,
    text: String,
}

/// What [`FILE_VAR`] names, if it is set.
///
/// # Panics
/// If there is no such file: a test that then ran the kernel's own text would say nothing.
fn replaced() -> Option<&'static Replaced> {
    static REPLACED: OnceLock<Option<Replaced>> = OnceLock::new();
    let read = || {
        let file = env::var_os(FILE_VAR)?;
        let path = Path::new(&file);
        let text = fs::read_to_string(path)
            .unwrap_or_else(|error| panic!("{FILE_VAR}: {}: {error}", path.display()));
        let kernel = path.file_stem().unwrap_or_default().to_string_lossy();
        Some(Replaced {
            kernel: kernel.into_owned(),
            text,
        })
    };
    REPLACED.get_or_init(read).as_ref()
}

/// The text to run in place of the own one of `kernel`, if there is one.
pub(super) fn text(kernel: &str) -> Option<&'static str> {
    let replaced = replaced().filter(|replaced| replaced.kernel == kernel)?;
    Some(&replaced.text)
}

/// The kernel whose text is replaced in this process, if one is. A test may leave out what does not launch it.
pub fn replaced_kernel() -> Option<&'static str> {
    replaced().map(|replaced| replaced.kernel.as_str())
}
