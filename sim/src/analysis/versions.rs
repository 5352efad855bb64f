//! Versions of registers, one per write: compilers reuse a register for unrelated values.

use std::collections::HashMap;

use crate::ir::cfg::Graph;
use crate::ir::{Inst, Operands, PRED_TRUE, Place};

/// Number of the write that a register's value comes from. Version 0 is the initial value, and the only version of a
/// register that is written once.
pub type Version = u32;

/// Versions of the registers that are written more than once.
pub struct Versions {
    reads: HashMap<(usize, Place), Vec<Version>>,
    writes: HashMap<(usize, Place), Version>,
}

/// A set of writes, by number.
type Set = Vec<u64>;

fn insert(set: &mut Set, number: usize) {
    set[number / 64] |= 1 << (number % 64);
}

fn contains(set: &Set, number: usize) -> bool {
    set[number / 64] >> (number % 64) & 1 == 1
}

/// The writes of registers that are written more than once; the initial value counts as a write.
struct Writes {
    /// Numbers of a register's writes, the initial value first.
    of: HashMap<Place, Vec<usize>>,
    /// Number of the write by an instruction.
    at: HashMap<(usize, Place), usize>,
    count: usize,
}

impl Writes {
    fn new(operands: &[Operands]) -> Self {
        let mut times: HashMap<Place, u32> = HashMap::new();
        for place in operands.iter().flat_map(|o| &o.writes) {
            *times.entry(*place).or_default() += 1;
        }
        let (mut of, mut at, mut count) = (HashMap::new(), HashMap::new(), 0);
        for (pc, operands) in operands.iter().enumerate() {
            for &place in operands.writes.iter().filter(|place| times[place] > 1) {
                let numbers: &mut Vec<usize> = of.entry(place).or_default();
                if numbers.is_empty() {
                    numbers.push(count);
                    count += 1;
                }
                numbers.push(count);
                at.insert((pc, place), count);
                count += 1;
            }
        }
        Self { of, at, count }
    }

    fn empty(&self) -> Set {
        vec![0; self.count.div_ceil(64)]
    }

    /// Updates `reaching` from the writes that reach instruction `pc` to those that reach the next.
    fn pass(&self, reaching: &mut Set, pc: usize, inst: &Inst, operands: &Operands) {
        for &place in &operands.writes {
            let Some(&number) = self.at.get(&(pc, place)) else {
                continue;
            };
            if inst.guard.reg == PRED_TRUE {
                for &other in &self.of[&place] {
                    reaching[other / 64] &= !(1 << (other % 64));
                }
            }
            insert(reaching, number);
        }
    }

    /// Writes that reach the start of each block.
    fn reaching(&self, code: &[Inst], operands: &[Operands], graph: &Graph) -> Vec<Set> {
        let blocks = graph.starts.len();
        let mut entries = vec![self.empty(); blocks];
        for numbers in self.of.values() {
            insert(&mut entries[0], numbers[0]);
        }
        let mut waiting: Vec<usize> = (0..blocks).rev().collect();
        while let Some(block) = waiting.pop() {
            let mut reaching = entries[block].clone();
            for pc in graph.instructions(block, code.len()) {
                self.pass(&mut reaching, pc, &code[pc], &operands[pc]);
            }
            for &next in &graph.succs[block] {
                let entry = &mut entries[next as usize];
                let mut news = false;
                for (known, more) in entry.iter_mut().zip(&reaching) {
                    news |= *more & !*known != 0;
                    *known |= more;
                }
                if news {
                    waiting.push(next as usize);
                }
            }
        }
        entries
    }
}

impl Versions {
    pub fn new(code: &[Inst], operands: &[Operands], graph: &Graph) -> Self {
        let writes = Writes::new(operands);
        // The initial value of every register is version 0.
        let start = |place: Place, number: usize| writes.of[&place][0] == number;
        let version = |place, number| {
            if start(place, number) {
                0
            } else {
                number as Version + 1
            }
        };
        let mut reads = HashMap::new();
        for (block, entry) in writes
            .reaching(code, operands, graph)
            .into_iter()
            .enumerate()
        {
            let mut reaching = entry;
            for pc in graph.instructions(block, code.len()) {
                let guard = Place::Pred(code[pc].guard.reg);
                for &place in operands[pc].reads.iter().chain([&guard]) {
                    if let Some(numbers) = writes.of.get(&place) {
                        let found = numbers.iter().filter(|&&n| contains(&reaching, n));
                        let versions = found.map(|&n| version(place, n)).collect();
                        reads.insert((pc, place), versions);
                    }
                }
                writes.pass(&mut reaching, pc, &code[pc], &operands[pc]);
            }
        }
        let written = writes.at.iter();
        Self {
            reads,
            writes: written
                .map(|(&(pc, place), &number)| ((pc, place), version(place, number)))
                .collect(),
        }
    }

    /// The versions that instruction `pc` may find in `place`.
    pub fn read(&self, pc: usize, place: Place) -> &[Version] {
        self.reads.get(&(pc, place)).map_or(&[0], Vec::as_slice)
    }

    /// The version that instruction `pc` writes in `place`.
    pub fn written(&self, pc: usize, place: Place) -> Version {
        self.writes.get(&(pc, place)).copied().unwrap_or_default()
    }
}
