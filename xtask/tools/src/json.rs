//! Lists that the repository keeps as JSON.

use std::fs;
use std::path::Path;

use anyhow::Context;
use serde::de::DeserializeOwned;

/// Reads the file at `path`; errors name it.
pub fn read<T: DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let name = || path.display().to_string();
    let text = fs::read_to_string(path).with_context(name)?;
    serde_json::from_str(&text).with_context(name)
}
