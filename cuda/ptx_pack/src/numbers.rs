//! Numbers in names, as distances.
//!
//! A name is `%`, its class of registers and a number, or `$L__BB`, a number, `_` and a number: each of these has a kind. Where a number is
//! mentioned first in its module, it is written `!` if it follows the one first mentioned before it, and `^` its distance from
//! that number `^` if it does not. Later it is written as the count of numbers first mentioned since. Everything else stays.

use std::fmt::{self, Write as _};
use std::io;

use crate::wrong;

/// A module begins with it, and kinds begin anew.
const MODULE: &str = ".version ";
const LABEL: &str = "$L__BB";
/// The kinds of both numbers of a label; registers' are their classes.
const FUNCTION: &str = "$";
const BLOCK: &str = "_";

/// A number in the text to come.
struct Number<'a> {
    /// What its name begins with, and what stands before that.
    before: &'a str,
    kind: &'a str,
    /// The number, as it is written, and all that follows.
    rest: &'a str,
}

impl<'a> Number<'a> {
    /// The next one in `text`.
    fn find(text: &'a str) -> Option<Self> {
        let mut from = 0;
        while let Some(at) = text[from..].find(['%', '$']) {
            let (begin, name) = (from + at, &text[from + at..]);
            let (kind, length) = match name.starts_with(LABEL) {
                true => (FUNCTION, LABEL.len()),
                false => {
                    let letters = name[1..].bytes().take_while(u8::is_ascii_lowercase).count();
                    (&name[1..1 + letters], 1 + letters)
                }
            };
            let rest = &name[length..];
            if !kind.is_empty()
                && rest.starts_with(|next: char| "!^".contains(next) || next.is_ascii_digit())
            {
                let before = &text[..begin + length];
                return Some(Self { before, kind, rest });
            }
            from = begin + 1;
        }
        None
    }
}

/// The numbers of a kind, in the order in which they are first mentioned.
#[derive(Default)]
struct Mentioned {
    numbers: Vec<u32>,
    /// Of a number that [`write_distance`](Self::write_distance) wrote, how many were mentioned with it; 0 of others.
    places: Vec<u32>,
}

impl Mentioned {
    fn last(&self) -> i64 {
        self.numbers.last().copied().map_or(0, i64::from)
    }

    /// Writes `number` as it is mentioned once more.
    fn write_distance(&mut self, number: u32, to: &mut String) -> fmt::Result {
        let index = number as usize;
        if self.places.len() <= index {
            self.places.resize(index + 1, 0);
        }
        let place = self.places[index] as usize;
        if place > 0 {
            return write!(to, "{}", self.numbers.len() - place);
        }
        let step = i64::from(number) - self.last();
        self.numbers.push(number);
        self.places[index] = self.numbers.len() as u32;
        match step {
            1 => to.write_char('!'),
            step => write!(to, "^{step}^"),
        }
    }

    /// The number that is written at the beginning of `rest`, and what follows.
    fn restore<'a>(&mut self, rest: &'a str) -> Option<(u32, &'a str)> {
        let (step, rest) = if let Some(rest) = rest.strip_prefix('!') {
            (1, rest)
        } else if let Some(rest) = rest.strip_prefix('^') {
            let (step, rest) = rest.split_once('^')?;
            (step.parse().ok()?, rest)
        } else {
            let (since, rest) = digits(rest)?;
            let index = self.numbers.len().checked_sub(1 + since as usize)?;
            return Some((self.numbers[index], rest));
        };
        let number = u32::try_from(self.last().checked_add(step)?).ok()?;
        (number <= LARGEST).then(|| self.numbers.push(number))?;
        Some((number, rest))
    }
}

/// No kernel has as many registers of a class: what names a larger number is no PTX of a compiler's.
const LARGEST: u32 = 1 << 24;

/// What has been mentioned of each kind.
#[derive(Default)]
struct Kinds(Vec<(String, Mentioned)>);

impl Kinds {
    fn of(&mut self, kind: &str) -> &mut Mentioned {
        let known = self.0.iter().position(|(name, _)| name == kind);
        let index = known.unwrap_or_else(|| {
            self.0.push((kind.to_owned(), Mentioned::default()));
            self.0.len() - 1
        });
        &mut self.0[index].1
    }
}

/// `text` with each number as `write` has it, which takes what is known of its kind, the text from it on and where to write it, and
/// returns what follows.
fn rewritten<'a>(
    text: &'a str,
    bytes: usize,
    mut write: impl FnMut(&mut Mentioned, &'a str, &mut String) -> Option<&'a str>,
) -> io::Result<String> {
    let mut written = String::with_capacity(bytes);
    let mut kinds = Kinds::default();
    for line in text.split_inclusive('\n') {
        if line.starts_with(MODULE) {
            kinds = Kinds::default();
        }
        let mut rest = line;
        while let Some(number) = Number::find(rest) {
            let cannot_be = || wrong(format!("a name that cannot be: {line}"));
            written.push_str(number.before);
            rest = write(kinds.of(number.kind), number.rest, &mut written).ok_or_else(cannot_be)?;
            if number.kind == FUNCTION
                && let Some(block) = rest.strip_prefix('_')
            {
                written.push('_');
                rest = write(kinds.of(BLOCK), block, &mut written).ok_or_else(cannot_be)?;
            }
        }
        written.push_str(rest);
    }
    Ok(written)
}

/// `text` with distances in place of numbers.
///
/// # Errors
/// If a number is not one that a compiler writes.
#[cfg_attr(not(feature = "compress"), allow(dead_code))] // tests ask for both directions
pub fn distances(text: &str) -> io::Result<String> {
    rewritten(text, text.len(), |mentioned, rest, to| {
        let (number, after) = digits(rest)?;
        // Zeros before a number would be lost.
        let is_plain = rest.len() - after.len() == 1 || !rest.starts_with('0');
        if !is_plain || number > LARGEST {
            return None;
        }
        mentioned.write_distance(number, to).ok()?;
        Some(after)
    })
}

/// The text of `bytes` bytes whose `distances` is `packed`.
///
/// # Errors
/// If it is of none.
pub fn restore(packed: &str, bytes: usize) -> io::Result<String> {
    rewritten(packed, bytes, |mentioned, rest, to| {
        let (number, after) = mentioned.restore(rest)?;
        write!(to, "{number}").ok()?;
        Some(after)
    })
}

/// The number at the beginning of `text`, and what follows.
fn digits(text: &str) -> Option<(u32, &str)> {
    let length = text.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, rest) = text.split_at(length);
    Some((digits.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn there_and_back(text: &str) -> String {
        let packed = distances(text).unwrap();
        assert_eq!(restore(&packed, text.len()).unwrap(), text);
        packed
    }

    #[test]
    fn names_are_distances() {
        let text = ".version 8.1\n\
            .reg .b32 %r<9>;\n\
            $L__BB60_1:\n\
            @!%p1 bra $L__BB60_3;\n\
            add.s32 %r1, %tid.x, %clock64;\n\
            st.shared [%r1+-8], {%r2, %r5, _};\n\
            mov.b32 %r3, %r1; ld.global.b64 %rd1, [%rd1-16]; bra $L__BB60_1;\n";
        let expected = ".version 8.1\n\
            .reg .b32 %r<9>;\n\
            $L__BB^60^_!:\n\
            @!%p! bra $L__BB0_^2^;\n\
            add.s32 %r!, %tid.x, %clock^64^;\n\
            st.shared [%r0+-8], {%r!, %r^3^, _};\n\
            mov.b32 %r^-2^, %r3; ld.global.b64 %rd!, [%rd0-16]; bra $L__BB0_1;\n";
        assert_eq!(there_and_back(text), expected);
    }

    /// What comes before an instruction changes none of what stands for it, and modules know nothing of each other.
    #[test]
    fn the_same_code_reads_the_same() {
        let code = |first: u32| {
            let [a, b, c] = [0, 1, 2].map(|next| first + next);
            format!("add.f32 %f{b}, %f{a}, %f{a};\nmul.f32 %f{c}, %f{b}, %f{a};\n")
        };
        let packed = there_and_back(&(code(1) + &code(4)));
        assert_eq!(packed[..packed.len() / 2], packed[packed.len() / 2..]);
        let module = format!(".version 7.0\n{}", code(7));
        let packed = there_and_back(&module.repeat(2));
        assert_eq!(packed[..packed.len() / 2], packed[packed.len() / 2..]);
    }

    #[test]
    fn names_of_no_compiler_are_refused() {
        for text in [
            "%r01",
            "%r!",
            "%rd^1^",
            "%r99999999",
            "%r99999999999",
            "$L__BB0_007",
        ] {
            assert!(distances(text).is_err(), "{text}");
        }
        for packed in [
            "%r0",
            "%r!%r1",
            "%r^",
            "%r^-1^",
            "%r^x^",
            "%r^99999999^",
            "$L__BB!_",
        ] {
            assert!(restore(packed, 0).is_err(), "{packed}");
        }
    }

    proptest! {
        /// Whatever stands between names.
        #[test]
        fn any_text_comes_back(
            parts in proptest::collection::vec(
                prop_oneof![
                    "(%(r|rd|p|f)|\\$L__BB[0-9]_)(0|[1-9][0-9]{0,3})",
                    "[ ,;_%$.a-zä\n-]{0,4}",
                    Just("\n.version 8.1\n".to_owned()),
                ],
                0..60,
            ),
        ) {
            let text = parts.concat();
            // Digits that follow a name belong to it, and may make it none.
            if let Ok(packed) = distances(&text) {
                prop_assert_eq!(restore(&packed, text.len()).unwrap(), text);
            }
        }
    }
}
