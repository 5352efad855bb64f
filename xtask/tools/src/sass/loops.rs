//! The loops of a control-flow graph.

use std::collections::BTreeMap;

use petgraph::Direction::Incoming;
use petgraph::algo::{dominators, is_cyclic_directed};
use petgraph::visit::EdgeFiltered;
use petgraph::visit::EdgeRef;

use super::graph::{Blocks, Graph};

/// The natural loops, one per head: the blocks that reach a branch back to the head without passing the head.
///
/// # Errors
/// If the graph is irreducible: some cycle can be entered at more than one block.
pub fn natural(graph: &Graph) -> anyhow::Result<Vec<Blocks>> {
    let blocks = &graph.blocks;
    let dominators = dominators::simple_fast(blocks, graph.entry);
    // Unreachable blocks have no dominators: called functions, and the code behind them.
    let is_reached =
        |block| block == graph.entry || dominators.immediate_dominator(block).is_some();
    let is_back = |from, head| {
        dominators
            .dominators(from)
            .is_some_and(|mut all| all.any(|block| block == head))
    };
    let forward = EdgeFiltered::from_fn(blocks, |edge| {
        is_reached(edge.source()) && !is_back(edge.source(), edge.target())
    });
    anyhow::ensure!(!is_cyclic_directed(&forward), "a loop with several ways in");

    let mut loops: BTreeMap<_, Blocks> = BTreeMap::new();
    for edge in blocks.edge_references() {
        let (from, head) = (edge.source(), edge.target());
        if !is_back(from, head) {
            continue;
        }
        let body = loops.entry(head).or_insert_with(|| Blocks::from([head]));
        let mut found = vec![from];
        while let Some(block) = found.pop() {
            if body.insert(block) {
                let before = blocks.neighbors_directed(block, Incoming);
                found.extend(before.filter(|&block| is_reached(block)));
            }
        }
    }
    Ok(loops.into_values().collect())
}

/// The blocks of `loops`; of outermost loops that contain others, only the blocks of those others.
pub fn without_outermost(loops: &[Blocks]) -> Blocks {
    let holds = |outer: &Blocks, inner: &Blocks| outer != inner && outer.is_superset(inner);
    let is_kept = |blocks: &&Blocks| {
        let is_inner = loops.iter().any(|outer| holds(outer, blocks));
        let is_alone = !loops.iter().any(|inner| holds(blocks, inner));
        is_inner || is_alone
    };
    loops.iter().filter(is_kept).flatten().copied().collect()
}
