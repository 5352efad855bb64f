//! Violations of the rules.

use std::collections::BTreeSet;

use anyhow::ensure;

use super::rules::{Limit, Rule};
use super::tree::{Id, Tree};

/// Violations of `rules`, a line each: file, line, who imports whom by which path, and why that is forbidden.
///
/// # Errors
/// If a rule names a module that does not exist.
pub fn violations(tree: &Tree, rules: &[Rule]) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    for rule in rules {
        let (Limit::Never(named) | Limit::Only(named)) = &rule.limit;
        for path in named.iter().chain([&rule.of]) {
            let exists = tree.modules.iter().any(|module| module.path == *path);
            ensure!(exists, "a rule names {path}, which does not exist");
        }
        for (from, module) in tree.modules.iter().enumerate() {
            if is_within(&module.path, rule.of) {
                found.extend(of_module(tree, from, rule));
            }
        }
    }
    Ok(found)
}

/// Modules that `from` imports in violation of `rule`, each once, in words.
fn of_module(tree: &Tree, from: Id, rule: &Rule) -> Vec<String> {
    let module = &tree.modules[from];
    let mut known = BTreeSet::new();
    let mut found = Vec::new();
    for mention in &module.mentions {
        let named = tree.resolve(from, &mention.segments);
        let named = named.into_iter().map(|id| &tree.modules[id].path);
        // The innermost module says most.
        let forbidden = named.filter(|path| forbids(rule, path));
        let Some(to) = forbidden.max_by_key(|path| path.len()) else {
            continue;
        };
        if known.insert(to) {
            let (file, line) = (module.file.display(), mention.line);
            let (from, path) = (&module.path, mention.segments.join("::"));
            let because = rule.because;
            found.push(format!(
                "{file}:{line}: {from} imports {to} (`{path}`): {because}"
            ));
        }
    }
    found
}

/// Whether `rule` forbids its module to import module `to`.
pub fn forbids(rule: &Rule, to: &str) -> bool {
    let is_one_of = |paths: &[&str]| paths.iter().any(|path| is_within(to, path));
    match rule.limit {
        Limit::Never(paths) => is_one_of(paths),
        Limit::Only(paths) => {
            // A path to an allowed module passes through the outer ones, such as its crate's root.
            let is_outer = |path: &&str| is_within(path, to);
            !is_one_of(paths) && !is_within(to, rule.of) && !paths.iter().any(is_outer)
        }
    }
}

/// Whether module `path` is `outer` or below it.
pub fn is_within(path: &str, outer: &str) -> bool {
    let rest = path.strip_prefix(outer);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}
