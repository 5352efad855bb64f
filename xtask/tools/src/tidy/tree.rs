//! Reads the modules of crates, starting at their root files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use syn::{Attribute, Item, ItemMod, UseTree};

use super::mentions::{self, Mention};

/// A module's index in [`Tree::modules`].
pub type Id = usize;

/// A module outside tests.
pub struct Module {
    /// `crate::outer::inner`, with the crate's name.
    pub path: String,
    pub file: PathBuf,
    pub parent: Option<Id>,
    pub children: BTreeMap<String, Id>,
    /// Names of its items other than modules.
    pub items: BTreeSet<String>,
    /// Paths of its imports, by the imported name; several if `cfg` chooses.
    pub imports: BTreeMap<String, Vec<Vec<String>>>,
    /// Paths of its glob imports.
    pub globs: Vec<Vec<String>>,
    /// Every path that its code names.
    pub mentions: Vec<Mention>,
}

/// The modules of some crates.
#[derive(Default)]
pub struct Tree {
    pub modules: Vec<Module>,
    /// Root modules, by the crate's name in code.
    pub crates: BTreeMap<String, Id>,
}

impl Tree {
    /// Reads the crate whose root file is `root`, called `name` in code.
    pub fn add_crate(&mut self, name: &str, root: &Path) -> anyhow::Result<()> {
        let id = self.add_module(None, name.to_owned(), root);
        self.crates.insert(name.to_owned(), id);
        self.read_file(id)
    }

    fn add_module(&mut self, parent: Option<Id>, path: String, file: &Path) -> Id {
        self.modules.push(Module {
            path,
            file: file.to_owned(),
            parent,
            children: BTreeMap::new(),
            items: BTreeSet::new(),
            imports: BTreeMap::new(),
            globs: Vec::new(),
            mentions: Vec::new(),
        });
        self.modules.len() - 1
    }

    /// Reads module `id` from its file.
    fn read_file(&mut self, id: Id) -> anyhow::Result<()> {
        let file = self.modules[id].file.clone();
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let parsed = syn::parse_file(&text).with_context(|| file.display().to_string())?;
        let is_root = self.modules[id].parent.is_none();
        let stem = file.file_stem().unwrap_or_default();
        let folder = file.parent().context("a file lies in a folder")?;
        let own_folder = match is_root || stem == "mod" {
            true => folder.to_owned(),
            false => folder.join(stem),
        };
        self.read_items(id, &parsed.items, &own_folder)
    }

    /// Reads the items of module `id`, whose children's files lie in `folder`.
    fn read_items(&mut self, id: Id, items: &[Item], folder: &Path) -> anyhow::Result<()> {
        for item in items {
            if is_for_tests(attributes(item)) {
                continue;
            }
            match item {
                Item::Mod(child) => self.read_child(id, child, folder)?,
                Item::Use(import) => self.read_import(id, &import.tree, Vec::new()),
                _ => self.modules[id].items.extend(name(item)),
            }
            if !matches!(item, Item::Mod(_)) {
                let found = mentions::of(item);
                self.modules[id].mentions.extend(found);
            }
        }
        Ok(())
    }

    fn read_child(&mut self, id: Id, child: &ItemMod, folder: &Path) -> anyhow::Result<()> {
        let name = child.ident.to_string();
        let path = format!("{}::{name}", self.modules[id].path);
        let file = match (&child.content, path_attribute(&child.attrs)) {
            (Some(_), _) => self.modules[id].file.clone(),
            (None, Some(file)) => {
                let beside = self.modules[id].file.parent();
                beside.context("a file lies in a folder")?.join(file)
            }
            (None, None) => {
                let files = [
                    folder.join(format!("{name}.rs")),
                    folder.join(&name).join("mod.rs"),
                ];
                match files.into_iter().find(|file| file.exists()) {
                    Some(file) => file,
                    None => bail!("{path} has no file in {}", folder.display()),
                }
            }
        };
        let child_id = self.add_module(Some(id), path, &file);
        self.modules[id].children.insert(name.clone(), child_id);
        match &child.content {
            Some((_, items)) => self.read_items(child_id, items, &folder.join(name)),
            None => self.read_file(child_id),
        }
    }

    /// Records the imports of a `use` tree below `path`.
    fn read_import(&mut self, id: Id, tree: &UseTree, mut path: Vec<String>) {
        let module = &mut self.modules[id];
        match tree {
            UseTree::Path(step) => {
                path.push(step.ident.to_string());
                self.read_import(id, &step.tree, path);
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.read_import(id, tree, path.clone());
                }
            }
            UseTree::Glob(_) => module.globs.push(path),
            UseTree::Name(last) => {
                let mut here = last.ident.to_string();
                if here == "self" {
                    here = path.last().cloned().unwrap_or_default();
                } else {
                    path.push(here.clone());
                }
                module.imports.entry(here).or_default().push(path);
            }
            UseTree::Rename(last) => {
                if last.ident != "self" {
                    path.push(last.ident.to_string());
                }
                let here = last.rename.to_string();
                module.imports.entry(here).or_default().push(path);
            }
        }
    }
}

/// The name that an item other than a module or an import defines.
fn name(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether a `cfg` restricts code to tests or doctests: it contains `test` or `doctest`, and neither `not` nor `any`,
/// with which other builds may have the code too.
pub fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else {
            return false;
        };
        let words: Vec<String> = list
            .tokens
            .to_string()
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .map(str::to_owned)
            .collect();
        let has = |wanted: &str| words.iter().any(|word| word == wanted);
        let for_tests = has("test") || has("doctest");
        list.path.is_ident("cfg") && for_tests && !has("not") && !has("any")
    })
}

/// The file of `#[path = "…"]`.
fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| {
        let syn::Meta::NameValue(pair) = &attribute.meta else {
            return None;
        };
        match &pair.value {
            syn::Expr::Lit(literal) if pair.path.is_ident("path") => match &literal.lit {
                syn::Lit::Str(file) => Some(file.value()),
                _ => None,
            },
            _ => None,
        }
    })
}
