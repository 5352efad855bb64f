//! Parses the control-flow graph that `nvdisasm -bbcfg` draws.

use std::collections::{BTreeSet, HashMap};

use anyhow::Context;
use petgraph::graph::{DiGraph, NodeIndex};

/// Blocks of a loop.
pub type Blocks = BTreeSet<NodeIndex>;

/// A kernel's basic blocks, each with the mnemonics of its instructions, without their modifiers.
pub struct Graph {
    pub blocks: DiGraph<Vec<String>, ()>,
    /// The first block, where the kernel starts.
    pub entry: NodeIndex,
}

impl Graph {
    /// Reads lines `"block"`, `[label="…"]` and `"block":port -> "block":port`.
    pub fn parse(dot: &str) -> anyhow::Result<Self> {
        let mut blocks = DiGraph::new();
        let mut by_name = HashMap::new();
        let mut edges = Vec::new();
        let mut name = None;
        for line in dot.lines() {
            if let Some(label) = line.strip_prefix("[label=\"") {
                let name = name.take().context("a label of no block")?;
                by_name.insert(name, blocks.add_node(mnemonics(label)));
            } else if let Some((from, to)) = line.split_once(" -> ") {
                edges.push((quoted(from)?, quoted(to)?));
            } else if line.starts_with('"') {
                name = Some(quoted(line)?);
            }
        }
        let find = |name| {
            by_name
                .get(name)
                .copied()
                .with_context(|| format!("no block {name}"))
        };
        for (from, to) in edges {
            blocks.update_edge(find(from)?, find(to)?, ());
        }
        let entry = blocks.node_indices().next().context("no block")?;
        Ok(Self { blocks, entry })
    }

    /// Number of instructions with these mnemonics in `blocks`.
    pub fn count(&self, blocks: &Blocks, mnemonics: &[&str]) -> u32 {
        let all = blocks.iter().flat_map(|&block| &self.blocks[block]);
        all.filter(|found| mnemonics.contains(&found.as_str()))
            .count() as u32
    }
}

/// The text between the first two quotation marks.
fn quoted(text: &str) -> anyhow::Result<&str> {
    let name = text.split('"').nth(1);
    name.with_context(|| format!("no name in `{text}`"))
}

/// The mnemonics of a label: its lines end in `\l`, and those where a field of the node begins name it first.
fn mnemonics(label: &str) -> Vec<String> {
    let lines = label.split("\\l").map(|line| {
        let is_field = line.starts_with(['{', '|']);
        let field = line.split_once('>').filter(|_| is_field);
        field.map_or(line, |(_, line)| line)
    });
    lines.filter_map(mnemonic).collect()
}

/// The mnemonic `NAME` of a line `@P0 NAME.MODIFIER operands`; `None` for labels and directives.
fn mnemonic(line: &str) -> Option<String> {
    let line = line.replace("\\ ", " ");
    let mut words = line
        .split_whitespace()
        .filter(|word| !word.starts_with('@'));
    let word = words.next()?;
    let name = word.split('.').next().filter(|name| !name.is_empty())?;
    let is_name = name
        .chars()
        .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit());
    is_name.then(|| name.to_owned())
}
