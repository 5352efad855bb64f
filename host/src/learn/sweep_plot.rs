//! A sweep as a picture: TFLOP/s over sequence length, a line each kernel or peer.

use plotters::prelude::*;

/// One line: who, and its (sequence length, TFLOP/s), by length.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    pub who: String,
    pub points: Vec<(usize, f64)>,
}

const SIZE: (u32, u32) = (960, 600);
const TEXT: (&str, u32) = ("sans-serif", 14);
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
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let all = || lines.iter().flat_map(|line| &line.points);
    let shortest = all().map(|point| point.0).min().unwrap_or(1) as f64;
    let longest = all().map(|point| point.0).max().unwrap_or(1) as f64;
    let highest = all().map(|point| point.1).fold(0.0, f64::max);
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
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
    for (line, colour) in lines.iter().zip(super::COLOURS.into_iter().cycle()) {
        let places = line
            .points
            .iter()
            .map(|&(seq, tflops)| (seq as f64, tflops));
        let stroke = colour.stroke_width(2);
        let series = chart.draw_series(LineSeries::new(places, stroke).point_size(4))?;
        series
            .label(line.who.clone())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], stroke));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE)
        .border_style(BLACK)
        .label_font(TEXT)
        .draw()?;
    area.present()?;
    Ok(())
}

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
}
