//! Tables in Markdown, padded to be readable in a terminal too.

use std::io::{self, Write};

/// A table whose first column is text and whose others are numbers.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(header: &[&str]) -> Self {
        let header = header.iter().map(|name| (*name).to_owned()).collect();
        Self { rows: vec![header] }
    }

    /// Appends a row, which has as many cells as the header.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let row: Vec<_> = cells.into_iter().collect();
        assert_eq!(row.len(), self.rows[0].len());
        self.rows.push(row);
    }

    /// Prints the table, the first column left-aligned, the others right-aligned.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.rows[0].len()).map(width).collect();
        for (index, row) in self.rows.iter().enumerate() {
            let mut line = format!("| {:<1$} |", row[0], widths[0]);
            for (cell, width) in row.iter().zip(&widths).skip(1) {
                line += &format!(" {cell:>width$} |");
            }
            writeln!(out, "{line}")?;
            if index == 0 {
                let mut rule = format!("|{}|", "-".repeat(widths[0] + 2));
                for width in &widths[1..] {
                    rule += &format!("{}:|", "-".repeat(width + 1));
                }
                writeln!(out, "{rule}")?;
            }
        }
        Ok(())
    }
}

/// An error rounded up to a power of two: its digits depend on the machine's exponential function.
pub fn error_bound(error: f64) -> String {
    if error > 0.0 && error.is_finite() {
        format!("≤ 2^{:.0}", error.log2().ceil())
    } else {
        error.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::error_bound;

    #[test]
    fn errors_are_rounded_up() {
        assert_eq!(error_bound(3e-7), "≤ 2^-21");
        assert_eq!(error_bound(0.25), "≤ 2^-2");
        assert_eq!(error_bound(0.0), "0");
        assert_eq!(error_bound(f64::NAN), "NaN");
    }
}
