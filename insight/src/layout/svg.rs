//! Drawing a [`Grid`].

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::grid::{Colour, Grid};

const MARGIN: i32 = 24;
const CELL_HEIGHT: i32 = 24;
/// Width of a character at the size of the text.
const CHARACTER_WIDTH: i32 = 8;
const LINE_HEIGHT: i32 = 20;
const FONT: (&str, i32) = ("monospace", 13);
const LINES: RGBColor = RGBColor(120, 120, 120);

type Drawn = Result<(), Box<dyn std::error::Error>>;

impl Grid {
    /// The grid as an SVG.
    pub fn svg(&self) -> String {
        let mut svg = String::new();
        try_draw(&mut svg, self).expect("writing to a string does not fail");
        svg
    }
}

fn characters(text: &str) -> i32 {
    text.chars().count() as i32
}

fn try_draw(svg: &mut String, grid: &Grid) -> Drawn {
    let columns = grid.rows.first().map_or(0, Vec::len) as i32;
    let widest = grid
        .rows
        .iter()
        .flatten()
        .map(|cell| characters(&cell.text))
        .max();
    let cell_width = (widest.unwrap_or(0) + 1) * CHARACTER_WIDTH;
    let heads = [
        grid.title.clone(),
        format!("rows: {}, columns: {}", grid.axes.0, grid.axes.1),
    ];
    let texts = heads.iter().chain(&grid.notes);
    let longest = texts
        .map(|text| characters(text) * CHARACTER_WIDTH)
        .max()
        .unwrap_or(0);
    let left = MARGIN + 3 * CHARACTER_WIDTH;
    let top = MARGIN + 3 * LINE_HEIGHT + CELL_HEIGHT;
    let bottom = top + grid.rows.len() as i32 * CELL_HEIGHT;
    let width = (left + columns * cell_width).max(longest + MARGIN) + MARGIN;
    let height = bottom + MARGIN + grid.notes.len() as i32 * LINE_HEIGHT;

    let area = SVGBackend::with_string(svg, (width as u32, height as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    let black = FONT.into_font().color(&BLACK);
    for (line, text) in heads.iter().enumerate() {
        let at = (MARGIN, MARGIN + line as i32 * LINE_HEIGHT);
        area.draw(&Text::new(text.as_str(), at, black.clone()))?;
    }
    let centred = black.pos(Pos::new(HPos::Center, VPos::Center));
    for column in 0..columns {
        let at = (
            left + column * cell_width + cell_width / 2,
            top - CELL_HEIGHT / 2,
        );
        area.draw(&Text::new(column.to_string(), at, centred.color(&LINES)))?;
    }
    for (row, cells) in grid.rows.iter().enumerate() {
        let y = top + row as i32 * CELL_HEIGHT;
        let at = (left - 2 * CHARACTER_WIDTH, y + CELL_HEIGHT / 2);
        area.draw(&Text::new(row.to_string(), at, centred.color(&LINES)))?;
        for (column, cell) in cells.iter().enumerate() {
            let x = left + column as i32 * cell_width;
            let corners = [(x, y), (x + cell_width, y + CELL_HEIGHT)];
            if cell.colour != Colour::None {
                let (red, green, blue) = cell.colour.rgb();
                area.draw(&Rectangle::new(
                    corners,
                    RGBColor(red, green, blue).filled(),
                ))?;
            }
            area.draw(&Rectangle::new(corners, LINES))?;
            let at = (x + cell_width / 2, y + CELL_HEIGHT / 2);
            area.draw(&Text::new(cell.text.as_str(), at, centred.clone()))?;
        }
    }
    for (line, note) in grid.notes.iter().enumerate() {
        let at = (MARGIN, bottom + MARGIN / 2 + line as i32 * LINE_HEIGHT);
        area.draw(&Text::new(note.as_str(), at, black.clone()))?;
    }
    area.present()?;
    Ok(())
}
