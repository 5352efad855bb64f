//! A sweep as a picture: TFLOP/s over sequence length, a line each kernel or peer.

use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// One line: who, and its (sequence length, TFLOP/s), by length.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    pub who: String,
    pub points: Vec<(usize, f64)>,
}

/// Width, and height without the legend, pixels.
const SIZE: (u32, u32) = (960, 560);
const TEXT: (&str, u32) = ("sans-serif", 14);
/// Height of a line of the legend, width of its stroke, and distance from the left edge.
const LEGEND_LINE: u32 = 22;
const LEGEND_STROKE: i32 = 24;
const LEGEND_LEFT: i32 = 80;
/// Above the highest point, as a factor.
const HEADROOM: f64 = 1.1;

/// An SVG of `lines`.
pub fn draw(title: &str, lines: &[Line]) -> String {
    let mut svg = String::new();
    try_draw(&mut svg, title, lines).expect("writing to a string does not fail");
    svg
}

fn try_draw(
    svg: &mut String,
    title: &str,
    lines: &[Line],
) -> Result<(), Box<dyn std::error::Error>> {
    // Below the plot, where it covers no line.
    let legend_height = LEGEND_LINE * (lines.len() as u32 + 1);
    let size = (SIZE.0, SIZE.1 + legend_height);
    let whole = SVGBackend::with_string(svg, size).into_drawing_area();
    whole.fill(&WHITE)?;
    let (area, legend) = whole.split_vertically(SIZE.1);
    let all = || lines.iter().flat_map(|line| &line.points);
    let shortest = all().map(|point| point.0).min().unwrap_or(1) as f64;
    let longest = all().map(|point| point.0).max().unwrap_or(1) as f64;
    let highest = all().map(|point| point.1).fold(0.0, f64::max);
    let mut chart = ChartBuilder::on(&area)
        .caption(super::printable(title), ("sans-serif", 18))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(
            // A single length still needs a range.
            (shortest * 0.9..longest * 1.1).log_scale().base(2.0),
            0.0..(highest * HEADROOM).max(f64::MIN_POSITIVE),
        )?;
    chart
        .configure_mesh()
        .x_desc("sequence length")
        .y_desc("TFLOP/s")
        .x_label_formatter(&|x| format!("{x:.0}"))
        .label_style(TEXT)
        .light_line_style(WHITE)
        .draw()?;
    for (index, line) in lines.iter().enumerate() {
        let places: Vec<_> = line
            .points
            .iter()
            .map(|&(seq, tflops)| (seq as f64, tflops))
            .collect();
        let Stroke { colour, dash, gap } = Stroke::of(index);
        let stroke = colour.stroke_width(2);
        let dots = places.iter().map(|place| Circle::new(*place, 4, stroke));
        chart.draw_series(dots)?;
        chart.draw_series([DashedPathElement::new(places, dash, gap, stroke)])?;
        let y = (index as u32 * LEGEND_LINE + LEGEND_LINE / 2) as i32;
        let ends = [(LEGEND_LEFT, y), (LEGEND_LEFT + LEGEND_STROKE, y)];
        legend.draw(&DashedPathElement::new(ends, dash, gap, stroke))?;
        let right = LEGEND_LEFT + LEGEND_STROKE;
        let style = TEXT.into_font().color(&BLACK);
        let style = style.pos(Pos::new(HPos::Left, VPos::Center));
        legend.draw(&Text::new(
            super::printable(&line.who),
            (right + 8, y),
            style,
        ))?;
    }
    whole.present()?;
    Ok(())
}

/// How a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stroke {
    colour: RGBColor,
    /// Length of a dash and of the gap behind it, pixels.
    dash: i32,
    gap: i32,
}

impl Stroke {
    /// That of line `index`: where colours begin again, dashes are shorter.
    fn of(index: usize) -> Self {
        let colours = super::COLOURS;
        let colour = colours[index % colours.len()];
        let (dash, gap) = match index / colours.len() {
            0 => (WHOLE, 0),
            round => (LONGEST_DASH / round as i32, 4),
        };
        Self { colour, dash, gap }
    }
}

/// More than any line is long.
const WHOLE: i32 = 1 << 20;
/// Where lines have dashes at all. A sixth of it is a dot, which nobody looks for in a legend of that many lines.
const LONGEST_DASH: i32 = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_each_and_a_legend() {
        let line = |who: &str, points: &[(usize, f64)]| Line {
            who: who.to_owned(),
            points: points.to_vec(),
        };
        let lines = [
            line("simt", &[(512, 10.0), (1024, 20.0)]),
            line("mma", &[(512, 100.0)]),
        ];
        let svg = draw("forward & f32", &lines);
        let document = roxmltree::Document::parse(&svg).expect("it is XML");
        let texts: Vec<_> = document
            .descendants()
            .filter_map(|node| node.text())
            .map(str::trim)
            .collect();
        for what in ["forward & f32", "simt", "mma", "TFLOP/s", "sequence length"] {
            assert!(texts.contains(&what), "{what} in {texts:?}");
        }
    }
    /// Colours come again, strokes do not; and the picture shows it.
    #[test]
    fn no_two_lines_look_alike() {
        let strokes: Vec<_> = (0..30).map(Stroke::of).collect();
        for (index, stroke) in strokes.iter().enumerate() {
            assert!(!strokes[..index].contains(stroke), "{index}: {stroke:?}");
        }
        let line = Line {
            who: "somebody".to_owned(),
            points: vec![(512, 10.0), (1024, 20.0)],
        };
        let svg = draw("many", &vec![line; super::super::COLOURS.len() + 1]);
        let document = roxmltree::Document::parse(&svg).expect("it is XML");
        let of_colour = |colour: RGBColor| {
            let RGBColor(red, green, blue) = colour;
            let colour = format!("#{red:02X}{green:02X}{blue:02X}");
            let drawn = document.descendants();
            drawn
                .filter(|node| node.has_tag_name("polyline") || node.has_tag_name("line"))
                .filter(|node| node.attribute("stroke") == Some(&colour))
                .count()
        };
        let [first, second, ..] = super::super::COLOURS;
        assert_eq!(of_colour(second), 2, "a line, and its stroke in the legend");
        assert!(of_colour(first) > 20, "the same, and dashes");
    }

    #[test]
    fn names_may_hold_what_xml_cannot() {
        let line = Line {
            who: "a\u{1}b\u{fffe}c".to_owned(),
            points: vec![(512, 10.0)],
        };
        let svg = draw("\u{0}\u{1b}[31m", &[line]);
        let document = roxmltree::Document::parse(&svg).expect("it is XML");
        let texts = document.descendants().filter_map(|node| node.text());
        let texts: Vec<_> = texts.map(str::trim).collect();
        for what in ["a\u{fffd}b\u{fffd}c", "\u{fffd}\u{fffd}[31m"] {
            assert!(texts.contains(&what), "{what} in {texts:?}");
        }
    }
}
