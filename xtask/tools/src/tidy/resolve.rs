//! Resolves paths to modules.

use std::collections::BTreeSet;

use super::tree::{Id, Tree};

/// Names being looked up, each with its module: an import may lead back to itself.
type Seen = BTreeSet<(Id, String)>;

impl Tree {
    /// The modules that a path in module `from` names, and the one that defines its last name; empty for a path outside
    /// these crates.
    pub fn resolve(&self, from: Id, path: &[String]) -> BTreeSet<Id> {
        self.follow(from, path, &mut Seen::new())
            .unwrap_or_default()
    }

    fn follow(&self, from: Id, path: &[String], seen: &mut Seen) -> Option<BTreeSet<Id>> {
        let (first, rest) = path.split_first()?;
        let start = match first.as_str() {
            "crate" => Some(self.root(from)),
            "self" => Some(from),
            "super" => Some(self.modules[from].parent?),
            _ => None,
        };
        if let Some(start) = start {
            if rest.first().is_some_and(|next| next == "super") {
                return self.follow(start, rest, seen);
            }
            // A name that the parsed code does not define is made by a macro: the path then leads to `start`.
            let found = self.descend(start, rest, seen);
            return Some(found.unwrap_or_else(|| BTreeSet::from([start])));
        }
        self.descend(from, path, seen).or_else(|| {
            let root = *self.crates.get(first)?;
            let found = self.descend(root, rest, seen);
            Some(found.unwrap_or_else(|| BTreeSet::from([root])))
        })
    }

    /// As [`Tree::resolve`], with `path` looked up in `module`; `None` if it does not have the first name.
    fn descend(&self, module: Id, path: &[String], seen: &mut Seen) -> Option<BTreeSet<Id>> {
        let Some((name, rest)) = path.split_first() else {
            return Some(BTreeSet::from([module]));
        };
        let here = &self.modules[module];
        if let Some(&child) = here.children.get(name) {
            let below = self.descend(child, rest, seen).unwrap_or_default();
            return Some(below.into_iter().chain([child]).collect());
        }
        if here.items.contains(name) {
            return Some(BTreeSet::from([module]));
        }
        if !seen.insert((module, name.clone())) {
            return None;
        }
        let imported = here.imports.get(name).into_iter().flatten();
        let by_name = imported.filter_map(|import| {
            let whole: Vec<String> = import.iter().chain(rest).cloned().collect();
            self.follow(module, &whole, seen)
        });
        let mut found: BTreeSet<Id> = by_name.flatten().collect();
        if found.is_empty() {
            for glob in &here.globs {
                let whole: Vec<String> = glob.iter().chain(path).cloned().collect();
                // A glob provides the name only if its module has it.
                let of_all = self.follow(module, glob, seen).unwrap_or_default();
                let deeper = self.follow(module, &whole, seen).unwrap_or_default();
                found.extend(deeper.difference(&of_all));
                let defines = |id: &&Id| self.modules[**id].items.contains(name);
                found.extend(of_all.iter().filter(defines));
            }
        }
        seen.remove(&(module, name.clone()));
        (!found.is_empty()).then_some(found)
    }

    fn root(&self, mut module: Id) -> Id {
        while let Some(parent) = self.modules[module].parent {
            module = parent;
        }
        module
    }
}
