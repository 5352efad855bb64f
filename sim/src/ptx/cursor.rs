//! A cursor over tokens with the small expectations every production needs.

use super::lexer::{Spanned, Token};
use crate::error::ParseError;

pub(super) type Parse<T> = Result<T, ParseError>;

pub(super) struct Cursor<'a> {
    tokens: Vec<Spanned<'a>>,
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(tokens: Vec<Spanned<'a>>) -> Self {
        Self { tokens, at: 0 }
    }

    /// Line of the next token, or of the last one at the end.
    pub(super) fn line(&self) -> u32 {
        self.tokens
            .get(self.at)
            .or(self.tokens.last())
            .map_or(1, |s| s.line)
    }

    pub(super) fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).map(|s| s.token)
    }

    pub(super) fn peek_second(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at + 1).map(|s| s.token)
    }

    pub(super) fn next(&mut self) -> Option<Token<'a>> {
        let token = self.peek();
        self.at += usize::from(token.is_some());
        token
    }

    pub(super) fn fail<T>(&self, message: impl Into<String>) -> Parse<T> {
        Err(ParseError::new(self.line(), message))
    }

    pub(super) fn eat(&mut self, punct: u8) -> bool {
        let found = self.peek() == Some(Token::Punct(punct));
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect(&mut self, punct: u8) -> Parse<()> {
        if self.eat(punct) {
            return Ok(());
        }
        self.fail(format!(
            "expected `{}`, found {}",
            punct as char,
            describe(self.peek())
        ))
    }

    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let found = self.peek() == Some(Token::Word(word));
        self.at += usize::from(found);
        found
    }

    pub(super) fn word(&mut self, what: &str) -> Parse<&'a str> {
        match self.peek() {
            Some(Token::Word(w)) => {
                self.at += 1;
                Ok(w)
            }
            other => self.fail(format!("expected {what}, found {}", describe(other))),
        }
    }

    /// A word that is not a directive.
    pub(super) fn name(&mut self, what: &str) -> Parse<&'a str> {
        match self.peek() {
            Some(Token::Word(w)) if !w.starts_with('.') => self.word(what),
            other => self.fail(format!("expected {what}, found {}", describe(other))),
        }
    }

    /// An integer with an optional sign, as 64 bits.
    pub(super) fn int(&mut self) -> Parse<u64> {
        let negative = self.eat(b'-');
        match self.peek() {
            Some(Token::Int(v)) => {
                self.at += 1;
                Ok(if negative { v.wrapping_neg() } else { v })
            }
            other => self.fail(format!("expected an integer, found {}", describe(other))),
        }
    }

    /// An unsigned integer that fits 32 bits.
    pub(super) fn int32(&mut self) -> Parse<u32> {
        let value = self.int()?;
        u32::try_from(value).or_else(|_| self.fail(format!("{value} does not fit 32 bits")))
    }

    /// Skips to just after the next `;` (for directives that carry no meaning here).
    pub(super) fn skip_statement(&mut self) {
        while let Some(token) = self.next() {
            if token == Token::Punct(b';') {
                return;
            }
        }
    }
}

pub(super) fn describe(token: Option<Token<'_>>) -> String {
    match token {
        None => "the end of the text".into(),
        Some(Token::Word(w)) => format!("`{w}`"),
        Some(Token::Int(v)) => format!("`{v}`"),
        Some(Token::F32(_) | Token::F64(_)) => "a floating-point number".into(),
        Some(Token::Str(_)) => "a string".into(),
        Some(Token::Punct(p)) => format!("`{}`", p as char),
    }
}
