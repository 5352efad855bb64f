//! Static check for divergence: finds instructions that a whole warp, or a whole CTA, must reach together but that lie
//! behind a branch which some of its threads may take and others not.
//!
//! Values are classified by how they vary over the threads of a CTA ([`Level`]), from special registers on, through
//! every instruction to a fixed point. A branch on a varying predicate taints everything executed between it and the
//! point where all paths have joined again (its immediate post-dominator): the instructions there, and every register
//! written there, whose value afterwards depends on the path. What remains untainted is proven uniform, on the
//! assumption that the program has no data race.

mod level;
mod transfer;
mod versions;

use std::collections::HashSet;

use level::Level;
use transfer::{Levels, Reader};
use versions::Versions;

use crate::error::SourceLines;
use crate::ir::cfg::Graph;
use crate::ir::{Inst, Kernel, Op, Operands, PRED_TRUE, Place};

/// An instruction that must be reached together by threads of which not all are proven to reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Divergence {
    /// 1-based line of the PTX text, and the text.
    pub line: u32,
    pub text: String,
    /// Line of the branch, or of the instruction's own predicate, on which threads may disagree.
    pub branch_line: u32,
    /// Who must reach the instruction together.
    pub needs: Together,
}

/// Threads that must reach an instruction together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Together {
    /// All threads of the CTA, as for a barrier without a thread count.
    Cta,
    /// All lanes of a warp, as for `.aligned` instructions.
    Warp,
}

/// The threads that must reach `op` together, if any.
fn needs(op: &Op, levels: &Levels) -> Option<Together> {
    match op {
        Op::Barrier(barrier) if barrier.count.is_none() => Some(Together::Cta),
        Op::ClusterBarrier { .. } => Some(Together::Cta),
        op if op.wants_whole_warp() => Some(Together::Warp),
        Op::Shfl { mask, .. }
        | Op::Vote { mask, .. }
        | Op::Redux { mask, .. }
        | Op::MatchAny { mask, .. }
        | Op::MatchAll { mask, .. }
        | Op::Elect { mask, .. }
        | Op::BarWarp { mask }
            if levels.names_all_lanes(*mask) =>
        {
            Some(Together::Warp)
        }
        _ => None,
    }
}

/// The least uniform condition under which a block runs, and its line.
#[derive(Clone, Copy, Default)]
struct Control {
    level: Level,
    line: u32,
}

impl Control {
    fn raise(&mut self, by: Self) -> bool {
        let news = by.level > self.level;
        if news {
            *self = by;
        }
        news
    }
}

/// A branch, and the blocks that it controls.
struct Branch {
    pc: usize,
    influenced: Vec<u32>,
}

struct Analysis<'k> {
    code: &'k [Inst],
    operands: Vec<Operands>,
    graph: Graph,
    branches: Vec<Branch>,
    versions: Versions,
    levels: Levels,
    controls: Vec<Control>,
}

impl<'k> Analysis<'k> {
    fn new(kernel: &'k Kernel) -> Self {
        let code = &kernel.code[..];
        let operands: Vec<_> = code.iter().map(|inst| Operands::of(&inst.op)).collect();
        let written: HashSet<Place> = operands.iter().flat_map(|o| o.writes.clone()).collect();
        let graph = Graph::new(code);
        let post_dominators = graph.post_dominators();
        let branches = (0..code.len())
            .filter(|&pc| match code[pc].op {
                Op::Bra { .. } | Op::Exit | Op::Trap => code[pc].guard.reg != PRED_TRUE,
                Op::BrxIdx { .. } => true,
                _ => false,
            })
            .map(|pc| Branch {
                pc,
                influenced: graph.influenced(graph.block_of[pc], &post_dominators),
            })
            .collect();
        let mut analysis = Self {
            code,
            versions: Versions::new(code, &operands, &graph),
            operands,
            branches,
            levels: Levels::new(kernel, &written),
            controls: vec![Control::default(); graph.starts.len()],
            graph,
        };
        while analysis.spread_values() | analysis.spread_control() {}
        analysis
    }

    fn reader(&self, pc: usize) -> Reader<'_> {
        Reader {
            levels: &self.levels,
            versions: &self.versions,
            pc,
        }
    }

    /// The condition under which an instruction runs: its block's, and its guard.
    fn control(&self, pc: usize) -> Control {
        let mut control = self.controls[self.graph.block_of[pc] as usize];
        let inst = &self.code[pc];
        control.raise(Control {
            level: self.reader(pc).get(Place::Pred(inst.guard.reg)),
            line: inst.line,
        });
        control
    }

    fn spread_values(&mut self) -> bool {
        let mut news = false;
        for pc in 0..self.code.len() {
            let control = self.control(pc).level;
            for &place in &self.operands[pc].writes {
                let reader = self.reader(pc);
                let level = reader.result(&self.code[pc].op, &self.operands[pc], place);
                let version = self.versions.written(pc, place);
                news |= self.levels.add(place, version, level.under(control));
            }
        }
        news
    }

    fn spread_control(&mut self) -> bool {
        let mut news = false;
        for number in 0..self.branches.len() {
            let pc = self.branches[number].pc;
            let inst = &self.code[pc];
            let reader = self.reader(pc);
            let mut level = reader.get(Place::Pred(inst.guard.reg));
            if let Op::BrxIdx { index, .. } = inst.op {
                level = level.of_both(reader.get(Place::R32(index)));
            }
            let line = inst.line;
            for &block in &self.branches[number].influenced {
                news |= self.controls[block as usize].raise(Control { level, line });
            }
        }
        news
    }
}

/// Every instruction of `kernel` that is not proven to be reached together by those who must.
pub(crate) fn divergences(kernel: &Kernel, source: &str) -> Vec<Divergence> {
    if kernel.code.is_empty() {
        return Vec::new();
    }
    let analysis = Analysis::new(kernel);
    let source = SourceLines::new(source);
    let mut found = Vec::new();
    for (pc, inst) in kernel.code.iter().enumerate() {
        let Some(needs) = needs(&inst.op, &analysis.levels) else {
            continue;
        };
        let control = analysis.control(pc);
        let allowed = match needs {
            Together::Cta => Level::Cta,
            Together::Warp => Level::Warp,
        };
        if control.level > allowed {
            found.push(Divergence {
                line: inst.line,
                text: source.quote(inst.line),
                branch_line: control.line,
                needs,
            });
        }
    }
    found
}
