//! Control flow: where the paths of a divergent branch meet again.
//!
//! A branch's paths reconverge at its immediate post-dominator (Cooper, Harvey, Kennedy, "A Simple,
//! Fast Dominance Algorithm", on the reversed graph). Traps and endless loops are not paths: a panic
//! inside a divergent region must not move the meeting point. Where several exits leave a branch
//! without a post-dominator, it is the block that every path which does not exit passes first.

use super::{Inst, Op, Pred};

/// No meeting point.
pub const NEVER: u32 = u32::MAX;

/// Work allowed for the search behind early exits.
const SEARCH_BUDGET: usize = 20_000_000;

/// The basic blocks of a kernel.
pub struct Graph {
    /// First instruction of each block.
    pub starts: Vec<u32>,
    pub block_of: Vec<u32>,
    pub succs: Vec<Vec<u32>>,
    exits: Vec<bool>,
}

impl Graph {
    pub fn new(code: &[Inst]) -> Self {
        let mut leader = vec![false; code.len()];
        if let Some(first) = leader.first_mut() {
            *first = true;
        }
        let mut mark = |pc: usize| {
            if let Some(l) = leader.get_mut(pc) {
                *l = true;
            }
        };
        for (pc, inst) in code.iter().enumerate() {
            match &inst.op {
                Op::Bra { target } => {
                    mark(*target as usize);
                    mark(pc + 1);
                }
                Op::BrxIdx { targets, .. } => {
                    targets.iter().for_each(|&t| mark(t as usize));
                    mark(pc + 1);
                }
                Op::Exit | Op::Trap | Op::Unsupported(_) => mark(pc + 1),
                _ => {}
            }
        }
        let mut starts = Vec::new();
        let mut block_of = Vec::with_capacity(code.len());
        for (pc, &l) in leader.iter().enumerate() {
            if l {
                starts.push(pc as u32);
            }
            block_of.push(starts.len() as u32 - 1);
        }
        let mut graph = Self {
            succs: vec![Vec::new(); starts.len()],
            exits: vec![false; starts.len()],
            starts,
            block_of,
        };
        graph.connect(code);
        graph
    }

    fn connect(&mut self, code: &[Inst]) {
        for b in 0..self.starts.len() {
            let end = self.starts.get(b + 1).map_or(code.len(), |&s| s as usize);
            let last = &code[end - 1];
            let mut succs: Vec<u32> = Vec::new();
            let mut falls = last.guard != Pred::TRUE;
            match &last.op {
                Op::Bra { target } => succs.push(self.block_of[*target as usize]),
                Op::BrxIdx { targets, .. } => {
                    succs.extend(targets.iter().map(|&t| self.block_of[t as usize]));
                }
                Op::Exit => self.exits[b] = true,
                Op::Trap | Op::Unsupported(_) => {}
                _ => falls = true,
            }
            if falls && end < code.len() {
                succs.push(self.block_of[end]);
            }
            succs.sort_unstable();
            succs.dedup();
            self.succs[b] = succs;
        }
    }

    /// Blocks reachable from `from` without entering `without`.
    fn reachable(&self, from: u32, without: Option<u32>, seen: &mut [bool]) -> usize {
        seen.fill(false);
        let mut stack = Vec::new();
        if Some(from) != without {
            seen[from as usize] = true;
            stack.push(from);
        }
        let mut work = seen.len();
        while let Some(b) = stack.pop() {
            for &s in &self.succs[b as usize] {
                work += 1;
                if !seen[s as usize] && Some(s) != without {
                    seen[s as usize] = true;
                    stack.push(s);
                }
            }
        }
        work
    }

    /// The instructions of a block, in a kernel of `len`.
    pub fn instructions(&self, block: usize, len: usize) -> std::ops::Range<usize> {
        let end = self
            .starts
            .get(block + 1)
            .map_or(len, |&start| start as usize);
        self.starts[block] as usize..end
    }

    /// Blocks whose execution depends on which way the paths of `block` go: all that are reached from it before its
    /// immediate post-dominator.
    pub fn influenced(&self, block: u32, post_dominators: &[u32]) -> Vec<u32> {
        let meeting = Some(post_dominators[block as usize]).filter(|&b| b != NEVER);
        let mut seen = vec![false; self.starts.len()];
        let mut influenced = Vec::new();
        let mut stack = self.succs[block as usize].clone();
        while let Some(b) = stack.pop() {
            if Some(b) != meeting && !std::mem::replace(&mut seen[b as usize], true) {
                influenced.push(b);
                stack.extend(&self.succs[b as usize]);
            }
        }
        influenced
    }

    /// Immediate post-dominators; the virtual exit is block number `len`.
    pub fn post_dominators(&self) -> Vec<u32> {
        let n = self.starts.len();
        let exit = n as u32;
        let mut preds = vec![Vec::new(); n + 1];
        for (b, succs) in self.succs.iter().enumerate() {
            for &s in succs {
                preds[s as usize].push(b as u32);
            }
            if self.exits[b] {
                preds[n].push(b as u32);
            }
        }
        // Post-order of the reversed graph from the virtual exit.
        let mut number = vec![NEVER; n + 1];
        let mut order = Vec::new();
        let mut seen = vec![false; n + 1];
        let mut stack = vec![(exit, 0usize)];
        seen[n] = true;
        while let Some((b, i)) = stack.pop() {
            if let Some(&p) = preds[b as usize].get(i) {
                stack.push((b, i + 1));
                if !seen[p as usize] {
                    seen[p as usize] = true;
                    stack.push((p, 0));
                }
            } else {
                number[b as usize] = order.len() as u32;
                order.push(b);
            }
        }
        let mut ipdom = vec![NEVER; n + 1];
        ipdom[n] = exit;
        let mut changed = true;
        while changed {
            changed = false;
            for &b in order.iter().rev().filter(|&&b| b != exit) {
                let exits = self.exits[b as usize].then_some(exit);
                let mut new = NEVER;
                for s in self.succs[b as usize].iter().copied().chain(exits) {
                    if ipdom[s as usize] == NEVER {
                        continue;
                    }
                    new = if new == NEVER {
                        s
                    } else {
                        intersect(new, s, &ipdom, &number)
                    };
                }
                if new != ipdom[b as usize] {
                    ipdom[b as usize] = new;
                    changed = true;
                }
            }
        }
        ipdom
    }

    /// The first block that every path of `block` that does not exit goes through.
    fn meeting_past_exits(&self, block: u32, budget: &mut usize) -> Option<u32> {
        let n = self.starts.len();
        let succs = &self.succs[block as usize];
        let mut seen = vec![vec![false; n]; succs.len()];
        let mut reach = |without: Option<u32>, budget: &mut usize| {
            for (i, &s) in succs.iter().enumerate() {
                let work = self.reachable(s, without, &mut seen[i]);
                *budget = budget.saturating_sub(work);
            }
            (0..n as u32)
                .filter(|&b| seen.iter().filter(|s| s[b as usize]).count() > 1)
                .collect::<Vec<_>>()
        };
        let common = reach(None, budget);
        for &candidate in &common {
            if *budget == 0 {
                return None;
            }
            if reach(Some(candidate), budget).is_empty() {
                return Some(candidate);
            }
        }
        None
    }
}

fn intersect(mut a: u32, mut b: u32, ipdom: &[u32], number: &[u32]) -> u32 {
    while a != b {
        while number[a as usize] < number[b as usize] {
            a = ipdom[a as usize];
        }
        while number[b as usize] < number[a as usize] {
            b = ipdom[b as usize];
        }
    }
    a
}

/// For each instruction that can diverge, the instruction where its paths meet; [`NEVER`] elsewhere.
pub fn reconvergence_points(code: &[Inst]) -> Vec<u32> {
    let mut points = vec![NEVER; code.len()];
    if code.is_empty() {
        return points;
    }
    let graph = Graph::new(code);
    let ipdom = graph.post_dominators();
    let virtual_exit = graph.starts.len() as u32;
    let mut budget = SEARCH_BUDGET;
    for (pc, inst) in code.iter().enumerate() {
        let diverges = match inst.op {
            Op::Bra { .. } => inst.guard != Pred::TRUE,
            Op::BrxIdx { .. } => true,
            _ => false,
        };
        if !diverges {
            continue;
        }
        let block = graph.block_of[pc];
        let meeting = match ipdom[block as usize] {
            NEVER => None,
            b if b == virtual_exit => graph.meeting_past_exits(block, &mut budget),
            b => Some(b),
        };
        if let Some(b) = meeting {
            let start = graph.starts[b as usize];
            // Nothing is gained by waiting for each other in order to exit.
            let leaves = matches!(code[start as usize].op, Op::Exit)
                && code[start as usize].guard == Pred::TRUE;
            if !leaves {
                points[pc] = start;
            }
        }
    }
    points
}
