//! Statements → a flat instruction list: scopes, labels, and calls, which are inlined.

use super::builder::Builder;
use super::scope::{Class, Scope, Symbol};
use super::{DecodeError, malformed, unsupported};
use crate::error::ParseError;
use crate::ir::{Inst, Op, Pred};
use crate::ptx::ast::{self, Operand, Stmt};

/// Deepest chain of inlined calls.
const MAX_CALL_DEPTH: usize = 24;

/// Most instructions a kernel may have after inlining.
const MAX_INSTRUCTIONS: usize = 1 << 21;

impl<'m, 'a> Builder<'m, 'a> {
    /// Decodes the statements of the innermost scope.
    pub(super) fn statements(&mut self, body: &'m [Stmt<'a>]) -> Result<(), ParseError> {
        for stmt in body {
            match stmt {
                Stmt::Label(name, line) => {
                    let label = self.new_label();
                    if self.scope().labels.insert(name, label).is_some() {
                        return Err(ParseError::new(*line, format!("label `{name}` twice")));
                    }
                }
                Stmt::BranchTargets(name, list) => {
                    self.scope().branch_targets.insert(name, list.clone());
                }
                _ => {}
            }
        }
        for stmt in body {
            match stmt {
                Stmt::Reg { ty, name, count } => {
                    // A 128-bit register is declared but has no class: its use is unsupported.
                    if let Some(class) = Class::of(*ty) {
                        self.scope().declare(name, class, *count);
                    }
                }
                Stmt::Var(var) => self.declare_variable(var).map_err(|e| e.at(var.line))?,
                Stmt::Label(name, line) => {
                    let label = self.label(name).map_err(|e| e.at(*line))?;
                    self.place_label(label);
                }
                Stmt::BranchTargets(..) => {}
                Stmt::Block(inner) => {
                    self.scopes.push(Scope::default());
                    self.statements(inner)?;
                    self.scopes.pop();
                }
                Stmt::Inst(inst) => self.statement(inst)?,
            }
        }
        Ok(())
    }

    fn statement(&mut self, inst: &ast::Inst<'a>) -> Result<(), ParseError> {
        if self.code.len() >= MAX_INSTRUCTIONS {
            return Err(ParseError::new(
                inst.line,
                format!("kernel exceeds {MAX_INSTRUCTIONS} instructions after inlining"),
            ));
        }
        let guard = match inst.guard {
            None => Pred::TRUE,
            Some(g) => Pred {
                reg: self.pred_name(g.name, false).map_err(|e| e.at(inst.line))?,
                negated: g.negated,
            },
        };
        let mnemonic = inst.opcode.split('.').next().unwrap_or("");
        let result = match mnemonic {
            "call" => match self.call(inst, guard) {
                Ok(()) => return Ok(()),
                Err(CallError::Inner(error)) => return Err(error),
                Err(CallError::Decode(error)) => Err(error),
            },
            "ret" => Ok(self.ret()),
            _ => self.decode(inst),
        };
        let op = match result {
            Ok(op) => op,
            Err(DecodeError::Unsupported(what)) => Op::Unsupported(what.into()),
            Err(malformed) => return Err(malformed.at(inst.line)),
        };
        let line = inst.line;
        self.emit(Inst { op, guard, line }, inst.opcode);
        Ok(())
    }

    /// `ret` leaves the kernel, or jumps behind the inlined body.
    fn ret(&mut self) -> Op {
        match self.label(RETURN) {
            Ok(target) if !self.inlining.is_empty() => Op::Bra { target },
            _ => Op::Exit,
        }
    }

    /// `call{.uni} {(ret),} name {, (args)};` (PTX ISA §9.7.12.4), inlined.
    fn call(&mut self, inst: &ast::Inst<'a>, guard: Pred) -> Result<(), CallError> {
        let (returns, rest): (&[Operand<'a>], _) = match inst.operands.split_first() {
            Some((Operand::List(list), rest)) => (list, rest),
            _ => (&[], &inst.operands[..]),
        };
        let (name, args): (&str, &[Operand<'a>]) = match rest {
            [Operand::Name(name)] => (name, &[]),
            [Operand::Name(name), Operand::List(args)] => (name, args),
            _ => return Err(unsupported("indirect call").into()),
        };
        let Some(function) = self.module.functions.get(name).copied() else {
            return Err(unsupported(format!("call of unknown function `{name}`")).into());
        };
        let Some(body) = &function.body else {
            return Err(if name == "__assertfail" {
                DecodeError::Unsupported("device assertion failed (`__assertfail`)".into()).into()
            } else {
                unsupported(format!("call of external function `{name}`")).into()
            });
        };
        if self.inlining.contains(&function.name) {
            return Err(unsupported(format!("recursive call of `{name}`")).into());
        }
        if self.inlining.len() >= MAX_CALL_DEPTH {
            return Err(unsupported("calls nested too deeply").into());
        }
        if returns.len() != function.returns.len() || args.len() != function.params.len() {
            return Err(malformed(format!("wrong number of arguments for `{name}`")).into());
        }
        let mut scope = Scope {
            root: true,
            ..Scope::default()
        };
        let formals = function.returns.iter().chain(&function.params);
        for (actual, formal) in returns.iter().chain(args).zip(formals) {
            let Operand::Name(actual) = actual else {
                return Err(unsupported("call argument that is not a `.param`").into());
            };
            let Some(symbol @ Symbol::Local(_)) = self.symbol(actual) else {
                return Err(unsupported("call argument that is not a `.param`").into());
            };
            scope.symbols.insert(formal.name, symbol);
        }
        let (skip, end) = (self.new_label(), self.new_label());
        if guard != Pred::TRUE {
            let guard = Pred {
                negated: !guard.negated,
                ..guard
            };
            let op = Op::Bra { target: skip };
            let line = inst.line;
            self.emit(Inst { op, guard, line }, inst.opcode);
        }
        scope.labels.insert(RETURN, end);
        self.scopes.push(scope);
        self.inlining.push(function.name);
        self.statements(body).map_err(CallError::Inner)?;
        self.inlining.pop();
        self.scopes.pop();
        self.place_label(end);
        self.place_label(skip);
        Ok(())
    }
}

/// Label behind an inlined body; no PTX label can be spelled so.
const RETURN: &str = "<return>";

enum CallError {
    Decode(DecodeError),
    /// An error inside the callee, with its own line.
    Inner(ParseError),
}

impl From<DecodeError> for CallError {
    fn from(error: DecodeError) -> Self {
        Self::Decode(error)
    }
}
