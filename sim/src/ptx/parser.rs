//! Tokens → [`Module`]: module-level directives, functions and statements (PTX ISA §4–§5, §11).

use super::ast::*;
use super::cursor::{Cursor, Parse, describe};
use super::declaration::{declarator, variables};
use super::lexer::{Token, lex};
use super::operand;
use crate::error::ParseError;

/// Deepest nesting of `{ }` scopes.
const MAX_NESTING: usize = 64;

/// Parses a whole PTX text.
pub fn parse(text: &str) -> Result<Module<'_>, ParseError> {
    let mut p = Cursor::new(lex(text)?);
    let mut module = Module::default();
    while let Some(token) = p.peek() {
        match token {
            Token::Punct(b';') => {
                p.next();
            }
            Token::Word(".version") => {
                p.next();
                p.next();
            }
            Token::Word(".target") => {
                p.next();
                module.target = p.name("a target architecture")?;
                while p.eat(b',') {
                    p.word("a target option")?;
                }
            }
            Token::Word(".address_size") => {
                p.next();
                if p.int()? != 64 {
                    return p.fail("only `.address_size 64` is supported");
                }
            }
            Token::Word(".file") => skip_file(&mut p),
            Token::Word(".section") => skip_section(&mut p)?,
            Token::Word(".pragma" | ".alias") => p.skip_statement(),
            Token::Word(_) => item(&mut p, &mut module)?,
            other => {
                return p.fail(format!(
                    "expected a directive, found {}",
                    describe(Some(other))
                ));
            }
        }
    }
    Ok(module)
}

fn skip_file(p: &mut Cursor<'_>) {
    let line = p.line();
    while p.peek().is_some() && p.line() == line {
        p.next();
    }
}

fn skip_section(p: &mut Cursor<'_>) -> Parse<()> {
    while let Some(token) = p.next() {
        if token == Token::Punct(b'{') {
            while let Some(token) = p.next() {
                if token == Token::Punct(b'}') {
                    return Ok(());
                }
            }
        }
    }
    p.fail("`.section` is never closed")
}

/// A function or variable, with its linkage directives.
fn item<'a>(p: &mut Cursor<'a>, module: &mut Module<'a>) -> Parse<()> {
    let mut external = false;
    loop {
        match p.peek() {
            Some(Token::Word(".extern")) => external = true,
            Some(Token::Word(".visible" | ".weak" | ".common")) => {}
            _ => break,
        }
        p.next();
    }
    match p.peek() {
        Some(Token::Word(".entry")) => {
            p.next();
            module.functions.push(function(p, true)?);
        }
        Some(Token::Word(".func")) => {
            p.next();
            module.functions.push(function(p, false)?);
        }
        Some(Token::Word(".global" | ".const" | ".shared")) => {
            let vars = variables(p, external)?;
            module.variables.extend(vars);
        }
        other => {
            return p.fail(format!(
                "unknown module-level directive {}",
                describe(other)
            ));
        }
    }
    Ok(())
}

fn function<'a>(p: &mut Cursor<'a>, entry: bool) -> Parse<Function<'a>> {
    let line = p.line();
    // `.func .attribute(...)` and `.func .noreturn name` put directives before the name.
    while p.eat_word(".noreturn") {}
    let returns = if !entry && p.peek() == Some(Token::Punct(b'(')) {
        parameters(p)?
    } else {
        Vec::new()
    };
    let name = p.name("a function name")?;
    let params = if p.peek() == Some(Token::Punct(b'(')) {
        parameters(p)?
    } else {
        Vec::new()
    };
    let directives = entry_directives(p)?;
    let body = if p.eat(b'{') {
        Some(block(p, 0)?)
    } else {
        p.expect(b';')?;
        None
    };
    Ok(Function {
        name,
        entry,
        returns,
        params,
        directives,
        body,
        line,
    })
}

fn parameters<'a>(p: &mut Cursor<'a>) -> Parse<Vec<Var<'a>>> {
    p.expect(b'(')?;
    let mut params = Vec::new();
    if p.eat(b')') {
        return Ok(params);
    }
    loop {
        if !p.eat_word(".param") && !p.eat_word(".reg") {
            return p.fail(format!("expected `.param`, found {}", describe(p.peek())));
        }
        params.push(declarator(p, VarSpace::Param, false)?);
        if p.eat(b')') {
            return Ok(params);
        }
        p.expect(b',')?;
    }
}

fn triple(p: &mut Cursor<'_>) -> Parse<[u32; 3]> {
    let mut dims = [1; 3];
    for (i, dim) in dims.iter_mut().enumerate() {
        if i > 0 && !p.eat(b',') {
            break;
        }
        *dim = p.int32()?;
    }
    Ok(dims)
}

fn entry_directives(p: &mut Cursor<'_>) -> Parse<EntryDirectives> {
    let mut d = EntryDirectives::default();
    while let Some(Token::Word(word)) = p.peek() {
        if !word.starts_with('.') {
            break;
        }
        p.next();
        match word {
            ".maxntid" => d.maxntid = Some(triple(p)?),
            ".reqntid" => d.reqntid = Some(triple(p)?),
            ".minnctapersm" => d.minnctapersm = Some(p.int32()?),
            ".maxnctapersm" => {
                p.int32()?;
            }
            ".maxnreg" => d.maxnreg = Some(p.int32()?),
            ".explicitcluster" => d.explicit_cluster = true,
            ".reqnctapercluster" => d.reqnctapercluster = Some(triple(p)?),
            ".maxclusterrank" => {
                p.int32()?;
            }
            ".noreturn" => {}
            ".pragma" => p.skip_statement(),
            _ => return p.fail(format!("unknown performance directive `{word}`")),
        }
    }
    Ok(d)
}

/// Statements up to and including the closing brace.
fn block<'a>(p: &mut Cursor<'a>, depth: usize) -> Parse<Vec<Stmt<'a>>> {
    if depth > MAX_NESTING {
        return p.fail(format!("scopes nested deeper than {MAX_NESTING}"));
    }
    let mut stmts = Vec::new();
    loop {
        match p.peek() {
            None => return p.fail("a function body is never closed"),
            Some(Token::Punct(b'}')) => {
                p.next();
                return Ok(stmts);
            }
            Some(Token::Punct(b'{')) => {
                p.next();
                stmts.push(Stmt::Block(block(p, depth + 1)?));
            }
            Some(Token::Punct(b';')) => {
                p.next();
            }
            Some(Token::Word(".reg")) => registers(p, &mut stmts)?,
            Some(Token::Word(".shared" | ".local" | ".param" | ".global" | ".const")) => {
                stmts.extend(variables(p, false)?.into_iter().map(Stmt::Var));
            }
            Some(Token::Word(".loc")) => skip_file(p),
            Some(Token::Word(".pragma")) => p.skip_statement(),
            Some(Token::Word(w)) if !w.starts_with('.') => {
                if p.peek_second() == Some(Token::Punct(b':')) {
                    let line = p.line();
                    p.next();
                    p.next();
                    stmts.push(label(p, w, line)?);
                } else {
                    stmts.push(Stmt::Inst(operand::instruction(p)?));
                }
            }
            Some(Token::Punct(b'@')) => stmts.push(Stmt::Inst(operand::instruction(p)?)),
            other => return p.fail(format!("expected a statement, found {}", describe(other))),
        }
    }
}

/// Parses the statement after `name:`.
fn label<'a>(p: &mut Cursor<'a>, name: &'a str, line: u32) -> Parse<Stmt<'a>> {
    if p.eat_word(".branchtargets") {
        let mut targets = Vec::new();
        loop {
            targets.push(p.name("a label")?);
            if !p.eat(b',') {
                break;
            }
        }
        p.expect(b';')?;
        return Ok(Stmt::BranchTargets(name, targets));
    }
    if p.eat_word(".callprototype") {
        p.skip_statement();
        return Ok(Stmt::Block(Vec::new()));
    }
    Ok(Stmt::Label(name, line))
}

fn registers<'a>(p: &mut Cursor<'a>, stmts: &mut Vec<Stmt<'a>>) -> Parse<()> {
    p.next();
    let word = p.word("a register type")?;
    let Some(ty) = word.strip_prefix('.').and_then(Ty::parse) else {
        return p.fail(format!("unknown register type `{word}`"));
    };
    loop {
        let name = p.name("a register name")?;
        let count = if p.eat(b'<') {
            let n = p.int()?;
            p.expect(b'>')?;
            Some(n)
        } else {
            None
        };
        stmts.push(Stmt::Reg { ty, name, count });
        if !p.eat(b',') {
            break;
        }
    }
    p.expect(b';')
}
