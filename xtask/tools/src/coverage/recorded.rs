//! What the tests of a run executed, as they wrote it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use ptx_sim::Coverage;

/// One test, and the kernels that it launched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Test {
    /// The program it is part of.
    pub program: PathBuf,
    pub name: String,
    /// Whether it draws its problems, so that another run of it executes something else.
    pub draws: bool,
    pub kernels: BTreeMap<String, OfKernel>,
}

/// What a test executed of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OfKernel {
    pub warp_instructions: u64,
    pub coverage: Coverage,
}

/// Extension of the files that say which tests draw.
const DRAWS: &str = "draws";

/// Reads every file of `folder`; the formats are told where they are written: what was executed in
/// `host/src/backend/sim/recording.rs`, which tests draw in `tests/src/random_cases.rs`.
pub fn read(folder: &Path) -> anyhow::Result<Vec<Test>> {
    let mut tests = Vec::new();
    let mut drawing = BTreeSet::new();
    let files = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for file in files {
        let path = file?.path();
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        if path.extension().is_some_and(|extension| extension == DRAWS) {
            drawing.insert(text);
        } else {
            tests.push(parse(&text).with_context(|| path.display().to_string())?);
        }
    }
    for test in &mut tests {
        test.draws = drawing.contains(&test.heading());
    }
    tests.sort_by(|a, b| (&a.program, &a.name).cmp(&(&b.program, &b.name)));
    Ok(tests)
}

impl Test {
    /// What the text of a file about it begins with.
    fn heading(&self) -> String {
        format!("{}\n{}\n", self.program.display(), self.name)
    }
}

fn parse(text: &str) -> anyhow::Result<Test> {
    let mut lines = text.lines();
    let program = lines.next().context("no program")?.into();
    let name = lines.next().context("no test")?.to_owned();
    let kernel = |line: &str| -> anyhow::Result<_> {
        let fields: Vec<_> = line.split(' ').collect();
        let [kernel, warp_instructions, coverage] = fields[..] else {
            anyhow::bail!("a kernel's line has three fields");
        };
        let of_kernel = OfKernel {
            warp_instructions: warp_instructions.parse()?,
            coverage: coverage.parse()?,
        };
        Ok((kernel.to_owned(), of_kernel))
    };
    Ok(Test {
        program,
        name,
        draws: false,
        kernels: lines.map(kernel).collect::<anyhow::Result<_>>()?,
    })
}

/// What the tests that draw nothing together executed of `kernel`, which has `instructions` instructions: the same in every run.
///
/// # Errors
/// If a test speaks of a kernel with another number: its recording is of another build.
pub fn of_kernel(tests: &[Test], kernel: &str, instructions: usize) -> anyhow::Result<Coverage> {
    let mut all = Coverage::default();
    for test in tests.iter().filter(|test| !test.draws) {
        let Some(seen) = test.kernels.get(kernel) else {
            continue;
        };
        let recorded = seen.coverage.len();
        anyhow::ensure!(
            recorded == instructions,
            "{kernel} has {instructions} instructions, and {recorded} where {} recorded it: run `cargo xtask coverage` again",
            test.name
        );
        all.add(&seen.coverage);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_united() {
        let tests = ["/a/one\nx::y\nk 12 0100\nl 5 11\n", "/a/two\nz\nk 7 0011\n"];
        let tests: Vec<_> = tests.iter().map(|text| parse(text).unwrap()).collect();
        assert_eq!(tests[0].program, Path::new("/a/one"));
        assert_eq!(tests[0].kernels["k"].warp_instructions, 12);
        assert_eq!(of_kernel(&tests, "k", 4).unwrap().to_string(), "0111");
        assert_eq!(of_kernel(&tests, "l", 2).unwrap().to_string(), "11");
        assert!(of_kernel(&tests, "m", 2).unwrap().is_empty());
        let error = of_kernel(&tests, "k", 5).unwrap_err().to_string();
        assert!(
            error.contains("5 instructions, and 4 where x::y"),
            "{error}"
        );
    }

    #[test]
    fn tests_that_draw_are_known_and_not_counted() {
        let folder = tempfile::TempDir::new().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("1-0.txt", "/a/one\nx::y\nk 12 0100\n");
        write("1-1.txt", "/a/one\nz\nk 12 0011\n");
        write("2-0.txt", "/a/two\nz\nk 12 2000\n");
        write("1-z.draws", "/a/one\nz\n");
        let tests = read(folder.path()).unwrap();
        let draws: Vec<_> = tests.iter().map(|test| test.draws).collect();
        assert_eq!(draws, [false, true, false]);
        assert_eq!(of_kernel(&tests, "k", 4).unwrap().to_string(), "2100");
    }

    #[test]
    fn other_text_is_refused() {
        for text in [
            "",
            "/a/one\n",
            "/a\nt\nk 1\n",
            "/a\nt\nk one 01\n",
            "/a\nt\nk 1 05\n",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
