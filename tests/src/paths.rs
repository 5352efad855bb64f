//! Where the command and the data files are.

use std::env;
use std::path::{Path, PathBuf};

/// Names the command to test.
pub const BINARY_VARIABLE: &str = "FERROFLASH_BIN";
/// Names the folder that holds `examples/`.
pub const DATA_VARIABLE: &str = "FERROFLASH_DATA";

/// The command `ferroflash`: `$FERROFLASH_BIN`, else what cargo built beside this test binary.
///
/// # Panics
/// If there is none.
pub fn binary() -> PathBuf {
    let path = env::var_os(BINARY_VARIABLE).map_or_else(beside_this_binary, PathBuf::from);
    assert!(
        path.exists(),
        "{} is missing: run `cargo build -p ferroflash`, or set {BINARY_VARIABLE}",
        path.display()
    );
    path
}

/// Test binaries lie in `target/<profile>/deps`, commands in `target/<profile>`.
fn beside_this_binary() -> PathBuf {
    let this = env::current_exe().expect("a test knows its own path");
    let profile = this.ancestors().nth(2).expect("two folders up");
    profile.join(format!("ferroflash{}", env::consts::EXE_SUFFIX))
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
