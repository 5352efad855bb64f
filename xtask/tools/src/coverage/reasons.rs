//! Instructions that no test can execute, or none is worth executing, each with the reason.

use serde::Deserialize;
use xtask::paths;

use crate::json;

/// Why what a line of Rust became is not executed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// Text of the line, without the space around it: lines move, and what they say moves with them.
    source: String,
    /// What the kernel's name begins with; any kernel, if it is left out.
    kernel: Option<String>,
    pub because: String,
}

/// Reads the list.
pub fn read() -> anyhow::Result<Vec<Reason>> {
    json::read(&paths::root().join("kernels-gpu/unexecuted.json"))
}

impl Reason {
    /// Whether it is that of an instruction of `kernel`, of a line that says `text`.
    pub fn explains(&self, kernel: &str, text: &str) -> bool {
        let of_kernel = self.kernel.as_deref();
        of_kernel.is_none_or(|begin| kernel.starts_with(begin)) && text == self.source
    }

    /// The line, and of which kernels.
    pub fn subject(&self) -> String {
        let kernels = self.kernel.as_ref();
        let kernels = kernels.map_or(String::new(), |begin| format!(" of {begin}*"));
        format!("`{}`{kernels}", self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coverage::source::tests::kernel_lines;

    #[test]
    fn a_reason_is_of_a_line_and_of_kernels() {
        let reason = |kernel: Option<&str>| Reason {
            source: "a + b".to_owned(),
            kernel: kernel.map(str::to_owned),
            because: String::new(),
        };
        assert!(reason(None).explains("fa_x", "a + b"));
        assert!(!reason(None).explains("fa_x", "a"));
        assert!(reason(Some("fa_")).explains("fa_x", "a + b"));
        assert!(!reason(Some("fa_y")).explains("fa_x", "a + b"));
        assert_eq!(reason(Some("fa_y")).subject(), "`a + b` of fa_y*");
    }

    #[test]
    fn every_reason_is_of_one_line() {
        let lines = kernel_lines();
        for reason in read().expect("the list") {
            let count = lines.iter().filter(|line| **line == reason.source).count();
            assert_eq!(count, 1, "lines of kernels that say {}", reason.subject());
        }
    }
}
