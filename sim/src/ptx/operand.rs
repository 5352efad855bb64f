//! Instructions and their operands.

use super::ast::{Guard, Inst, Operand};
use super::cursor::{Cursor, Parse, describe};
use super::lexer::Token;

/// Deepest nesting of `{ }`, `[ ]` and `( )` inside one operand.
const MAX_DEPTH: usize = 4;

/// `[@[!]p] opcode operands ;`
pub(super) fn instruction<'a>(p: &mut Cursor<'a>) -> Parse<Inst<'a>> {
    let guard = if p.eat(b'@') {
        let negated = p.eat(b'!');
        let name = p.name("a predicate")?;
        Some(Guard { name, negated })
    } else {
        None
    };
    let line = p.line();
    let opcode = p.name("an opcode")?;
    let mut operands = Vec::new();
    if !p.eat(b';') {
        loop {
            operands.push(operand(p, 0)?);
            if p.eat(b';') {
                break;
            }
            p.expect(b',')?;
        }
    }
    Ok(Inst {
        guard,
        opcode,
        operands,
        line,
    })
}

/// An optional `+n`, `-n` or `+-n`.
pub(super) fn offset(p: &mut Cursor<'_>) -> Parse<i64> {
    if p.eat(b'+') || p.peek() == Some(Token::Punct(b'-')) {
        return Ok(p.int()? as i64);
    }
    Ok(0)
}

fn list<'a>(p: &mut Cursor<'a>, close: u8, depth: usize) -> Parse<Vec<Operand<'a>>> {
    let mut items = Vec::new();
    if p.eat(close) {
        return Ok(items);
    }
    loop {
        items.push(operand(p, depth + 1)?);
        if p.eat(close) {
            return Ok(items);
        }
        p.expect(b',')?;
    }
}

fn operand<'a>(p: &mut Cursor<'a>, depth: usize) -> Parse<Operand<'a>> {
    if depth > MAX_DEPTH {
        return p.fail("operand nested too deeply");
    }
    match p.peek() {
        Some(Token::Word(name)) if !name.starts_with('.') => {
            p.next();
            if p.eat(b'|') {
                let second = p.name("a predicate")?;
                return Ok(Operand::Pair(name, second));
            }
            Ok(if name == "_" {
                Operand::Sink
            } else {
                Operand::Name(name)
            })
        }
        Some(Token::F32(bits)) => {
            p.next();
            Ok(Operand::F32(bits))
        }
        Some(Token::F64(bits)) => {
            p.next();
            Ok(Operand::F64(bits))
        }
        Some(Token::Int(_)) => Ok(Operand::Int(p.int()?)),
        Some(Token::Punct(b'-')) => {
            p.next();
            match p.peek() {
                Some(Token::F64(bits)) => {
                    p.next();
                    Ok(Operand::F64(bits ^ 1 << 63))
                }
                Some(Token::F32(bits)) => {
                    p.next();
                    Ok(Operand::F32(bits ^ 1 << 31))
                }
                _ => Ok(Operand::Int(p.int()?.wrapping_neg())),
            }
        }
        Some(Token::Punct(b'!')) => {
            p.next();
            Ok(Operand::Not(p.name("a predicate")?))
        }
        Some(Token::Punct(b'{')) => {
            p.next();
            Ok(Operand::Vector(list(p, b'}', depth)?))
        }
        Some(Token::Punct(b'(')) => {
            p.next();
            Ok(Operand::List(list(p, b')', depth)?))
        }
        Some(Token::Punct(b'[')) => {
            p.next();
            let base = operand(p, depth + 1)?;
            let displacement = offset(p)?;
            let rest = if p.eat(b',') {
                list(p, b']', depth)?
            } else {
                p.expect(b']')?;
                Vec::new()
            };
            Ok(Operand::Memory(Box::new(base), displacement, rest))
        }
        other => p.fail(format!("expected an operand, found {}", describe(other))),
    }
}
