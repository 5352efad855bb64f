//! Drawing mutants: seeded, one at a time, each of a line that tests execute.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use kernels_gpu::instances;
use ptx_sim::{Coverage, Module};
use rand::prelude::*;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::operators::{self, Class, Mutation};
use super::statement::{self, Statement};
use crate::coverage::recorded::{self, Test};
use crate::coverage::source::{Place, Source};

/// A kernel in which something is broken.
pub struct Mutant {
    pub kernel: String,
    pub family: &'static str,
    /// Place of the broken instruction in the kernel's code, and its line of PTX.
    pub index: usize,
    pub line: u32,
    pub class: Class,
    pub operator: &'static str,
    /// The statement before and after.
    pub before: String,
    pub after: String,
    /// The source line that it is of.
    pub source: Option<Place>,
    /// The whole text.
    pub text: String,
    /// Where the kernel as it is shipped lies.
    pub whole: PathBuf,
}

/// A kernel whose mutants are drawn.
pub struct Subject {
    pub kernel: String,
    path: PathBuf,
    text: String,
    source: Source,
    /// What tests execute of it.
    coverage: Coverage,
}

impl Subject {
    /// Reads a kernel and what tests executed of it. Kernels that no test launches have no mutants, which is an error.
    pub fn read(kernel: &cuda_builder::Kernel, tests: &[Test]) -> anyhow::Result<Self> {
        let entry = kernel.entry.clone();
        let text = fs::read_to_string(&kernel.ptx).with_context(|| entry.clone())?;
        let module = Module::parse(&text).with_context(|| kernel.ptx.display().to_string())?;
        let instructions = module.kernels().next().map_or(0, |k| k.instructions());
        let coverage = recorded::of_kernel(tests, &entry, instructions)?;
        anyhow::ensure!(!coverage.is_empty(), "no test launches {entry}");
        Ok(Self {
            source: Source::of(&kernel.ptx)?,
            path: kernel.ptx.clone(),
            kernel: entry,
            text,
            coverage,
        })
    }

    /// A mutant of `class`: a way to break chosen among those that occur, then a statement among those it can break.
    /// `None` if nothing of this class is executed.
    pub fn draw(&self, class: Class, random: &mut Xoshiro256PlusPlus) -> Option<Mutant> {
        let module = Module::parse(&self.text).ok()?;
        let statements = statement::of(&self.text, &module);
        let mut ways: BTreeMap<&str, Vec<(&Statement<'_>, Mutation)>> = BTreeMap::new();
        let is_executed = |s: &&Statement<'_>| self.coverage.is_executed(s.index);
        for statement in statements.iter().filter(is_executed) {
            for mutation in operators::of(statement) {
                if mutation.class == class {
                    let of_way = ways.entry(mutation.operator).or_default();
                    of_way.push((statement, mutation));
                }
            }
        }
        let mut ways: Vec<_> = ways.into_values().collect();
        while !ways.is_empty() {
            let way = random.random_range(0..ways.len());
            let which = random.random_range(0..ways[way].len());
            let (statement, mutation) = ways[way].swap_remove(which);
            if ways[way].is_empty() {
                ways.swap_remove(way);
            }
            if let Some(mutant) = self.broken(statement, mutation) {
                return Some(mutant);
            }
        }
        None
    }

    /// The kernel with the mutation; `None` if it is then no PTX that the simulator knows.
    fn broken(&self, statement: &Statement<'_>, mutation: Mutation) -> Option<Mutant> {
        let before = &self.text[statement.span.clone()];
        let mut text = self.text.clone();
        text.replace_range(statement.span.clone(), &mutation.broken);
        let module = Module::parse(&text).ok()?;
        let is_known = module
            .kernels()
            .all(|kernel| kernel.unsupported().is_empty());
        is_known.then(|| Mutant {
            kernel: self.kernel.clone(),
            family: family(&self.kernel),
            index: statement.index,
            line: statement.line,
            class: mutation.class,
            operator: mutation.operator,
            before: before.split_whitespace().collect::<Vec<_>>().join(" "),
            after: mutation.broken,
            source: self.source.line(statement.line).cloned(),
            text,
            whole: self.path.clone(),
        })
    }
}

/// The family of the kernel `entry`, by which results are summed up.
pub fn family(entry: &str) -> &'static str {
    instances::find(entry).map_or("other", |instance| instance.family.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k()\n{\n\
        .reg .pred %p<3>;\n.reg .b32 %r<3>;\nmov.u32 %r1, %tid.x;\nsetp.lt.u32 %p1, %r1, 4;\n\
        @%p1 bra END;\nbar.sync 0;\nEND:\nret;\n}\n";

    fn subject(coverage: &str) -> Subject {
        Subject {
            kernel: "k".to_owned(),
            path: PathBuf::new(),
            text: TEXT.to_owned(),
            source: Source::empty(),
            coverage: coverage.parse().unwrap(),
        }
    }

    #[test]
    fn a_seed_draws_the_same_mutants_each_time() {
        let draw = |seed| {
            let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
            let subject = subject("111111");
            let drawn = (0..8).map(|_| subject.draw(Class::Control, &mut random).unwrap().text);
            drawn.collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert!(draw(1).iter().all(|text| text != TEXT));
    }

    #[test]
    fn only_what_ran_is_broken() {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(0);
        let mutant = subject("111111")
            .draw(Class::Synchronisation, &mut random)
            .unwrap();
        assert_eq!((mutant.line, mutant.before.as_str()), (11, "bar.sync 0;"));
        assert!(!mutant.text.contains("bar.sync"));
        let none = subject("111011").draw(Class::Synchronisation, &mut random);
        assert!(none.is_none());
    }
}
