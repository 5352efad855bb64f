//! A kernel's figures: the share of its instructions that ran, and of its guards that held and failed.

use anyhow::Context;
use ptx_sim::{Coverage, Module};

/// An instruction of a kernel, and what was seen of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// 1-based line of the PTX text.
    pub number: u32,
    pub is_executed: bool,
    /// Whether it is guarded and only one outcome was seen, though it was reached.
    pub is_one_sided: bool,
}

/// Counts of a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub instructions: u32,
    pub executed: u32,
    /// Of those that did not run, the ones that have a [reason](super::reasons).
    pub explained: u32,
    /// Instructions with a guard, branches that depend on one among them, but for those that only ask a barrier again.
    pub guarded: u32,
    /// Of those, the ones that some thread executed and some skipped.
    pub both_ways: u32,
}

/// The instructions of the only kernel of a PTX module with what `covered` says of them. What is only there because
/// every body ends with a return is left out.
pub fn lines(
    ptx: &str,
    covered: impl FnOnce(usize) -> anyhow::Result<Coverage>,
) -> anyhow::Result<(Vec<Line>, Figures)> {
    let module = Module::parse(ptx)?;
    let kernel = module.kernels().next().context("a module has a kernel")?;
    let coverage = covered(kernel.instructions())?;
    let mut code: Vec<_> = kernel.code().enumerate().collect();
    code.pop();
    let mut figures = Figures::default();
    let mut before = "";
    let lines = code.into_iter().map(|(index, instruction)| {
        let (executed, skipped) = (coverage.is_executed(index), coverage.is_skipped(index));
        let is_guarded = instruction.is_guarded && !asks_again(before, instruction.opcode);
        let is_both = executed && skipped;
        before = instruction.opcode;
        figures.instructions += 1;
        // A guarded instruction that all threads skip was reached, but what it does was not.
        figures.executed += u32::from(executed || skipped && is_branch(instruction.opcode));
        figures.guarded += u32::from(is_guarded);
        figures.both_ways += u32::from(is_guarded && is_both);
        Line {
            number: instruction.line,
            is_executed: executed || skipped && is_branch(instruction.opcode),
            is_one_sided: is_guarded && (executed || skipped) && !is_both,
        }
    });
    Ok((lines.collect(), figures))
}

/// A branch that is never taken ran all the same; its target shows in the figures.
fn is_branch(opcode: &str) -> bool {
    opcode.starts_with("bra") || opcode.starts_with("brx")
}

/// Whether `opcode` is the branch back to the wait before it. Whether a barrier's phase has ended when it is first asked
/// depends on how far blocks on other threads are: a kernel does the same either way, and no two runs take the branch alike.
fn asks_again(before: &str, opcode: &str) -> bool {
    let waits = ["mbarrier.try_wait", "mbarrier.test_wait"];
    is_branch(opcode) && waits.iter().any(|wait| before.starts_with(wait))
}

impl Figures {
    /// Both together.
    pub fn with(&self, other: &Self) -> Self {
        Self {
            instructions: self.instructions + other.instructions,
            executed: self.executed + other.executed,
            explained: self.explained + other.explained,
            guarded: self.guarded + other.guarded,
            both_ways: self.both_ways + other.both_ways,
        }
    }

    /// Per cent of the instructions that ran.
    pub fn executed_percent(&self) -> f64 {
        percent(self.executed, self.instructions)
    }

    /// Per cent that ran of the instructions that have no reason not to.
    pub fn executed_of_rest_percent(&self) -> f64 {
        percent(self.executed, self.instructions - self.explained)
    }

    /// Per cent of the guards of which both outcomes were seen.
    pub fn both_ways_percent(&self) -> f64 {
        percent(self.both_ways, self.guarded)
    }
}

/// Of nothing, everything was seen.
fn percent(part: u32, whole: u32) -> f64 {
    match whole {
        0 => 100.0,
        whole => f64::from(part) * 100.0 / f64::from(whole),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k()\n{\n\
        .reg .pred %p<3>;\n.reg .b32 %r<3>;\nmov.u32 %r1, %tid.x;\nsetp.lt.u32 %p1, %r1, 4;\n\
        @%p1 bra END;\n@%p1 mov.u32 %r1, 3;\nEND:\nret;\n}\n";

    fn of(digits: &str) -> (Vec<Line>, Figures) {
        let seen: Coverage = digits.parse().unwrap();
        lines(PTX, |instructions| {
            assert_eq!(instructions, 6);
            Ok(seen)
        })
        .unwrap()
    }

    #[test]
    fn what_ran_is_counted() {
        let (lines, figures) = of("113310");
        let numbers: Vec<_> = lines.iter().map(|line| line.number).collect();
        assert_eq!(numbers, [8, 9, 10, 11, 13]);
        let wanted = Figures {
            instructions: 5,
            executed: 5,
            explained: 0,
            guarded: 2,
            both_ways: 2,
        };
        assert_eq!(figures, wanted);
        // The branch is never taken, the move always skipped, which is no execution.
        let (lines, figures) = of("112210");
        let executed: Vec<_> = lines.iter().map(|line| line.is_executed).collect();
        assert_eq!(executed, [true, true, true, false, true]);
        assert_eq!((figures.executed, figures.both_ways), (4, 0));
        assert!(lines[2].is_one_sided && lines[3].is_one_sided && !lines[4].is_one_sided);
        assert_eq!(figures.executed_percent(), 80.0);
        let explained = Figures {
            explained: 1,
            ..figures
        };
        assert_eq!(explained.executed_of_rest_percent(), 100.0);
        // Nothing ran.
        let (_, figures) = of("");
        assert_eq!((figures.executed, figures.instructions), (0, 5));
    }

    #[test]
    fn asking_a_barrier_again_is_no_guard() {
        let ptx = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k()\n{\n\
            .reg .pred %p<2>;\n.shared .align 8 .b64 bar;\nWAIT:\n\
            mbarrier.try_wait.parity.shared::cta.b64 %p1, [bar], 0;\n@!%p1 bra WAIT;\n@%p1 bra END;\n\
            END:\nret;\n}\n";
        let of = |digits: &str| {
            let seen: Coverage = digits.parse().unwrap();
            let (lines, figures) = lines(ptx, |_| Ok(seen)).unwrap();
            let one_sided: Vec<_> = lines.iter().map(|line| line.is_one_sided).collect();
            (one_sided, figures)
        };
        let (one_sided, at_once) = of("12110");
        assert_eq!(one_sided, [false, false, true, false]);
        assert_eq!((at_once.executed, at_once.guarded), (4, 1));
        assert_eq!(of("13110"), (one_sided, at_once));
    }
}
