//! Syntax tree → [`Kernel`]: names become registers, opcodes become operations.
//!
//! Anything not known exactly (an opcode, a modifier, an operand form) becomes
//! [`Op::Unsupported`], which is an error when a thread reaches it; malformed text is an error at once.

mod barrier;
mod builder;
mod bulk;
mod compare;
mod control;
mod convert;
mod flatten;
mod float;
mod integer;
mod memory;
mod mods;
mod moves;
mod operands;
mod scope;
mod tensor;
mod warp;

use std::collections::HashMap;

pub(crate) use builder::SHARED_BASE;
use builder::{Builder, ModuleItems, UNPLACED, align_up};
use mods::Mods;
use scope::Scope;

use crate::error::ParseError;
use crate::ir::{Kernel, Op, Parameter, cfg};
use crate::ptx::ast::{Function, Inst, Module, VarSpace};

/// Why an instruction was not decoded.
#[derive(Debug)]
pub(super) enum DecodeError {
    /// The text is wrong: a parse error.
    Malformed(String),
    /// Legal, perhaps, but not known here: an error only when executed.
    Unsupported(String),
}

pub(super) type Decode<T> = Result<T, DecodeError>;

pub(super) fn malformed(message: impl Into<String>) -> DecodeError {
    DecodeError::Malformed(message.into())
}

pub(super) fn unsupported(what: impl Into<String>) -> DecodeError {
    DecodeError::Unsupported(what.into())
}

/// Decodes every kernel of a module.
pub(crate) fn kernels(module: &Module<'_>) -> Result<Vec<Kernel>, ParseError> {
    let globals: HashMap<&str, u32> = module
        .variables
        .iter()
        .filter(|v| matches!(v.space, VarSpace::Global | VarSpace::Const))
        .enumerate()
        .map(|(i, v)| (v.name, i as u32))
        .collect();
    let shared: Vec<_> = module
        .variables
        .iter()
        .filter(|v| v.space == VarSpace::Shared)
        .cloned()
        .collect();
    // A definition wins over its forward declaration.
    let mut functions: HashMap<&str, &Function<'_>> = HashMap::new();
    for f in module.functions.iter().filter(|f| !f.entry) {
        let known = functions.entry(f.name).or_insert(f);
        if known.body.is_none() {
            *known = f;
        }
    }
    let items = ModuleItems {
        globals: &globals,
        shared: &shared,
        functions: &functions,
    };
    module
        .functions
        .iter()
        .filter(|f| f.entry && f.body.is_some())
        .map(|f| kernel(f, &items))
        .collect()
}

fn kernel<'m, 'a>(
    function: &'m Function<'a>,
    items: &'m ModuleItems<'m, 'a>,
) -> Result<Kernel, ParseError> {
    let mut b = Builder::new(items);
    b.scopes.push(Scope {
        root: true,
        ..Scope::default()
    });
    let mut params = Vec::new();
    for var in &function.params {
        let offset = b.declare_param(var).map_err(|e| e.at(var.line))?;
        params.push(Parameter {
            name: var.name.to_owned(),
            bytes: var.bytes() as u32,
            align: var.align as u32,
            offset,
        });
    }
    if let Some(body) = &function.body {
        b.statements(body)?;
    }
    b.finish_code(function.line)?;
    let reconverge = cfg::reconvergence_points(&b.code);
    Ok(Kernel {
        name: function.name.to_owned(),
        params,
        param_bytes: b.param_end as u32,
        directives: function.directives.clone(),
        static_shared_bytes: (b.shared_end - u64::from(SHARED_BASE)) as u32,
        dynamic_shared_align: b.dynamic_align.min(1 << 20) as u32,
        local_bytes: align_up(b.local_end, 16) as u32,
        reconverge,
        regs32: b.regs32,
        regs64: b.regs64,
        preds: b.preds,
        presets32: b.presets32,
        presets64: b.presets64,
        opcode_of: b.opcode_of,
        opcodes: b.opcodes,
        code: b.code,
    })
}

impl<'a> Builder<'_, 'a> {
    /// The operation an instruction denotes.
    fn decode(&mut self, inst: &Inst<'a>) -> Decode<Op> {
        let mut mods = Mods::new(inst.opcode);
        let o = &inst.operands;
        let op = match mods.mnemonic {
            "mov" | "cvta" | "isspacep" | "mapa" | "getctarank" => self.moves(&mut mods, o),
            "add" | "sub" | "mul" | "mad" | "div" | "rem" | "min" | "max" | "neg" | "abs"
            | "fma" | "rcp" | "sqrt" | "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh"
            | "copysign" => self.arithmetic(&mut mods, o),
            "and" | "or" | "xor" | "not" | "cnot" | "shl" | "shr" | "shf" | "lop3" | "prmt"
            | "popc" | "clz" | "bfind" | "brev" | "bfe" | "bfi" | "bmsk" | "sad" | "dp4a"
            | "mul24" | "mad24" | "addc" | "subc" => self.integer(&mut mods, o),
            "setp" | "selp" | "testp" => self.compare(&mut mods, o),
            "cvt" => self.convert(&mut mods, o),
            "ld" | "ldu" | "st" | "atom" | "red" | "prefetch" | "prefetchu" => {
                self.memory(&mut mods, o)
            }
            "cp" => self.copies(&mut mods, o),
            "shfl" | "vote" | "redux" | "match" | "activemask" | "elect" => {
                self.warp_wide(&mut mods, o)
            }
            "bar" | "barrier" | "membar" | "fence" | "mbarrier" => self.barriers(&mut mods, o),
            "ldmatrix" | "stmatrix" | "mma" | "wgmma" | "setmaxnreg" => self.tensor(&mut mods, o),
            "bra" | "brx" | "exit" | "trap" | "brkpt" | "nanosleep" | "griddepcontrol" => {
                self.control(&mut mods, o)
            }
            other => Err(unsupported(format!("instruction `{other}`"))),
        }?;
        mods.finish()?;
        Ok(op)
    }

    /// Turns label numbers into instruction indices and ends the code.
    fn finish_code(&mut self, line: u32) -> Result<(), ParseError> {
        let end_line = self.code.last().map_or(line, |i| i.line);
        self.emit(
            crate::ir::Inst {
                op: Op::Exit,
                guard: crate::ir::Pred::TRUE,
                line: end_line,
            },
            "ret",
        );
        let resolve = |label: u32, line: u32, pcs: &[u32]| match pcs[label as usize] {
            UNPLACED => Err(ParseError::new(
                line,
                "branch to a label that is never placed",
            )),
            pc => Ok(pc),
        };
        for inst in &mut self.code {
            match &mut inst.op {
                Op::Bra { target } => *target = resolve(*target, inst.line, &self.label_pc)?,
                Op::BrxIdx { targets, .. } => {
                    for target in targets {
                        *target = resolve(*target, inst.line, &self.label_pc)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Errors unless there are exactly `n` operands.
pub(super) fn want<T>(operands: &[T], n: usize) -> Decode<()> {
    if operands.len() == n {
        return Ok(());
    }
    Err(malformed(format!(
        "expected {n} operands, found {}",
        operands.len()
    )))
}
