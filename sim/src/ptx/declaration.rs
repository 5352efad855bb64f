//! Variable declarations (PTX ISA §5.4).

use super::ast::{Init, Ty, Var, VarSpace};
use super::cursor::{Cursor, Parse, describe};
use super::lexer::Token;
use super::operand;

/// `.space [.align N] [.v2] .type name[N] = init, name2 … ;` with the cursor on the space.
pub(super) fn variables<'a>(p: &mut Cursor<'a>, external: bool) -> Parse<Vec<Var<'a>>> {
    let space = match p.next() {
        Some(Token::Word(".global")) => VarSpace::Global,
        Some(Token::Word(".const")) => VarSpace::Const,
        Some(Token::Word(".shared")) => VarSpace::Shared,
        Some(Token::Word(".local")) => VarSpace::Local,
        Some(Token::Word(".param")) => VarSpace::Param,
        other => return p.fail(format!("expected a state space, found {}", describe(other))),
    };
    let mut vars = vec![declarator(p, space, external)?];
    while p.eat(b',') {
        let first: &Var<'a> = &vars[0];
        let (align, ty) = (first.align, first.ty);
        let line = p.line();
        let name = p.name("a variable name")?;
        vars.push(finish_declarator(
            p, space, external, align, ty, 1, name, line,
        )?);
    }
    p.expect(b';')?;
    Ok(vars)
}

/// `[.align N] [.ptr …] .type name…`, stopping before `,` `)` or `;`.
pub(super) fn declarator<'a>(
    p: &mut Cursor<'a>,
    space: VarSpace,
    external: bool,
) -> Parse<Var<'a>> {
    let line = p.line();
    let (mut align, mut ty, mut lanes) = (None, None, 1);
    while let Some(Token::Word(word)) = p.peek() {
        if !word.starts_with('.') {
            break;
        }
        p.next();
        match word {
            ".align" => {
                // After `.ptr` the alignment is that of the pointee, which nothing here needs.
                let value = p.int()?;
                if !value.is_power_of_two() {
                    return p.fail(format!(".align {value} is not a power of two"));
                }
                if ty.is_none() {
                    align = Some(value);
                }
            }
            ".ptr" => {
                for space in [".global", ".shared", ".const", ".local"] {
                    p.eat_word(space);
                }
            }
            ".v2" => lanes = 2,
            ".v4" => lanes = 4,
            ".attribute" => {
                return p.fail("`.attribute` is not supported");
            }
            _ => match Ty::parse(&word[1..]) {
                Some(t) => ty = Some(t),
                None => return p.fail(format!("unknown variable attribute `{word}`")),
            },
        }
    }
    let Some(ty) = ty else {
        return p.fail("a variable needs a type");
    };
    let name = p.name("a variable name")?;
    let align = align.unwrap_or(ty.bytes() * lanes);
    finish_declarator(p, space, external, align, ty, lanes, name, line)
}

#[expect(clippy::too_many_arguments, reason = "the pieces of one declaration")]
fn finish_declarator<'a>(
    p: &mut Cursor<'a>,
    space: VarSpace,
    external: bool,
    align: u64,
    ty: Ty,
    lanes: u64,
    name: &'a str,
    line: u32,
) -> Parse<Var<'a>> {
    let mut elems = lanes;
    while p.eat(b'[') {
        if p.eat(b']') {
            elems = 0;
        } else {
            elems = elems.saturating_mul(p.int()?);
            p.expect(b']')?;
        }
    }
    let init = if p.eat(b'=') {
        initialiser(p, 0)?
    } else {
        Vec::new()
    };
    if init.len() as u64 > elems {
        return p.fail(format!("`{name}` has more initialisers than elements"));
    }
    Ok(Var {
        space,
        name,
        align,
        ty,
        elems,
        external,
        init,
        line,
    })
}

fn initialiser<'a>(p: &mut Cursor<'a>, depth: usize) -> Parse<Vec<Init<'a>>> {
    if depth > 8 {
        return p.fail("initialiser nested too deeply");
    }
    let mut values = Vec::new();
    if p.eat(b'{') {
        if p.eat(b'}') {
            return Ok(values);
        }
        loop {
            values.extend(initialiser(p, depth + 1)?);
            if p.eat(b'}') {
                return Ok(values);
            }
            p.expect(b',')?;
        }
    }
    match p.peek() {
        Some(Token::F32(bits)) => {
            p.next();
            values.push(Init::Bits(u64::from(bits)));
        }
        Some(Token::F64(bits)) => {
            p.next();
            values.push(Init::Bits(bits));
        }
        Some(Token::Word(mut name)) => {
            p.next();
            if name == "generic" {
                p.expect(b'(')?;
                name = p.name("a variable")?;
                p.expect(b')')?;
            }
            let offset = operand::offset(p)?;
            values.push(Init::Address(name, offset));
        }
        _ => values.push(Init::Bits(p.int()?)),
    }
    Ok(values)
}
