//! PTX text → tokens, each with the line it stands on.

use crate::error::ParseError;

/// One lexical element of PTX.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Token<'a> {
    /// An identifier, register, directive or dotted opcode: `%r1`, `.reg`, `ld.global.b32`, `$L__BB0_1`.
    Word(&'a str),
    /// An integer literal, as the 64 bits it denotes.
    Int(u64),
    /// `0f` and eight hexadecimal digits: the bits of an f32.
    F32(u32),
    /// `0d` and sixteen hexadecimal digits, or a decimal floating literal: the bits of an f64.
    F64(u64),
    /// A quoted string (debug directives only).
    Str(&'a str),
    /// Any single punctuation byte.
    Punct(u8),
}

/// A token and its 1-based line.
#[derive(Clone, Copy, Debug)]
pub struct Spanned<'a> {
    pub token: Token<'a>,
    pub line: u32,
}

fn is_word_start(b: u8) -> bool {
    b.is_ascii_alphabetic() || matches!(b, b'_' | b'$' | b'%' | b'.')
}

fn is_word_char(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'_' | b'$' | b'%')
}

/// Splits `text` into tokens; comments and white space vanish.
pub fn lex(text: &str) -> Result<Vec<Spanned<'_>>, ParseError> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::with_capacity(text.len() / 5);
    let (mut at, mut line) = (0usize, 1u32);
    while at < bytes.len() {
        let b = bytes[at];
        match b {
            b'\n' => {
                line += 1;
                at += 1;
            }
            b if b.is_ascii_whitespace() => at += 1,
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                while at < bytes.len() && bytes[at] != b'\n' {
                    at += 1;
                }
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let start = line;
                at += 2;
                loop {
                    match bytes.get(at) {
                        None => return Err(ParseError::new(start, "comment is never closed")),
                        Some(b'*') if bytes.get(at + 1) == Some(&b'/') => break,
                        Some(b'\n') => line += 1,
                        Some(_) => {}
                    }
                    at += 1;
                }
                at += 2;
            }
            b'"' => {
                let start = at + 1;
                at = start;
                while at < bytes.len() && bytes[at] != b'"' && bytes[at] != b'\n' {
                    at += 1;
                }
                if bytes.get(at) != Some(&b'"') {
                    return Err(ParseError::new(line, "string is never closed"));
                }
                tokens.push(Spanned {
                    token: Token::Str(&text[start..at]),
                    line,
                });
                at += 1;
            }
            b if b.is_ascii_digit() => {
                let (token, end) = number(text, at, line)?;
                tokens.push(Spanned { token, line });
                at = end;
            }
            b if is_word_start(b) => {
                let end = word_end(bytes, at);
                tokens.push(Spanned {
                    token: Token::Word(&text[at..end]),
                    line,
                });
                at = end;
            }
            b if b.is_ascii_punctuation() => {
                tokens.push(Spanned {
                    token: Token::Punct(b),
                    line,
                });
                at += 1;
            }
            other => {
                return Err(ParseError::new(
                    line,
                    format!("unexpected byte 0x{other:02x}"),
                ));
            }
        }
    }
    Ok(tokens)
}

/// A word runs over dots and `::` that another word character follows, so an opcode is one word and a
/// label's colon is not part of it.
fn word_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    loop {
        match bytes.get(at) {
            Some(&b) if is_word_char(b) => at += 1,
            Some(b'.') if bytes.get(at + 1).is_some_and(|&b| is_word_char(b)) => at += 2,
            Some(b':')
                if bytes.get(at + 1) == Some(&b':')
                    && bytes.get(at + 2).is_some_and(|&b| is_word_char(b)) =>
            {
                at += 3;
            }
            _ => return at,
        }
    }
}

fn number(text: &str, start: usize, line: u32) -> Result<(Token<'_>, usize), ParseError> {
    let bytes = text.as_bytes();
    let mut end = start + 1;
    while bytes.get(end).is_some_and(|&b| is_word_char(b)) {
        end += 1;
    }
    let word = &text[start..end];
    let bad = || ParseError::new(line, format!("bad number `{word}`"));
    let digits = |radix, skip: usize| {
        u64::from_str_radix(word[skip..].trim_end_matches('U'), radix).map_err(|_| bad())
    };
    let token = match word.as_bytes() {
        [b'0', b'f' | b'F', ..] if word.len() == 10 => {
            Token::F32(u32::from_str_radix(&word[2..], 16).map_err(|_| bad())?)
        }
        [b'0', b'd' | b'D', ..] if word.len() == 18 => Token::F64(digits(16, 2)?),
        [b'0', b'x' | b'X', ..] => Token::Int(digits(16, 2)?),
        [b'0', b'b' | b'B', ..] => Token::Int(digits(2, 2)?),
        _ if bytes.get(end) == Some(&b'.')
            && bytes.get(end + 1).is_some_and(u8::is_ascii_digit) =>
        {
            end += 1;
            while bytes.get(end).is_some_and(u8::is_ascii_alphanumeric)
                || (matches!(bytes.get(end), Some(b'+' | b'-'))
                    && matches!(bytes[end - 1], b'e' | b'E'))
            {
                end += 1;
            }
            let value: f64 = text[start..end].parse().map_err(|_| bad())?;
            return Ok((Token::F64(value.to_bits()), end));
        }
        [b'0', rest, ..] if rest.is_ascii_digit() => Token::Int(digits(8, 1)?),
        _ => Token::Int(digits(10, 0)?),
    };
    Ok((token, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<Token<'_>> {
        lex(text).unwrap().into_iter().map(|s| s.token).collect()
    }

    #[test]
    fn an_opcode_is_one_word_and_a_label_loses_its_colon() {
        assert_eq!(
            words("W: mbarrier.try_wait.parity.shared::cta.b64 P, [%r1+-8];")[..3],
            [
                Token::Word("W"),
                Token::Punct(b':'),
                Token::Word("mbarrier.try_wait.parity.shared::cta.b64")
            ]
        );
    }

    #[test]
    fn literals() {
        assert_eq!(
            words("0f3F800000 0x1F 017 0b101 12U 1.5 0d3FF0000000000000"),
            [
                Token::F32(0x3f80_0000),
                Token::Int(31),
                Token::Int(15),
                Token::Int(5),
                Token::Int(12),
                Token::F64(1.5f64.to_bits()),
                Token::F64(1f64.to_bits())
            ]
        );
    }

    #[test]
    fn lines_are_counted_through_comments() {
        let t = lex("a // x\n/* \n\n */ b").unwrap();
        assert_eq!((t[0].line, t[1].line), (1, 4));
        assert!(lex("/* open").is_err());
    }
}
