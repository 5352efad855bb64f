//! Writes the staged workspace: the same crates without the parts that only this repository needs.

use std::fs;
use std::path::Path;

use anyhow::Context;
use cuda_builder::Compression;
use cuda_builder::build_script::PACKS_FOLDER;
use toml_edit::{Array, DocumentMut, Item};
use xshell::Shell;
use xtask::paths;

use super::{CRATES, Published};
use crate::kernels;

/// Files and folders that are copied of each crate, if it has them.
const PARTS: [&str; 5] = ["Cargo.toml", "README.md", "build.rs", "src", "stub"];
const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

/// Writes the staged workspace to `root`.
pub fn stage(sh: &Shell, root: &Path) -> anyhow::Result<()> {
    for Published { folder, name } in CRATES {
        let (from, to) = (paths::root().join(folder), root.join(name));
        sh.remove_path(&to)?;
        sh.create_dir(&to)?;
        for part in PARTS.map(|part| from.join(part)) {
            copy(&part, &to)?;
        }
        for licence in LICENCES {
            sh.copy_file(paths::root().join(licence), &to)?;
        }
        let manifest = to.join("Cargo.toml");
        let mut document = read(&manifest)?;
        edit_crate(&mut document);
        fs::write(&manifest, document.to_string())?;
        if !to.join("README.md").exists() {
            fs::write(to.join("README.md"), readme(&document))?;
        }
    }
    let ptx = root.join("ferroflash-ptx/prebuilt");
    let kept = paths::gpu().join(PACKS_FOLDER);
    kernels::compile_product()?.embed(&ptx, Compression::Small, &kept)?;

    let mut document = read(&paths::root().join("Cargo.toml"))?;
    edit_workspace(&mut document);
    fs::write(root.join("Cargo.toml"), document.to_string())?;
    sh.copy_file(paths::root().join("Cargo.lock"), root)?;
    Ok(())
}

/// Copies a file or folder into the folder `to`; links are replaced by their targets.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let to = to.join(from.file_name().context("it has a name")?);
    if from.is_dir() {
        fs::create_dir_all(&to)?;
        for entry in fs::read_dir(from)? {
            copy(&entry?.path(), &to)?;
        }
    } else if from.exists() {
        fs::copy(from, to)?;
    }
    Ok(())
}

fn read(manifest: &Path) -> anyhow::Result<DocumentMut> {
    let text = fs::read_to_string(manifest).with_context(|| manifest.display().to_string())?;
    text.parse().with_context(|| manifest.display().to_string())
}

/// Removes the tables that only tests and examples need, and the default feature that compiles kernels.
fn edit_crate(document: &mut DocumentMut) {
    for table in ["dev-dependencies", "test", "example"] {
        document.remove(table);
    }
    let features = document.get_mut("features").and_then(Item::as_table_mut);
    if let Some(default) = features.and_then(|features| features.get_mut("default"))
        && let Some(default) = default.as_array_mut()
    {
        default.retain(|feature| feature.as_str() != Some("compile"));
    }
    if let Some(package) = document["package"].as_table_mut() {
        package["readme"] = toml_edit::value("README.md");
    }
}

/// Reduces the workspace to the staged crates.
fn edit_workspace(document: &mut DocumentMut) {
    document.remove("profile");
    let workspace = &mut document["workspace"];
    workspace["members"] = toml_edit::value(Array::from_iter(CRATES.map(|krate| krate.name)));
    let Some(workspace) = workspace.as_table_mut() else {
        return;
    };
    workspace.remove("default-members");
    workspace.remove("exclude");
    let Some(dependencies) = workspace["dependencies"].as_table_mut() else {
        return;
    };
    let mut elsewhere = Vec::new();
    for (name, dependency) in dependencies.iter_mut() {
        let Some(path) = dependency.get("path").and_then(Item::as_str) else {
            continue;
        };
        match CRATES.iter().find(|krate| krate.folder == path) {
            Some(krate) => dependency["path"] = toml_edit::value(krate.name),
            None => elsewhere.push(name.get().to_owned()),
        }
    }
    for name in elsewhere {
        dependencies.remove(&name);
    }
}

/// README of a crate without one of its own.
fn readme(document: &DocumentMut) -> String {
    let of = |key: &str| {
        document["package"][key]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let (name, description) = (of("name"), of("description"));
    format!(
        "# {name}\n\n{description}.\n\nA part of ferroflash, exact fused attention with GPU kernels written in Rust.\n\n\
         Licensed under either of Apache-2.0 or MIT.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_this_repository_has_is_left_out() {
        let mut document: DocumentMut =
            "[package]\nname = \"a\"\n[features]\ndefault = [\"compile\", \"b\"]\n\
            [dev-dependencies]\nc = \"1\"\n[[test]]\nname = \"d\"\n[dependencies]\ne = \"1\"\n"
                .parse()
                .unwrap();
        edit_crate(&mut document);
        let text = document.to_string();
        assert!(
            text.contains("default = [ \"b\"]") || text.contains("default = [\"b\"]"),
            "{text}"
        );
        assert!(
            !text.contains("dev-dependencies") && !text.contains("test"),
            "{text}"
        );
        assert!(
            text.contains("e = \"1\"") && text.contains("README.md"),
            "{text}"
        );
    }

    #[test]
    fn the_workspace_has_no_path_out_of_it() {
        let mut document = read(&paths::root().join("Cargo.toml")).unwrap();
        edit_workspace(&mut document);
        let dependencies = document["workspace"]["dependencies"].as_table().unwrap();
        let paths = dependencies.iter().filter_map(|(_, item)| item.get("path"));
        let mut paths: Vec<_> = paths.filter_map(Item::as_str).collect();
        paths.sort();
        let mut names = CRATES.map(|krate| krate.name);
        names.sort();
        assert_eq!(paths, names);
    }

    /// Each crate is published after those that it depends on.
    #[test]
    fn the_order_is_one_that_works() {
        let root = read(&paths::root().join("Cargo.toml")).unwrap();
        for (index, krate) in CRATES.iter().enumerate() {
            let manifest = read(&paths::root().join(krate.folder).join("Cargo.toml")).unwrap();
            for table in ["dependencies", "build-dependencies"] {
                for (key, _) in manifest
                    .get(table)
                    .and_then(Item::as_table)
                    .into_iter()
                    .flatten()
                {
                    let dependency = root["workspace"]["dependencies"].get(key);
                    let path = dependency.and_then(|dependency| dependency.get("path"));
                    let Some(path) = path.and_then(Item::as_str) else {
                        continue;
                    };
                    let place = CRATES.iter().position(|krate| krate.folder == path);
                    assert!(
                        place.is_some_and(|place| place < index),
                        "{}: {key}",
                        krate.name
                    );
                }
            }
        }
    }
}
