//! Where the command and the data files are.

use std::env;
use std::path::{Path, PathBuf};

/// Environment variable that names the command to test.
pub const BINARY_VARIABLE: &str = "FERROFLASH_BIN";
/// Environment variable that names the folder that holds `examples/`.
pub const DATA_VARIABLE: &str = "FERROFLASH_DATA";

/// The command `ferroflash`: `$FERROFLASH_BIN`, else the one that cargo built for this test binary.
///
/// # Panics
/// If there is none.
pub fn binary() -> PathBuf {
    let path = env::var_os(BINARY_VARIABLE).map_or_else(beside, PathBuf::from);
    let shown = path.display();
    assert!(path.exists(), "{shown} is missing: set {BINARY_VARIABLE}");
    path
}

/// Where cargo puts a package's command before it runs the package's tests: `target/<profile>/`, whose `deps/` holds them.
fn beside() -> PathBuf {
    let this = env::current_exe().expect("a test knows its own path");
    let folder = this.ancestors().nth(2).expect("two folders up");
    folder.join(format!("ferroflash{}", env::consts::EXE_SUFFIX))
}

/// A file of the project: under `$FERROFLASH_DATA`, else in the source tree.
///
/// # Panics
/// If there is none.
pub fn data(file: &str) -> PathBuf {
    let root = env::var_os(DATA_VARIABLE).map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join(".."),
        PathBuf::from,
    );
    let path = root.join(file);
    assert!(
        path.exists(),
        "{} is missing: set {DATA_VARIABLE} to the folder that holds {file}",
        path.display()
    );
    path
}

/// The fake of NVIDIA's driver, which cargo builds next to this test binary; `None` in a packed folder, which does not
/// have it.
pub fn fake_driver() -> Option<PathBuf> {
    let this = env::current_exe().expect("a test knows its own path");
    let path = this.with_file_name("libfake_libcuda.so");
    if path.exists() {
        return Some(path);
    }
    assert!(
        env::var_os(DATA_VARIABLE).is_some(),
        "{} is missing",
        path.display()
    );
    None
}
