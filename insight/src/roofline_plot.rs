//! The roofline as a picture: attainable rate over FLOPs a byte, both axes logarithmic.

use std::collections::{BTreeMap, BTreeSet};

use plotters::prelude::*;

use super::COLOURS;
use super::cost::{Algorithm, Pass};
use super::gpu_spec::GpuSpec;
use super::results::Point;
use super::roofline::Row;
use ferroflash::DType;

/// Width and height, pixels.
const SIZE: (u32, u32) = (960, 640);
/// FLOPs a byte, from the left to the right edge.
const INTENSITIES: std::ops::Range<f64> = 1.0..20_000.0;
/// TFLOP/s between the highest rate and the upper edge, as a factor.
const HEADROOM: f64 = 2.0;
const TEXT: (&str, u32) = ("sans-serif", 14);
const GREY: RGBColor = RGBColor(110, 110, 110);
/// Both axes: FLOP/byte, TFLOP/s.
type Plane = Cartesian2d<LogCoord<f64>, LogCoord<f64>>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Plane>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// An SVG with the roof of `gpu`, the forward passes of `rows` under it as crosses, and what was measured as dots.
pub fn draw(gpu: &GpuSpec, dtype: DType, rows: &[Row], points: &[Point]) -> String {
    let mut svg = String::new();
    let rows: Vec<_> = rows
        .iter()
        .filter(|row| row.pass == Pass::Forward)
        .collect();
    try_draw(&mut svg, gpu, dtype, &rows, points).expect("writing to a string does not fail");
    svg
}

fn try_draw(
    svg: &mut String,
    gpu: &GpuSpec,
    dtype: DType,
    rows: &[&Row],
    points: &[Point],
) -> Drawn {
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let peak = gpu.peak_flops(dtype) / 1e12;
    let lowest = gpu.bandwidth / 1e12;
    let measured = if gpu.measured { ", measured roof" } else { "" };
    let caption = format!(
        "Forward attention on {}, {}{measured}",
        super::printable(&gpu.name),
        dtype.name()
    );
    let mut chart = ChartBuilder::on(&area)
        .caption(caption, ("sans-serif", 20))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(
            INTENSITIES.log_scale(),
            (lowest..peak * HEADROOM).log_scale(),
        )?;
    chart
        .configure_mesh()
        .x_desc("FLOP / byte of device memory")
        .y_desc("TFLOP/s")
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| rounded(*y))
        .label_style(TEXT)
        .light_line_style(RGBColor(240, 240, 240))
        .bold_line_style(RGBColor(220, 220, 220))
        .draw()?;
    draw_roof(&mut chart, gpu, dtype)?;
    draw_exponentials(&mut chart, gpu, peak, rows)?;
    draw_rows(&mut chart, rows)?;
    let drawn = |point: &&Point| rows.iter().any(|row| row.head_dim == point.head_dim as u64);
    draw_points(&mut chart, points.iter().filter(drawn))?;
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE)
        .border_style(GREY)
        .label_font(TEXT)
        .draw()?;
    area.present()?;
    Ok(())
}

/// Bandwidth times intensity up to the ridge, then the peak rate.
fn draw_roof(chart: &mut Chart, gpu: &GpuSpec, dtype: DType) -> Drawn {
    let (peak, ridge) = (gpu.peak_flops(dtype) / 1e12, gpu.ridge(dtype));
    let slope = gpu.bandwidth / 1e12;
    let roof = [
        (INTENSITIES.start, INTENSITIES.start * slope),
        (ridge, peak),
        (INTENSITIES.end, peak),
    ];
    chart.draw_series(LineSeries::new(roof, BLACK.stroke_width(2)))?;
    chart.draw_series([
        label(
            format!("{:.0} GB/s", gpu.bandwidth / 1e9),
            1.5,
            6.0 * slope,
            BLACK,
        ),
        label(
            format!("{} TFLOP/s", rounded(peak)),
            2_500.0,
            peak * 1.25,
            BLACK,
        ),
        label(
            format!("ridge {ridge:.0}"),
            ridge * 0.72,
            peak * 1.25,
            BLACK,
        ),
    ])?;
    Ok(())
}

/// A fused kernel computes one exponential per `4·head_dim` FLOPs: where that is slower than the products, it lowers
/// the roof.
fn draw_exponentials(chart: &mut Chart, gpu: &GpuSpec, peak: f64, rows: &[&Row]) -> Drawn {
    let mut head_dims: Vec<_> = rows.iter().map(|row| row.head_dim).collect();
    head_dims.sort_unstable();
    head_dims.dedup();
    for head_dim in head_dims {
        let rate = 4.0 * head_dim as f64 * gpu.exps / 1e12;
        if rate < peak {
            let ends = [(rate * 1e12 / gpu.bandwidth, rate), (INTENSITIES.end, rate)];
            chart.draw_series(DashedLineSeries::new(ends, 6, 4, GREY.stroke_width(1)))?;
            let text = format!("exponentials, d {head_dim}");
            chart.draw_series([label(text, 1_300.0, rate * 0.92, GREY)])?;
        }
    }
    Ok(())
}

/// Every algorithm in a colour of its own.
fn draw_rows(chart: &mut Chart, rows: &[&Row]) -> Drawn {
    for (algorithm, colour) in Algorithm::ALL.into_iter().zip(COLOURS) {
        let of_algorithm = rows.iter().filter(|row| row.algorithm == algorithm);
        let places = of_algorithm.map(|row| (row.intensity, row.attainable_flops / 1e12));
        let cross = move |place| Cross::new(place, 6, colour.stroke_width(3));
        let series = chart.draw_series(places.map(cross))?;
        series
            .label(algorithm.name())
            .legend(move |(x, y)| Cross::new((x + 10, y), 5, colour.stroke_width(3)));
    }
    Ok(())
}

/// Colours of measured points; algorithms have others.
const DOTS: [RGBColor; 6] = [
    RGBColor(0, 0, 0),
    RGBColor(153, 79, 0),
    RGBColor(93, 58, 155),
    RGBColor(64, 176, 166),
    RGBColor(220, 50, 32),
    RGBColor(140, 140, 140),
];

/// Every participant of a benchmark in a colour of its own, the larger the larger head_dim is.
fn draw_points<'a>(chart: &mut Chart, points: impl Iterator<Item = &'a Point>) -> Drawn {
    let mut who: Vec<&str> = Vec::new();
    let mut series: BTreeMap<(usize, usize), Vec<(f64, f64)>> = BTreeMap::new();
    for point in points {
        let known = who.iter().position(|name| *name == point.who);
        let participant = known.unwrap_or_else(|| {
            who.push(&point.who);
            who.len() - 1
        });
        let places = series.entry((participant, point.head_dim)).or_default();
        places.push((point.intensity, point.flops / 1e12));
    }
    let head_dims: BTreeSet<_> = series.keys().map(|(_, head_dim)| *head_dim).collect();
    for ((participant, head_dim), places) in series {
        let colour = DOTS[participant % DOTS.len()];
        let smaller = head_dims.iter().filter(|dim| **dim < head_dim).count();
        let radius = 3 + 2 * smaller as i32;
        // Where colours begin again, dots are hollow.
        let style = match participant / DOTS.len() {
            0 => colour.filled(),
            _ => colour.stroke_width(2),
        };
        let dot = move |place| Circle::new(place, radius, style);
        let series = chart.draw_series(places.into_iter().map(dot))?;
        series
            .label(format!(
                "{}, d {head_dim}, measured",
                super::printable(who[participant])
            ))
            .legend(move |(x, y)| Circle::new((x + 10, y), radius, style));
    }
    Ok(())
}

/// 989, 19.5, 10.
fn rounded(tflops: f64) -> String {
    let decimals = usize::from(tflops < 100.0);
    let text = format!("{tflops:.decimals$}");
    text.trim_end_matches(".0").to_owned()
}

fn label(text: String, x: f64, y: f64, colour: RGBColor) -> Text<'static, (f64, f64), String> {
    Text::new(text, (x, y), TEXT.into_font().color(&colour))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Workload;
    use crate::roofline;

    #[test]
    fn the_picture_holds_the_roof_and_every_series() {
        let gpu: GpuSpec = "b200".parse().unwrap();
        let work = Workload::new(1, 4096, 64, DType::F16).unwrap();
        let rows = roofline::rows(&work, &gpu).unwrap();
        let measured = |head_dim| Point {
            who: "somebody <fast>".to_owned(),
            head_dim,
            intensity: 1_000.0,
            flops: 5e14,
        };
        let svg = draw(&gpu, DType::F16, &rows, &[measured(64), measured(128)]);
        let document = roxmltree::Document::parse(&svg).expect("it is XML");
        let texts: Vec<_> = document
            .descendants()
            .filter_map(|node| node.text())
            .collect();
        let holds = |what: &str| texts.iter().any(|text| text.trim() == what);
        for what in [
            "8000 GB/s",
            "2250 TFLOP/s",
            "ridge 281",
            "exponentials, d 64",
        ] {
            assert!(holds(what), "{what} in {texts:?}");
        }
        assert!(
            Algorithm::ALL
                .iter()
                .all(|algorithm| holds(algorithm.name()))
        );
        assert!(holds("somebody <fast>, d 64, measured"));
        let dots = document
            .descendants()
            .filter(|node| node.has_tag_name("circle"));
        assert!(holds("Forward attention on b200, f16"));
        // One in the plane, of the head_dim that is drawn, and one in the legend.
        assert_eq!(dots.count(), 2);
        let gpu = GpuSpec {
            measured: true,
            ..gpu
        };
        let svg = draw(&gpu, DType::F16, &rows, &[]);
        assert!(svg.contains("Forward attention on b200, f16, measured roof"));
    }
}
