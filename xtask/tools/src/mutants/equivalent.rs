//! Mutants that are known to change nothing a test could see, each with the reason.

use serde::Deserialize;
use xtask::paths;

use super::draw::Mutant;
use crate::json;

/// Mutants that are equivalent for one reason.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Equivalent {
    /// How the instruction is broken; the name of an operator.
    operator: String,
    /// How the opcode of the instruction begins.
    opcode: String,
    /// Texts of lines of Rust, one of which it is of, without the space around them: lines move, and what they say moves with them.
    /// Any line, if they are left out.
    #[serde(default)]
    sources: Vec<String>,
    /// Part of the instruction's text, such as an operand by whose value nothing changes, and what stands around it. Any text, if it is left
    /// out.
    text: Option<String>,
    /// What the kernel's name begins with, one of these; any kernel, if they are left out.
    #[serde(default)]
    kernels: Vec<String>,
    /// What the kernel's name ends with; any kernel, if it is left out.
    kernel_end: Option<String>,
    /// Why nothing can tell.
    #[serde(rename = "because")]
    _because: String,
}

/// Reads the list.
pub fn read() -> anyhow::Result<Vec<Equivalent>> {
    json::read(&paths::root().join("kernels-gpu/equivalent-mutants.json"))
}

impl Equivalent {
    /// Whether `mutant` is one of these.
    pub fn is(&self, mutant: &Mutant) -> bool {
        let opcode = mutant.before.trim_start_matches(|c| c != ' ');
        let opcode = match mutant.before.starts_with('@') {
            true => opcode.trim_start(),
            false => &mutant.before,
        };
        self.operator == mutant.operator
            && opcode.starts_with(&self.opcode)
            && (self.text.as_deref()).is_none_or(|wanted| mutant.before.contains(wanted))
            && (self.kernel_end.as_deref()).is_none_or(|wanted| mutant.kernel.ends_with(wanted))
            && (self.kernels.is_empty()
                || (self.kernels.iter()).any(|wanted| mutant.kernel.starts_with(wanted)))
            && (self.sources.is_empty()
                || source_text(mutant).is_some_and(|text| self.sources.contains(&text)))
    }
}

/// The line of Rust that a mutant is of.
pub fn source_text(mutant: &Mutant) -> Option<String> {
    mutant.source.as_ref()?.text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coverage::source::tests::kernel_lines;

    #[test]
    fn every_entry_names_a_line_that_is_there() {
        let lines = kernel_lines();
        for entry in read().expect("the list") {
            for source in entry.sources {
                assert!(lines.contains(&source), "no kernel has the line `{source}`");
            }
        }
    }
}
