//! Tests on planted imports, and on the workspace itself.

use std::fs;

use tempfile::TempDir;

use super::check::{forbids, is_within};
use super::rules::{Limit, Rule};
use super::{RULES, Tree, violations};

/// A crate `host` whose module `problem` has the code `problem`, and a crate `kernels`.
fn crates(problem: &str) -> (TempDir, Tree) {
    let folder = TempDir::new().unwrap();
    for (file, text) in [
        (
            "host/lib.rs",
            "mod problem; mod backend; pub mod prelude; mod spec; mod plan;
             pub use backend::gpu::{Gpu, run as launch}; pub use problem::Problem; pub use spec::*;
             macro_rules! gpu { () => { $crate::backend::gpu::Gpu } }",
        ),
        (
            "host/backend/mod.rs",
            "pub mod gpu; pub use crate::plan::Plan;",
        ),
        (
            "host/backend/gpu.rs",
            "pub struct Gpu; pub fn run() {} pub const LIMIT: u32 = 1;",
        ),
        (
            "host/prelude.rs",
            "pub use crate::Gpu; pub use crate::spec::Shape; pub use crate::prelude::*;",
        ),
        (
            "host/spec.rs",
            "pub struct Shape; pub use crate::Shape as Other;",
        ),
        (
            "host/plan.rs",
            "pub struct Plan; #[path = \"elsewhere.rs\"] pub mod moved;",
        ),
        ("host/elsewhere.rs", "pub struct Moved;"),
        ("host/problem.rs", problem),
        ("host/problem/options.rs", "pub struct Options;"),
        (
            "kernels/lib.rs",
            "pub mod tile; pub mod units; pub use tile::band;",
        ),
        ("kernels/tile.rs", "pub fn band() {} pub struct Band;"),
        ("kernels/units.rs", ""),
    ] {
        let file = folder.path().join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    let mut tree = Tree::default();
    for name in ["host", "kernels"] {
        let root = folder.path().join(name).join("lib.rs");
        tree.add_crate(name, &root).unwrap();
    }
    (folder, tree)
}

const fn rule(of: &'static str, limit: Limit) -> Rule {
    Rule {
        of,
        limit,
        because: "of a test",
    }
}

const NO_BACKEND: Rule = rule(
    "host::problem",
    Limit::Never(&["host::backend", "kernels::tile"]),
);

/// Violations of [`NO_BACKEND`] if `problem` is the code of `host::problem`.
fn planted(problem: &str) -> Vec<String> {
    let (_folder, tree) = crates(problem);
    violations(&tree, &[NO_BACKEND]).unwrap()
}

#[test]
fn forbidden_imports_are_found_however_they_are_written() {
    for problem in [
        "use crate::backend::gpu::Gpu;",
        // Through lib.rs, by its own name and by others.
        "use crate::Gpu;",
        "use crate::{Problem, Gpu as Device};",
        "use crate::launch;",
        // Through a module that imports it, and one that imports everything.
        "use crate::prelude::Gpu;",
        "use crate::prelude::*; fn f(_: Gpu) {}",
        "use crate::backend::gpu::*;",
        // A name of another module, found through the forbidden one.
        "use crate::backend::Plan;",
        "use super::backend::gpu;",
        "use crate::backend as b; fn f() { b::gpu::run() }",
        "mod inner { use super::super::Gpu; }",
        "pub use self::inner::x; mod inner { pub fn x() { super::super::launch() } }",
        // Without `use`.
        "fn f() { crate::backend::gpu::run() }",
        "fn f() -> [u8; crate::backend::gpu::LIMIT as usize] { [0; 1] }",
        "impl From<crate::Gpu> for Problem { fn from(_: u8) -> Self { Problem } }",
        "fn f() { use crate::Gpu; }",
        "fn f() { println!(\"{}\", crate::backend::gpu::LIMIT) }",
        "macro_rules! m { () => { $crate::backend::gpu::run() } }",
        "struct S; impl S { fn f(self) { vec![(1, [crate::Gpu])]; } }",
        "#[cfg(not(test))] use crate::Gpu;",
        "#[cfg(any(test, unix))] use crate::Gpu;",
        // From another crate, directly and through its exports.
        "use kernels::tile::Band;",
        "fn f() { kernels::band() }",
        // A name that only a macro makes: the module before it counts.
        "use crate::backend::MADE_BY_A_MACRO;",
    ] {
        let found = planted(problem);
        assert!(!found.is_empty(), "not found: {problem}");
    }
}

#[test]
fn allowed_imports_are_not() {
    for problem in [
        "pub struct Problem; mod options; use options::Options; pub use self::options::Options as O;",
        "use crate::{Problem, Shape, Other}; use crate::plan::Plan;",
        "use crate::plan::moved::Moved; use std::fmt; use kernels::units;",
        "use crate::prelude::Shape;",
        "use crate::prelude::*; fn f(_: Shape) { let backend = 1; backend; }",
        "struct Gpu; fn backend() { let gpu = Gpu; }",
        "#[cfg(test)] mod tests { use crate::Gpu; }",
        "#[cfg(test)] use crate::Gpu;",
        "#[cfg(all(test, unix))] fn f(_: crate::Gpu) {}",
        "struct S; impl S { #[cfg(test)] fn f(_: crate::Gpu) {} }",
        "/// As [`crate::backend::gpu::Gpu`].\nstruct S;",
        // An import that leads back to itself.
        "use crate::problem::lost; pub use self::lost as found; pub use self::found as lost;",
    ] {
        assert_eq!(planted(problem), [""; 0], "{problem}");
    }
}

#[test]
fn a_violation_names_its_place_and_its_reason() {
    let found = planted("pub struct Problem;\n\nuse crate::Gpu;\nuse crate::launch;");
    assert_eq!(found.len(), 1, "once for each module: {found:?}");
    let expected =
        "host/problem.rs:3: host::problem imports host::backend::gpu (`crate::Gpu`): of a test";
    assert!(found[0].ends_with(expected), "{}", found[0]);
}

#[test]
fn a_rule_may_name_all_that_is_allowed() {
    let imports = |limit| {
        let (_folder, tree) =
            crates("mod options; use options::Options; use crate::plan::Plan; use kernels::units;");
        violations(&tree, &[rule("host::problem", limit)])
            .unwrap()
            .len()
    };
    assert_eq!(imports(Limit::Only(&["host::plan", "kernels::units"])), 0);
    assert_eq!(imports(Limit::Only(&["host::plan"])), 1);
    assert_eq!(imports(Limit::Only(&[])), 2);
}

#[test]
fn a_rule_about_nothing_is_an_error() {
    let (_folder, tree) = crates("");
    for (of, never) in [
        ("host::problems", "host::backend"),
        ("host::problem", "host::backends"),
    ] {
        let limit = Limit::Never(if never == "host::backend" {
            &["host::backend"]
        } else {
            &["host::backends"]
        });
        let error = violations(&tree, &[rule(of, limit)])
            .unwrap_err()
            .to_string();
        assert!(error.ends_with("which does not exist"), "{error}");
    }
}

/// Imports between the workspace's crates that a rule forbids.
#[test]
fn crates_are_kept_apart() {
    for (from, to) in [
        ("ferroflash::forward", "ferroflash_testing"),
        ("ferroflash::backend::sim", "ferroflash_insight::cost"),
        ("ferroflash::plan", "kernels_insight"),
        ("ferroflash_ptx", "kernels_gpu"),
        ("ferroflash_testing::cases", "ferroflash_insight"),
        ("ferroflash_testing::cases", "ptx_sim"),
        ("ferroflash_testing::cases", "ferroflash::backend::sim"),
        ("ferroflash_testing::oracle", "kernels_gpu::tile"),
        ("ferroflash_insight::probe", "ptx_sim"),
        ("kernels_gpu::simt", "ferroflash"),
        ("kernels_gpu::tile", "kernels_insight"),
        ("kernels_insight::ladder", "ferroflash::plan"),
        ("cuda_std::warp", "kernels_gpu::abi"),
        ("cuda_loader", "ferroflash"),
        ("ptx_sim::exec", "kernels_gpu"),
    ] {
        let refused = RULES
            .iter()
            .any(|rule| is_within(from, rule.of) && forbids(rule, to));
        assert!(refused, "{from} may import {to}");
    }
}

#[test]
fn the_workspace_is_tidy() {
    let tree = super::workspace::workspace().unwrap();
    assert_eq!(violations(&tree, RULES).unwrap(), [""; 0]);
}
