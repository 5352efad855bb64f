//! Parses the control-flow graph that `nvdisasm -bbcfg` draws.

use std::collections::{BTreeSet, HashMap};

use anyhow::Context;
use petgraph::graph::{DiGraph, NodeIndex};

/// Blocks of a loop.
pub type Blocks = BTreeSet<NodeIndex>;

/// A kernel's basic blocks, each with its instructions.
pub struct Graph {
    pub blocks: DiGraph<Vec<Instruction>, ()>,
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
                by_name.insert(name, blocks.add_node(instructions(label)));
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
        all.filter(|found| mnemonics.contains(&found.mnemonic.as_str()))
            .count() as u32
    }
}

/// The text between the first two quotation marks.
fn quoted(text: &str) -> anyhow::Result<&str> {
    let name = text.split('"').nth(1);
    name.with_context(|| format!("no name in `{text}`"))
}

/// A line `@P0 NAME.MODIFIER operands`.
pub struct Instruction {
    /// `NAME`.
    pub mnemonic: String,
    /// `.MODIFIER`.
    modifiers: String,
    /// `operands`.
    operands: String,
}

impl Instruction {
    /// `None` for labels and directives.
    fn parse(line: &str) -> Option<Self> {
        let line = line.replace("\\ ", " ");
        let line = line.trim_start().trim_end_matches([' ', ';']);
        let is_predicated = line.starts_with('@');
        let line = match line.split_once(' ') {
            Some((_, rest)) if is_predicated => rest.trim_start(),
            _ => line,
        };
        let (word, operands) = line.split_once(' ').unwrap_or((line, ""));
        let end = word.find('.').unwrap_or(word.len());
        let (name, modifiers) = word.split_at(end);
        let is_part = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit();
        (!name.is_empty() && name.chars().all(is_part)).then(|| Self {
            mnemonic: name.to_owned(),
            modifiers: modifiers.to_owned(),
            operands: operands.to_owned(),
        })
    }

    /// The operands, without predicates that are written first.
    pub fn operands(&self) -> Vec<&str> {
        let all = self.operands.split(',').map(str::trim);
        all.skip_while(|operand| operand.starts_with('P')).collect()
    }

    /// Registers that it writes, if it writes any.
    pub fn width(&self) -> u32 {
        let has = |modifier| self.modifiers.contains(modifier);
        match () {
            () if has(".128") => 4,
            () if has(".64") || has(".WIDE") => 2,
            () => 1,
        }
    }
}

/// The instructions of a label: its lines end in `\l`, and those where a field of the node begins name it first.
fn instructions(label: &str) -> Vec<Instruction> {
    let lines = label.split("\\l").map(|line| {
        let is_field = line.starts_with(['{', '|']);
        let field = line.split_once('>').filter(|_| is_field);
        field.map_or(line, |(_, line)| line)
    });
    lines.filter_map(Instruction::parse).collect()
}
