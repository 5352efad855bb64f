//! The Rust source behind lines of PTX.

use std::path::{Path, PathBuf};
use std::{fmt, fs};

use anyhow::Context;
use cuda_builder::LINES_EXTENSION;
use xtask::paths;

/// A line of Rust source; its file as a path from the workspace's root, where it lies in there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub file: String,
    pub line: u32,
}

impl Place {
    /// The line, without the space around it, of a file that is there.
    pub fn text(&self) -> Option<String> {
        let text = fs::read_to_string(paths::root().join(&self.file)).ok()?;
        let line = text.lines().nth(self.line.checked_sub(1)? as usize)?;
        Some(line.trim().to_owned())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// The table of a module: where the source line changes.
pub struct Source(Vec<(u32, Place)>);

impl Source {
    /// Reads the table that lies next to the module `ptx`.
    pub fn of(ptx: &Path) -> anyhow::Result<Self> {
        let path: PathBuf = ptx.with_extension(LINES_EXTENSION);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    /// The table of a module without line information.
    #[cfg(test)]
    pub fn empty() -> Self {
        Self(Vec::new())
    }

    fn parse(table: &str) -> anyhow::Result<Self> {
        let root = format!("{}/", paths::root().display());
        let change = |line: &str| {
            let (number, place) = line.split_once(' ')?;
            let mut parts = place.rsplitn(3, ':').skip(1);
            let (line, file) = (parts.next()?.parse().ok()?, parts.next()?);
            let file = file.strip_prefix(&root).unwrap_or(file).to_owned();
            Some((number.parse().ok()?, Place { file, line }))
        };
        let changes: Option<Vec<_>> = table.lines().map(change).collect();
        Ok(Self(changes.context("a line that is no place")?))
    }

    /// The line of source that line `number` of the PTX is of. Line 0 is the compiler's own doing.
    pub fn line(&self, number: u32) -> Option<&Place> {
        let behind = self.0.partition_point(|(first, _)| *first <= number);
        let (_, place) = self.0.get(behind.checked_sub(1)?)?;
        Some(place).filter(|place| place.line > 0)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// All lines of Rust that kernels are of, without the space around them.
    pub fn kernel_lines() -> Vec<String> {
        let mut lines = vec![];
        for folder in ["kernels-gpu/src", "cuda/cuda_std/src"] {
            add_lines(&paths::root().join(folder), &mut lines);
        }
        lines
    }

    fn add_lines(folder: &Path, lines: &mut Vec<String>) {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                add_lines(&path, lines);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("text");
                lines.extend(text.lines().map(|line| line.trim().to_owned()));
            }
        }
    }

    #[test]
    fn a_line_is_of_the_place_before_it() {
        let root = paths::root().display();
        let table = format!("8 {root}/a/b.rs:3:1\n10 /else/c.rs:0:4\n12 /else/c.rs:5:4\n");
        let source = Source::parse(&table).unwrap();
        let place = |number| source.line(number).map(Place::to_string);
        assert_eq!(place(7), None);
        assert_eq!(place(9).unwrap(), "a/b.rs:3");
        assert_eq!(place(10), None);
        assert_eq!(place(99).unwrap(), "/else/c.rs:5");
        assert!(Source::parse("8 a.rs\n").is_err());
    }
}
