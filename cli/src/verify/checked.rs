//! What `verify` says of a run.

use std::fmt;
use std::io::{self, Write};

/// One kernel's result, compared with the oracle.
pub struct Checked {
    pub kernel: String,
    /// Error over allowed error, for each tensor that there is.
    pub ratios: Vec<Option<f64>>,
    pub quality: Option<f64>,
    pub passed: bool,
    /// The verdict in words, with the places of the worst errors.
    pub detail: String,
}

impl Checked {
    /// Prints it as a row of the table.
    pub fn print(
        &self,
        out: &mut impl Write,
        number: usize,
        spec: &(impl fmt::Display + fmt::Debug),
    ) -> io::Result<()> {
        let quality = in_words(self.quality, 2);
        let outcome = if self.passed { "ok" } else { "WRONG" };
        let ratios: Vec<_> = self
            .ratios
            .iter()
            .map(|ratio| in_words(*ratio, 3))
            .collect();
        let ratios = ratios.join(" | ");
        let kernel = &self.kernel;
        writeln!(
            out,
            "| {number} | {spec} | {kernel} | {ratios} | {quality} | {outcome} |"
        )?;
        if !self.passed {
            writeln!(out, "  {}\n  {spec:?}", self.detail)?;
        }
        Ok(())
    }
}

/// A figure, or a dash where there is none.
fn in_words(figure: Option<f64>, digits: usize) -> String {
    figure.map_or("-".to_owned(), |figure| format!("{figure:.digits$}"))
}
