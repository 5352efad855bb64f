//! Which instructions of a kernel ran, and which of their guards were seen to hold and to fail.

use std::fmt;
use std::str::FromStr;

use super::Counters;

/// Instructions of a kernel that ran, by their place in [`KernelInfo::code`](crate::KernelInfo::code).
///
/// It is written as text by `Display` and read back by `FromStr`, so that the coverage of several processes can be united.
///
/// ```
/// use ptx_sim::{LaunchConfig, Memory, Module, launch};
///
/// let ptx = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k() {
///     .reg .pred %p<2>; .reg .b32 %r<2>;
///     mov.u32 %r1, %tid.x;
///     setp.lt.u32 %p1, %r1, 32;
///     @%p1 bra END;
///     mov.u32 %r1, 0;
///     END: ret;\n}";
/// let module = Module::parse(ptx)?;
/// let config = LaunchConfig::new([1, 1, 1], [32, 1, 1]);
/// let report = launch(&module, "k", &config, &[], &Memory::new())?;
/// let coverage = report.coverage.expect("counted by default");
/// // The branch was taken and never passed: the instruction behind it did not run.
/// assert!(coverage.is_executed(2) && !coverage.is_skipped(2));
/// assert!(!coverage.is_executed(3) && coverage.is_executed(4));
/// assert_eq!(coverage.to_string().parse(), Ok(coverage));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    instructions: Vec<Seen>,
}

/// What was seen of an instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    /// Some thread executed it.
    executed: bool,
    /// Some thread reached it with a guard that did not hold.
    skipped: bool,
}

impl Seen {
    /// As a digit of the text form.
    fn digit(self) -> char {
        char::from(b'0' + u8::from(self.executed) + 2 * u8::from(self.skipped))
    }

    fn from_digit(digit: char) -> Option<Self> {
        let bits = digit.to_digit(4)?;
        Some(Self {
            executed: bits & 1 != 0,
            skipped: bits & 2 != 0,
        })
    }
}

impl Coverage {
    pub(crate) fn new(counters: &Counters) -> Self {
        let seen = counters.by_pc.iter().map(|count| Seen {
            executed: count.lanes > 0,
            skipped: count.skipped_lanes != 0,
        });
        Self {
            instructions: seen.collect(),
        }
    }

    /// Number of the kernel's instructions, as in [`KernelInfo::code`](crate::KernelInfo::code); 0 of a coverage that
    /// speaks of no kernel yet.
    pub fn len(&self) -> usize {
        self.instructions.len()
    }

    /// Whether it speaks of no kernel yet.
    pub fn is_empty(&self) -> bool {
        self.instructions.is_empty()
    }

    /// Whether some thread executed instruction `index`; of a branch, whether one took it.
    pub fn is_executed(&self, index: usize) -> bool {
        self.instructions.get(index).is_some_and(|i| i.executed)
    }

    /// Whether some thread reached instruction `index` and its guard did not hold; of a branch, whether one passed it.
    pub fn is_skipped(&self, index: usize) -> bool {
        self.instructions.get(index).is_some_and(|i| i.skipped)
    }

    /// Adds what another launch of the same kernel covered.
    ///
    /// # Panics
    /// If it is of a kernel with another number of instructions.
    pub fn add(&mut self, other: &Self) {
        if self.is_empty() {
            self.instructions.clone_from(&other.instructions);
            return;
        }
        assert_eq!(self.len(), other.len(), "coverage of one kernel");
        for (mine, other) in self.instructions.iter_mut().zip(&other.instructions) {
            mine.executed |= other.executed;
            mine.skipped |= other.skipped;
        }
    }
}

/// A digit an instruction: 1 if it was executed, 2 if it was skipped, 3 for both.
impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits: String = self.instructions.iter().map(|seen| seen.digit()).collect();
        f.write_str(&digits)
    }
}

/// The text is not what `Coverage` is written as.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` in a coverage, which has the digits 0 to 3")]
pub struct CoverageError(char);

impl FromStr for Coverage {
    type Err = CoverageError;

    fn from_str(text: &str) -> Result<Self, CoverageError> {
        let seen = text
            .chars()
            .map(|digit| Seen::from_digit(digit).ok_or(CoverageError(digit)));
        Ok(Self {
            instructions: seen.collect::<Result<_, _>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Coverage {
        text.parse().expect("digits")
    }

    #[test]
    fn launches_are_united() {
        let mut all = Coverage::default();
        all.add(&of("0102"));
        all.add(&of("0112"));
        all.add(&of("1001"));
        assert_eq!(all.to_string(), "1113");
        let executed: Vec<_> = (0..5).map(|i| all.is_executed(i)).collect();
        assert_eq!(executed, [true, true, true, true, false]);
        let skipped: Vec<_> = (0..5).map(|i| all.is_skipped(i)).collect();
        assert_eq!(skipped, [false, false, false, true, false]);
    }

    #[test]
    fn other_text_is_refused() {
        assert_eq!("014".parse::<Coverage>(), Err(CoverageError('4')));
        assert_eq!("0 1".parse::<Coverage>(), Err(CoverageError(' ')));
    }

    #[test]
    #[should_panic(expected = "coverage of one kernel")]
    fn another_kernel_is_refused() {
        of("01").add(&of("011"));
    }
}
