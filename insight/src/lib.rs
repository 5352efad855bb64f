//! Why fused attention is fast: costs counted from the algorithms, the roofline of a GPU, and the algorithms
//! themselves as small functions, from the textbook softmax to FlashAttention-2.
//!
//! The commands `roofline` and `ladder` print what is here, and `docs/how-it-works.md` is written around
//! their output.

pub mod cost;
pub mod gpu_spec;
pub mod ladder;
pub mod layout;
mod modules;
pub mod probe;
pub mod results;
pub mod roofline;
pub mod roofline_plot;
pub mod sweep_plot;
pub mod timing;

use plotters::style::RGBColor;

/// `text` as XML can hold it: control characters and the two that are no characters are replaced.
fn printable(text: &str) -> String {
    let unprintable = |c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}');
    text.replace(unprintable, "\u{fffd}")
}

/// Colours that people with colour blindness can tell apart (Okabe and Ito 2008).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
];
