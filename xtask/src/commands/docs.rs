//! `cargo xtask docs`: writes the output and pictures of the commands named in docs/ into its pages.
//!
//! A page names a command in a pair of comments, and everything between them is replaced:
//!
//! ```text
//! <!-- run: ladder --seq 256 -->             the output, as text
//! <!-- /run -->
//! <!-- run: ladder --backend sim (without: warp instructions) -->     and without some columns of its tables
//! <!-- /run -->
//! <!-- picture: layout mma --svg docs/pictures/mma.svg -->             the picture only
//! <!-- /picture -->
//! ```
//!
//! Columns are left out if they depend on more than this repository: on the release of rustc that compiled the kernels,
//! or on the machine's mathematical library.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use xshell::{Shell, cmd};

use xtask::paths;

#[derive(clap::Args)]
pub struct Args {
    /// Change nothing; fail if a page or a picture is not current
    #[arg(long)]
    check: bool,
}

impl Args {
    /// The arguments of `--check`.
    pub fn check() -> Self {
        Self { check: true }
    }
}

/// Pages that name commands.
const PAGES: [&str; 1] = ["docs/how-it-works.md"];

pub fn run(args: &Args) -> anyhow::Result<()> {
    let sh = Shell::new()?;
    sh.change_dir(paths::root());
    cmd!(sh, "cargo build --quiet --package ferroflash-cli").run()?;
    let fresh_folder = paths::target().join("docs");
    fs::create_dir_all(&fresh_folder)?;
    let mut stale = Vec::new();
    for page in PAGES {
        let path = paths::root().join(page);
        let text = fs::read_to_string(&path).with_context(|| page.to_owned())?;
        let mut pictures = Vec::new();
        let fresh = fill(&text, |words| {
            let picture = picture_of(words)?;
            let drawn = picture.map(|name| fresh_folder.join(name.replace('/', "-")));
            let output = ferroflash(&sh, words, drawn.as_deref())?;
            pictures.extend(picture.map(str::to_owned).zip(drawn));
            Ok(output)
        })
        .with_context(|| page.to_owned())?;
        if replace(&path, fresh.as_bytes(), args.check)? {
            stale.push(format!("{page} ({})", first_difference(&text, &fresh)));
        }
        for (name, drawn) in pictures {
            if replace(&paths::root().join(&name), &fs::read(&drawn)?, args.check)? {
                stale.push(name);
            }
        }
    }
    let changed = stale.join(", ");
    ensure!(
        !args.check || stale.is_empty(),
        "not current: {changed}; `cargo xtask docs` makes them so"
    );
    match stale.is_empty() {
        true => println!("docs are current"),
        false => println!("wrote {changed}"),
    }
    Ok(())
}

/// Description of the first line in which two texts differ.
fn first_difference(old: &str, new: &str) -> String {
    let (mut old, mut new) = (old.lines(), new.lines());
    let mut number = 1;
    loop {
        match (old.next(), new.next()) {
            (Some(old), Some(new)) if old == new => number += 1,
            (old, new) => {
                let [old, new] = [old, new].map(Option::unwrap_or_default);
                return format!("line {number}: `{old}` should be `{new}`");
            }
        }
    }
}

/// Returns whether `path` did not hold `fresh`, and writes it there unless `check`.
fn replace(path: &Path, fresh: &[u8], check: bool) -> anyhow::Result<bool> {
    let stale = fs::read(path).ok().as_deref() != Some(fresh);
    if stale && !check {
        fs::write(path, fresh).with_context(|| path.display().to_string())?;
    }
    Ok(stale)
}

/// The file that `--svg` names.
fn picture_of<'a>(words: &[&'a str]) -> anyhow::Result<Option<&'a str>> {
    let Some(flag) = words.iter().position(|word| *word == "--svg") else {
        return Ok(None);
    };
    let name = words.get(flag + 1).context("--svg names no file")?;
    Ok(Some(name))
}

/// The output of the command `ferroflash`, with its picture drawn to `drawn` instead of the file that `--svg` names.
fn ferroflash(sh: &Shell, words: &[&str], drawn: Option<&Path>) -> anyhow::Result<String> {
    let mut arguments: Vec<PathBuf> = words.iter().map(PathBuf::from).collect();
    if let (Some(drawn), Some(flag)) = (drawn, words.iter().position(|word| *word == "--svg")) {
        arguments[flag + 1] = drawn.to_owned();
    }
    let program = paths::target().join("debug/ferroflash");
    let output = cmd!(sh, "{program} {arguments...}").quiet().ignore_stderr();
    Ok(output.read()?)
}

/// `text` with everything between its markers replaced by the output of `run` for their words.
fn fill(
    text: &str,
    mut run: impl FnMut(&[&str]) -> anyhow::Result<String>,
) -> anyhow::Result<String> {
    let mut fresh = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        fresh += line;
        fresh.push('\n');
        let Some((kind, command)) = opening(line) else {
            continue;
        };
        let closing = format!("<!-- /{kind} -->");
        ensure!(
            lines.by_ref().any(|line| line == closing),
            "`{line}` is not followed by `{closing}`"
        );
        let (command, without) = columns_left_out(command)?;
        let words: Vec<_> = command.split_whitespace().collect();
        let output = run(&words).with_context(|| line.to_owned())?;
        let output = drop_columns(&output, &without).with_context(|| line.to_owned())?;
        fresh += &match kind {
            "run" => format!(
                "\n```text\n$ ferroflash {command}\n{}\n```\n\n",
                output.trim_end()
            ),
            _ => match picture_of(&words)? {
                Some(name) => {
                    let beside_page = name.trim_start_matches("docs/");
                    format!("\n![ferroflash {command}]({beside_page})\n\n")
                }
                None => bail!("`{line}` draws no picture: it has no --svg"),
            },
        };
        fresh += &closing;
        fresh.push('\n');
    }
    Ok(fresh)
}

/// The kind and the command of an opening marker.
fn opening(line: &str) -> Option<(&str, &str)> {
    let inner = line.strip_prefix("<!-- ")?.strip_suffix(" -->")?;
    let (kind, command) = inner.split_once(": ")?;
    ["run", "picture"]
        .contains(&kind)
        .then_some((kind, command))
}

/// A marker's command, and the headers of the columns to leave out of its output.
fn columns_left_out(marker: &str) -> anyhow::Result<(&str, Vec<&str>)> {
    let Some((command, rest)) = marker.split_once(" (without: ") else {
        return Ok((marker, Vec::new()));
    };
    let names = rest
        .strip_suffix(')')
        .context("`(without: …` is not closed")?;
    Ok((command, names.split(", ").collect()))
}

/// `output` without the columns called `names` of its tables, each of which must be in some table.
fn drop_columns(output: &str, names: &[&str]) -> anyhow::Result<String> {
    let mut kept_lines = String::new();
    let mut missing = names.to_vec();
    let mut dropped: Vec<usize> = Vec::new();
    for line in output.lines() {
        let Some(row) = line.strip_prefix('|').and_then(|row| row.strip_suffix('|')) else {
            // The end of a table.
            dropped.clear();
            kept_lines += line;
            kept_lines.push('\n');
            continue;
        };
        let cells: Vec<_> = row.split('|').collect();
        let is_dropped = |(_, cell): &(usize, &&str)| names.contains(&cell.trim());
        let here = cells.iter().enumerate().filter(is_dropped);
        dropped.extend(here.map(|(column, _)| column));
        missing.retain(|name| !cells.iter().any(|cell| cell.trim() == *name));
        let kept = cells
            .iter()
            .enumerate()
            .filter(|(column, _)| !dropped.contains(column));
        let kept: Vec<_> = kept.map(|(_, cell)| *cell).collect();
        kept_lines += &format!("|{}|\n", kept.join("|"));
    }
    ensure!(missing.is_empty(), "no column {missing:?} in the output");
    Ok(kept_lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "before\n<!-- run: a --b c -->\nold\n<!-- /run -->\nbetween\n\
                        <!-- picture: d --svg docs/x.svg -->\n<!-- /picture -->\n";

    fn echo(words: &[&str]) -> anyhow::Result<String> {
        Ok(format!("{}!\n", words.join("+")))
    }

    #[test]
    fn what_is_between_the_markers_is_replaced() {
        let fresh = fill(PAGE, echo).unwrap();
        let expected = "before\n<!-- run: a --b c -->\n\n```text\n$ ferroflash a --b c\na+--b+c!\n```\n\n\
                        <!-- /run -->\nbetween\n<!-- picture: d --svg docs/x.svg -->\n\n\
                        ![ferroflash d --svg docs/x.svg](x.svg)\n\n<!-- /picture -->\n";
        assert_eq!(fresh, expected);
        assert_eq!(
            fill(&fresh, echo).unwrap(),
            expected,
            "a second time changes nothing"
        );
    }

    const TABLE: &str = "title\n\n| a | bb | c |\n|---|---:|---|\n| 1 |  2 | 3 |\n\nrest | 4 |\n";

    #[test]
    fn columns_are_left_out() {
        let page = "<!-- run: t (without: bb, c) -->\n<!-- /run -->\n";
        let fresh = fill(page, |words| {
            assert_eq!(words, ["t"], "the command does not see what is left out");
            Ok(TABLE.to_owned())
        });
        let expected = "title\n\n| a |\n|---|\n| 1 |\n\nrest | 4 |\n";
        assert!(fresh.unwrap().contains(expected));
        let missing = drop_columns(TABLE, &["bb", "d"]).unwrap_err().to_string();
        assert_eq!(missing, "no column [\"d\"] in the output");
    }

    #[test]
    fn a_stale_line_is_shown() {
        let shown = first_difference("a\nb\nc\n", "a\nx\nc\n");
        assert_eq!(shown, "line 2: `b` should be `x`");
        let shown = first_difference("a\n", "a\nb\n");
        assert_eq!(shown, "line 2: `` should be `b`");
    }

    #[test]
    fn faults_of_a_page_are_named() {
        let unclosed = fill("<!-- run: a -->\n<!-- /picture -->\n", echo);
        assert!(
            unclosed
                .unwrap_err()
                .to_string()
                .contains("is not followed by")
        );
        let drawn = fill("<!-- picture: a -->\n<!-- /picture -->\n", echo);
        assert!(drawn.unwrap_err().to_string().contains("draws no picture"));
        let unclosed = fill("<!-- run: a (without: b -->\n<!-- /run -->\n", echo);
        assert!(unclosed.unwrap_err().to_string().contains("not closed"));
        let failing = |_: &[&str]| -> anyhow::Result<String> { bail!("exit code 2") };
        assert!(fill(PAGE, failing).is_err());
    }
}
