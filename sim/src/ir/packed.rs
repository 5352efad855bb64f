//! Registers that are never live together share a place.
//!
//! Compilers name a register for every value, thousands a kernel, of which a hundred or two are live at once. With a place each a warp has a
//! megabyte of registers, and a simulated instruction waits for the CPU's memory; packed, they stay in its nearest cache. A linear scan (Poletto,
//! Sarkar, "Linear Scan Register Allocation", 1999) over the instructions as they stand in the text: a register holds its place from
//! the first instruction at which it is live to the last.
//!
//! Lanes take branches on their own, but each has a part of every register of its own, too: what is live is what a thread by itself
//! would have live.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::cfg::Graph;
use super::kernel::Kernel;
use super::{Access, Inst, Op, Place, Pred, Reg, SINK, visit};

impl Kernel {
    /// The same kernel with fewer places for registers. Registers of `wgmma`s keep their own: operations in flight use them after the
    /// instruction that names them.
    pub(crate) fn packed(&self) -> Self {
        let mut kernel = self.clone();
        let graph = Graph::new(&kernel.code);
        let preds = predecessors(&graph);
        let mut lives = Lives::new(self);
        for (pc, inst) in kernel.code.iter_mut().enumerate() {
            lives.enter(pc as u32, inst);
        }
        let narrow = lives.narrow.into_places(&graph, &preds);
        let wide = lives.wide.into_places(&graph, &preds);
        for inst in &mut kernel.code {
            visit(&mut inst.op, &mut |_, place, reg| match place {
                Place::R32(_) => *reg = narrow.of[*reg as usize],
                Place::R64(_) => *reg = wide.of[*reg as usize],
                Place::Pred(_) | Place::Carry => {}
            });
        }
        for (reg, _) in &mut kernel.presets32 {
            *reg = narrow.of[*reg as usize];
        }
        for (reg, _) in &mut kernel.presets64 {
            *reg = wide.of[*reg as usize];
        }
        (kernel.regs32, kernel.regs64) = (narrow.count, wide.count);
        kernel
    }
}

fn predecessors(graph: &Graph) -> Vec<Vec<u32>> {
    let mut preds = vec![Vec::new(); graph.succs.len()];
    for (block, succs) in graph.succs.iter().enumerate() {
        for &succ in succs {
            preds[succ as usize].push(block as u32);
        }
    }
    preds
}

/// Where registers of both widths are used.
struct Lives {
    narrow: File,
    wide: File,
}

impl Lives {
    fn new(kernel: &Kernel) -> Self {
        let len = kernel.code.len() as u32;
        let mut narrow = File::new(kernel.regs32, len);
        let mut wide = File::new(kernel.regs64, len);
        for (file, presets) in [
            (&mut narrow, &kernel.presets32),
            (&mut wide, &kernel.presets64),
        ] {
            for &(reg, _) in presets {
                file.lives[reg as usize].cover(0);
            }
        }
        Self { narrow, wide }
    }

    fn enter(&mut self, pc: u32, inst: &mut Inst) {
        let is_async = matches!(inst.op, Op::Wgmma(_));
        // A write that its guard may forbid leaves what was there before.
        let is_guarded = inst.guard != Pred::TRUE;
        visit(&mut inst.op, &mut |access, place, reg| {
            let file = match place {
                Place::R32(_) => &mut self.narrow,
                Place::R64(_) => &mut self.wide,
                Place::Pred(_) | Place::Carry => return,
            };
            let len = file.len;
            let life = &mut file.lives[*reg as usize];
            life.cover(pc);
            if is_async && matches!(place, Place::R32(_)) {
                life.cover(0);
                life.cover(len);
            }
            match access {
                Access::Write if !is_guarded => life.writes.push(pc),
                _ => life.reads.push(pc),
            }
        });
    }
}

/// Where one register is used, in order.
#[derive(Clone, Default)]
struct Life {
    /// First and last instruction at which it is live, as far as is known.
    span: Option<(u32, u32)>,
    /// What needs the value from before.
    reads: Vec<u32>,
    /// What replaces it in all lanes that come by.
    writes: Vec<u32>,
}

impl Life {
    fn cover(&mut self, pc: u32) {
        let (first, last) = self.span.unwrap_or((pc, pc));
        self.span = Some((first.min(pc), last.max(pc)));
    }

    /// Whether it is replaced in `range`.
    fn is_written_in(&self, range: std::ops::Range<u32>) -> bool {
        let next = self.writes.partition_point(|&pc| pc < range.start);
        self.writes.get(next).is_some_and(|&pc| pc < range.end)
    }

    /// Covers the paths from writes to reads through other blocks. `seen` holds for each block the last register that was found live at its start.
    fn cover_paths(&mut self, me: Reg, graph: &Graph, preds: &[Vec<u32>], seen: &mut [Reg]) {
        let start = |block: u32| graph.starts[block as usize];
        let mut open = Vec::new();
        for &read in &self.reads {
            let block = graph.block_of[read as usize];
            if !self.is_written_in(start(block)..read) {
                open.push(block);
            }
        }
        while let Some(block) = open.pop() {
            if std::mem::replace(&mut seen[block as usize], me) == me {
                continue;
            }
            self.cover(start(block));
            for &pred in &preds[block as usize] {
                let end = graph
                    .starts
                    .get(pred as usize + 1)
                    .map_or(graph.block_of.len() as u32, |&next| next);
                self.cover(end - 1);
                if !self.is_written_in(start(pred)..end) {
                    open.push(pred);
                }
            }
        }
    }
}

/// The registers of one width.
struct File {
    lives: Vec<Life>,
    /// Instructions of the kernel.
    len: u32,
}

/// A place for each register, of so many.
struct Places {
    of: Vec<Reg>,
    count: u32,
}

impl File {
    fn new(registers: u32, len: u32) -> Self {
        Self {
            lives: vec![Life::default(); registers as usize],
            len,
        }
    }

    fn into_places(mut self, graph: &Graph, preds: &[Vec<u32>]) -> Places {
        let mut seen = vec![SINK; graph.starts.len()];
        for (reg, life) in self.lives.iter_mut().enumerate().skip(1) {
            life.cover_paths(reg as Reg, graph, preds, &mut seen);
        }
        let mut spans: Vec<_> = (1..)
            .zip(&self.lives[1..])
            .filter_map(|(reg, life): (Reg, _)| life.span.map(|(first, last)| (first, last, reg)))
            .collect();
        spans.sort_unstable();
        // Nobody reads the sink, whatever is written there.
        let mut places = Places {
            of: vec![SINK; self.lives.len()],
            count: SINK + 1,
        };
        let mut taken = BinaryHeap::new();
        let mut free = Vec::new();
        for (first, last, reg) in spans {
            while let Some(&Reverse((end, place))) = taken.peek()
                && end < first
            {
                taken.pop();
                free.push(place);
            }
            let place = free.pop().unwrap_or_else(|| {
                places.count += 1;
                places.count - 1
            });
            taken.push(Reverse((last, place)));
            places.of[reg as usize] = place;
        }
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::module::Module;

    /// The places of the registers `%r1` and up of a kernel with this body, in the order in which the text first writes them.
    fn places(body: &str) -> Vec<Reg> {
        let text = format!(
            ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k()\n{{\n\
             .reg .pred %p<3>;\n.reg .b32 %r<9>;\n{body}\nret;\n}}\n"
        );
        let module = Module::parse(&text).expect("it is PTX");
        let mut places = Vec::new();
        for inst in &mut module.kernel("k").expect("it is there").code.clone() {
            visit(&mut inst.op, &mut |access, place, reg| {
                if access == Access::Write && matches!(place, Place::R32(_)) {
                    places.push(*reg);
                }
            });
        }
        places
    }

    #[test]
    fn values_that_follow_one_another_share_a_place() {
        let places = places(
            "mov.u32 %r1, %tid.x;\nadd.u32 %r2, %r1, 1;\nadd.u32 %r3, %r2, 1;\nadd.u32 %r4, %r3, 1;",
        );
        assert_eq!((places[0], places[1]), (places[2], places[3]));
        assert_ne!(places[0], places[1]);
    }

    #[test]
    fn what_a_loop_needs_again_keeps_its_place() {
        let places = places(
            "mov.u32 %r1, %tid.x;\nmov.u32 %r2, %tid.y;\nL:\nadd.u32 %r3, %r2, %r1;\nadd.u32 %r4, %r3, 1;\nmov.u32 %r2, %r4;\n\
             setp.lt.u32 %p1, %r2, 10;\n@%p1 bra L;",
        );
        let [r1, r2, r3, r4, again] = places[..] else {
            panic!("five writes: {places:?}");
        };
        assert_eq!(r2, again);
        // In the last lines of the loop only its next turn needs the first.
        assert!(![r2, r3, r4].contains(&r1), "{places:?}");
    }

    #[test]
    fn a_write_that_may_not_happen_keeps_the_value_before_it() {
        let places = places(
            "mov.u32 %r1, %tid.x;\nmov.u32 %r2, %tid.y;\nsetp.lt.u32 %p1, %r1, 4;\nL:\n@%p1 mov.u32 %r1, %r2;\nadd.u32 %r3, %r1, 1;\n\
             add.u32 %r4, %r3, 1;\nsetp.lt.u32 %p2, %r4, 10;\n@%p2 bra L;",
        );
        assert_eq!(places[0], places[2]);
        // The next turn may read what the turn before left.
        assert!(!places[3..].contains(&places[0]), "{places:?}");
    }
}
