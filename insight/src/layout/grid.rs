//! A picture before it is drawn: a grid of labelled, coloured cells.

use std::fmt::Write;

/// One cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    pub text: String,
    pub colour: Colour,
}

/// Red, green, blue.
pub type Rgb = (u8, u8, u8);

/// Meaning of a cell's colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// A lane of a warp: one hue per four neighbours, darker from the first to the last.
    Lane(u32),
    /// One of the eight groups of four banks: one hue each.
    BankGroup(u32),
    /// Not accessed, or not there.
    None,
}

impl Colour {
    /// The colour itself: light, so that black text is legible on it.
    pub fn rgb(self) -> Rgb {
        const HUES: u32 = 8;
        match self {
            Self::Lane(lane) => hue(lane / 4 % HUES, 0.90 - 0.07 * f64::from(lane % 4)),
            Self::BankGroup(group) => hue(group % HUES, 0.80),
            Self::None => (255, 255, 255),
        }
    }
}

/// One of eight hues, with a lightness of 0 to 1.
fn hue(index: u32, lightness: f64) -> Rgb {
    const SATURATION: f64 = 0.75;
    let amplitude = SATURATION * lightness.min(1.0 - lightness);
    // The formula of CSS Color Module Level 4, "HSL to RGB".
    let channel = |offset: f64| {
        let k = (offset + f64::from(index) * 1.5) % 12.0;
        let value = lightness - amplitude * (k - 3.0).min(9.0 - k).clamp(-1.0, 1.0);
        (value * 255.0).round() as u8
    };
    (channel(0.0), channel(8.0), channel(4.0))
}

/// Rows of cells with a title, names for the axes, and notes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    pub title: String,
    /// Labels of the rows and of the columns.
    pub axes: (String, String),
    pub rows: Vec<Vec<Cell>>,
    /// Notes, printed below.
    pub notes: Vec<String>,
}

impl Grid {
    /// The grid as text, cells coloured if `colours`.
    pub fn text(&self, colours: bool) -> String {
        let cells = self.rows.iter().flatten();
        let width = cells
            .map(|cell| cell.text.chars().count())
            .max()
            .unwrap_or(0);
        let columns = self.rows.first().map_or(0, Vec::len);
        let width = width.max(columns.saturating_sub(1).to_string().len());
        let margin = self.rows.len().saturating_sub(1).to_string().len();

        let mut text = format!("{}\n\n", self.title);
        let (row_axis, column_axis) = &self.axes;
        let _ = writeln!(text, "rows: {row_axis}, columns: {column_axis}");
        let _ = write!(text, "{:margin$}", "");
        for column in 0..columns {
            let _ = write!(text, " {column:^width$}");
        }
        // Only a row of cells may end in blanks that carry a colour.
        text.truncate(text.trim_end().len());
        text.push('\n');
        for (index, row) in self.rows.iter().enumerate() {
            let mut line = format!("{index:>margin$}");
            for cell in row {
                line.push(' ');
                line += &paint(&format!("{:^width$}", cell.text), cell.colour, colours);
            }
            let _ = writeln!(text, "{}", line.trim_end());
        }
        if !self.notes.is_empty() {
            text.push('\n');
        }
        for note in &self.notes {
            let _ = writeln!(text, "{note}");
        }
        text
    }
}

/// `text` on `colour`, by ECMA-48's "select graphic rendition" with 24-bit colours.
fn paint(text: &str, colour: Colour, colours: bool) -> String {
    match colour {
        Colour::None => text.to_owned(),
        _ if !colours => text.to_owned(),
        colour => {
            let (red, green, blue) = colour.rgb();
            format!("\x1b[30;48;2;{red};{green};{blue}m{text}\x1b[0m")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid {
        let cell = |text: &str, lane| Cell {
            text: text.to_owned(),
            colour: Colour::Lane(lane),
        };
        Grid {
            title: "two".to_owned(),
            axes: ("m".to_owned(), "n".to_owned()),
            rows: vec![vec![cell("T0", 0), cell("T31", 31)]],
            notes: vec!["that is all".to_owned()],
        }
    }

    #[test]
    fn text_without_colours() {
        let expected = "two\n\nrows: m, columns: n\n   0   1\n0 T0  T31\n\nthat is all\n";
        assert_eq!(grid().text(false), expected);
    }

    #[test]
    fn colours_only_where_asked() {
        assert!(!grid().text(false).contains('\x1b'));
        assert_eq!(grid().text(true).matches("\x1b[0m").count(), 2);
    }

    #[test]
    fn lanes_have_distinct_light_colours() {
        let mut all: Vec<_> = (0..32).map(|lane| Colour::Lane(lane).rgb()).collect();
        for (red, green, blue) in &all {
            // Relative luminance of WCAG 2, near enough.
            let luminance =
                0.21 * f64::from(*red) + 0.72 * f64::from(*green) + 0.07 * f64::from(*blue);
            assert!(luminance > 120.0);
        }
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 32);
    }
}
