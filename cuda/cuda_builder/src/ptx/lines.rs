//! Source lines of instructions: what rustc writes into PTX for a debugger, taken out of the text that is shipped.
//!
//! The profile compiles with line tables, which change no instruction and double the text. [`annotate`] turns them into a
//! comment behind each instruction, which the other passes leave alone, and [`separate`] takes the comments out again, so
//! that lines of the finished text and lines of the source stay together.

use std::collections::HashMap;
use std::fmt::Write as _;

/// Paths by the numbers that `.file` gives them.
#[derive(Debug, Default)]
pub struct Files<'a>(HashMap<&'a str, &'a str>);

/// Start of the comment that carries `FILE:LINE:COLUMN`.
const MARKER: &str = "\t//@";

/// Labels that only debugging sections refer to.
const DEBUG_LABELS: [&str; 4] = ["$L__tmp", "$L__func_begin", "$L__func_end", "$L__sec_end"];

/// The text without directives and sections for a debugger (PTX ISA, "Debugging Directives"), each instruction that came
/// from a line of source followed by a comment that says which; and the files that the comments speak of.
pub fn annotate(raw: &str) -> (String, Files<'_>) {
    let mut text = String::with_capacity(raw.len());
    let mut files = HashMap::new();
    let mut place: Option<[&str; 3]> = None;
    let mut lines = raw.lines();
    while let Some(line) = lines.next() {
        let mut words = line.split_whitespace();
        match words.next().unwrap_or_default() {
            ".loc" => place = next_three(words.map(|word| word.trim_end_matches(','))),
            ".file" => {
                if let (Some(number), Some((_, path))) = (words.next(), line.split_once('"')) {
                    files.insert(number, path.split('"').next().unwrap_or_default());
                }
            }
            ".section" => {
                if !line.contains('}') {
                    lines.by_ref().find(|line| line.trim() == "}");
                }
            }
            ".target" => {
                text.push_str(line.trim_end_matches(", debug"));
                text.push('\n');
            }
            label if DEBUG_LABELS.iter().any(|debug| label.starts_with(debug)) => {}
            first => {
                text.push_str(line);
                if first == "}" {
                    place = None;
                }
                let is_instruction = first.starts_with(|c: char| c.is_ascii_alphabetic())
                    || first.starts_with('@')
                    || first == "{" && line.contains(';');
                if let (true, Some([file, line, column])) = (is_instruction, place) {
                    write!(text, "{MARKER}{file}:{line}:{column}").expect("a string takes it");
                }
                text.push('\n');
            }
        }
    }
    (text, Files(files))
}

fn next_three<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<[&'a str; 3]> {
    Some([words.next()?, words.next()?, words.next()?])
}

/// The text without the comments of [`annotate`], and a table of them: lines `PTX_LINE PATH:LINE:COLUMN`, one where the
/// source line changes.
pub fn separate(annotated: &str, files: &Files<'_>) -> (String, String) {
    let mut text = String::with_capacity(annotated.len());
    let mut table = String::new();
    let mut last = "";
    for (number, line) in (1..).zip(annotated.lines()) {
        let (line, place) = line.rsplit_once(MARKER).unwrap_or((line, last));
        text.push_str(line);
        text.push('\n');
        let path = |file| files.0.get(file).copied().unwrap_or("unknown");
        if let (true, Some((file, rest))) = (place != last, place.split_once(':')) {
            writeln!(table, "{number} {}:{rest}", path(file)).expect("a string takes it");
        }
        last = place;
    }
    (text, table)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = ".version 7.0\n.target sm_80\n\
        .visible .entry k(\n\t.param .u64 p\n)\n{\n\t.reg .b32 \t%r<3>;\n\
        \tmov.u32 \t%r1, 1;\n\t// begin inline asm\n\t{ .reg .b32 tmp; mov.b32 tmp, %r1; }\n\t// end inline asm\n\
        $L__BB0_1:\n\t@%p1 bra \t$L__BB0_1;\n\tret;\n}\n";

    /// As rustc writes it with `debug = \"line-tables-only\"`.
    const RAW: &str = ".version 7.0\n.target sm_80, debug\n\
        .visible .entry k(\n\t.param .u64 p\n)\n{\n$L__func_begin0:\n\t.reg .b32 \t%r<3>;\n\
        \t.loc\t1 38 0\n\tmov.u32 \t%r1, 1;\n$L__tmp0:\n\t.loc\t2 52 14, function_name $L__info_string1, inlined_at 1 38 4\n\
        \t// begin inline asm\n\t{ .reg .b32 tmp; mov.b32 tmp, %r1; }\n\t// end inline asm\n\
        $L__BB0_1:\n\t@%p1 bra \t$L__BB0_1;\n\t.loc\t1 40 2\n\tret;\n$L__tmp1:\n$L__func_end0:\n}\n\
        \t.file\t1 \"/src/kernel.rs\"\n\t.file\t2 \"/src/other file.rs\"\n\
        \t.section\t.debug_abbrev\n\t{\n.b8 1\n$L__sec_end0:\n\t}\n\t.section\t.debug_macinfo\t{\t}\n";

    #[test]
    fn debugging_leaves_no_trace_but_the_table() {
        let (annotated, files) = annotate(RAW);
        let (text, table) = separate(&annotated, &files);
        assert_eq!(text, PLAIN);
        assert_eq!(
            table,
            "8 /src/kernel.rs:38:0\n10 /src/other file.rs:52:14\n14 /src/kernel.rs:40:2\n"
        );
    }

    #[test]
    fn plain_text_stays_as_it_is() {
        let (annotated, files) = annotate(PLAIN);
        assert_eq!(annotated, PLAIN);
        assert_eq!(separate(PLAIN, &files), (PLAIN.to_owned(), String::new()));
    }
}
