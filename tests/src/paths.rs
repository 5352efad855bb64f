//! Where the command and the data files are.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Names the command to test.
pub const BINARY_VARIABLE: &str = "FERROFLASH_BIN";
/// Names the folder that holds `examples/`.
pub const DATA_VARIABLE: &str = "FERROFLASH_DATA";

/// The command `ferroflash`: `$FERROFLASH_BIN`, else built by cargo beside this test binary.
///
/// # Panics
/// If there is none.
pub fn binary() -> PathBuf {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    let find = || {
        let path = env::var_os(BINARY_VARIABLE).map_or_else(build, PathBuf::from);
        let shown = path.display();
        assert!(path.exists(), "{shown} is missing: set {BINARY_VARIABLE}");
        path
    };
    BINARY.get_or_init(find).clone()
}

/// Builds the command as this test binary was built. cargo does that by itself only for tests of the
/// command's own package.
fn build() -> PathBuf {
    let this = env::current_exe().expect("a test knows its own path");
    // target/<profile's folder>/deps/<this>
    let folder = this.ancestors().nth(2).expect("two folders up");
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") => "test",
        Some(other) => other,
        None => panic!("{} is not in a cargo target folder", this.display()),
    };
    let status = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args([
            "build",
            "--quiet",
            "--package",
            "ferroflash",
            "--bin",
            "ferroflash",
        ])
        .args(["--profile", profile, "--target-dir"])
        .arg(
            folder
                .parent()
                .expect("a profile's folder lies in the target folder"),
        )
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status();
    let built = status.is_ok_and(|status| status.success());
    assert!(
        built,
        "cargo cannot build the command: set {BINARY_VARIABLE}"
    );
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

/// The driver that stands in for NVIDIA's, which cargo builds beside this test binary; `None` in a
/// packed folder, which does not have it.
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
