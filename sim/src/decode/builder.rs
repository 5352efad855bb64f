//! Collects a kernel while its statements are decoded: code, register files, constants, layout.

use std::collections::HashMap;
use std::sync::Arc;

use super::scope::{Class, Found, Scope, Symbol};
use super::{Decode, DecodeError, malformed};
use crate::error::ParseError;
use crate::ir::kernel::Preset;
use crate::ir::{Inst, Reg};
use crate::ptx::ast::{Function, Var, VarSpace};

/// First byte of a CTA's shared memory: the driver keeps the bytes below (CUDA reserves 1 KB on
/// sm_80 and later), so address 0 is never valid.
pub(crate) const SHARED_BASE: u32 = 1024;

/// Most local memory a thread may have (CUDA programming guide, technical specifications).
const MAX_LOCAL_BYTES: u64 = 512 * 1024;

/// Most parameter bytes of a kernel (PTX ISA §5.1.6.1).
const MAX_PARAM_BYTES: u64 = 32764;

/// Label numbers are resolved to instruction indices at the end.
pub(super) const UNPLACED: u32 = u32::MAX;

pub(super) struct ModuleItems<'m, 'a> {
    pub(super) globals: &'m HashMap<&'a str, u32>,
    pub(super) shared: &'m [Var<'a>],
    pub(super) functions: &'m HashMap<&'a str, &'m Function<'a>>,
}

pub(super) struct Builder<'m, 'a> {
    pub(super) module: &'m ModuleItems<'m, 'a>,
    pub(super) code: Vec<Inst>,
    pub(super) opcode_of: Vec<u32>,
    opcode_index: HashMap<&'a str, u32>,
    pub(super) opcodes: Vec<Arc<str>>,
    pub(super) scopes: Vec<Scope<'a>>,
    pub(super) label_pc: Vec<u32>,
    pub(super) regs32: u32,
    pub(super) regs64: u32,
    pub(super) preds: u32,
    presets: HashMap<(bool, Preset), Reg>,
    pub(super) presets32: Vec<(Reg, Preset)>,
    pub(super) presets64: Vec<(Reg, Preset)>,
    pub(super) shared_end: u64,
    pub(super) dynamic_align: u64,
    module_shared: HashMap<u32, u32>,
    pub(super) local_end: u64,
    pub(super) param_end: u64,
    /// Functions being inlined, innermost last; empty in the kernel itself.
    pub(super) inlining: Vec<&'a str>,
}

pub(super) fn align_up(value: u64, align: u64) -> u64 {
    value.div_ceil(align.max(1)).saturating_mul(align.max(1))
}

impl<'m, 'a> Builder<'m, 'a> {
    pub(super) fn new(module: &'m ModuleItems<'m, 'a>) -> Self {
        Self {
            module,
            code: Vec::new(),
            opcode_of: Vec::new(),
            opcode_index: HashMap::new(),
            opcodes: Vec::new(),
            scopes: Vec::new(),
            label_pc: Vec::new(),
            regs32: 1, // SINK
            regs64: 1, // SINK
            preds: 2,  // PRED_TRUE, PRED_SINK
            presets: HashMap::new(),
            presets32: Vec::new(),
            presets64: Vec::new(),
            shared_end: u64::from(SHARED_BASE),
            dynamic_align: 16,
            module_shared: HashMap::new(),
            local_end: 0,
            param_end: 0,
            inlining: Vec::new(),
        }
    }

    pub(super) fn emit(&mut self, inst: Inst, opcode: &'a str) {
        let next = self.opcodes.len() as u32;
        let index = *self.opcode_index.entry(opcode).or_insert(next);
        if index == next {
            self.opcodes.push(Arc::from(opcode));
        }
        self.code.push(inst);
        self.opcode_of.push(index);
    }

    pub(super) fn scope(&mut self) -> &mut Scope<'a> {
        self.scopes.last_mut().expect("a scope is always open")
    }

    fn new_register(&mut self, class: Class) -> Reg {
        let counter = match class {
            Class::R32 => &mut self.regs32,
            Class::R64 => &mut self.regs64,
            Class::Pred => &mut self.preds,
        };
        *counter += 1;
        *counter - 1
    }

    /// The register a name denotes, given a slot on first use.
    pub(super) fn register(&mut self, name: &'a str) -> Option<(Class, Reg)> {
        for at in (0..self.scopes.len()).rev() {
            match self.scopes[at].find(name) {
                Some(Found::Register(class, reg)) => return Some((class, reg)),
                Some(Found::Unplaced(class)) => {
                    let reg = self.new_register(class);
                    self.scopes[at].place(name, class, reg);
                    return Some((class, reg));
                }
                None if self.scopes[at].root => return None,
                None => {}
            }
        }
        None
    }

    /// The register holding a constant or special value.
    pub(super) fn preset(&mut self, wide: bool, preset: Preset) -> Reg {
        if let Some(&reg) = self.presets.get(&(wide, preset)) {
            return reg;
        }
        let reg = self.new_register(if wide { Class::R64 } else { Class::R32 });
        self.presets.insert((wide, preset), reg);
        if wide {
            self.presets64.push((reg, preset));
        } else {
            self.presets32.push((reg, preset));
        }
        reg
    }

    pub(super) fn const32(&mut self, value: u32) -> Reg {
        self.preset(false, Preset::Value(u64::from(value)))
    }

    pub(super) fn const64(&mut self, value: u64) -> Reg {
        self.preset(true, Preset::Value(value))
    }

    /// A label visible here, as its number.
    pub(super) fn label(&self, name: &str) -> Decode<u32> {
        for scope in self.scopes.iter().rev() {
            if let Some(&label) = scope.labels.get(name) {
                return Ok(label);
            }
            if scope.root {
                break;
            }
        }
        Err(malformed(format!("no label `{name}` in scope")))
    }

    pub(super) fn branch_targets(&self, name: &str) -> Decode<Vec<&'a str>> {
        for scope in self.scopes.iter().rev() {
            if let Some(list) = scope.branch_targets.get(name) {
                return Ok(list.clone());
            }
            if scope.root {
                break;
            }
        }
        Err(malformed(format!("no `.branchtargets` list `{name}`")))
    }

    pub(super) fn new_label(&mut self) -> u32 {
        self.label_pc.push(UNPLACED);
        self.label_pc.len() as u32 - 1
    }

    pub(super) fn place_label(&mut self, label: u32) {
        self.label_pc[label as usize] = self.code.len() as u32;
    }

    /// A variable visible here.
    pub(super) fn symbol(&mut self, name: &str) -> Option<Symbol> {
        for scope in self.scopes.iter().rev() {
            if let Some(&symbol) = scope.symbols.get(name) {
                return Some(symbol);
            }
            if scope.root {
                break;
            }
        }
        if let Some(&variable) = self.module.globals.get(name) {
            return Some(Symbol::Global(variable));
        }
        let index = self.module.shared.iter().position(|v| v.name == name)?;
        Some(Symbol::ModuleShared(index as u32))
    }

    /// Shared-memory offset of a module-scope variable, laid out on first use.
    pub(super) fn module_shared_offset(&mut self, index: u32) -> Decode<Symbol> {
        let var = &self.module.shared[index as usize];
        if var.external && var.elems == 0 {
            self.dynamic_align = self.dynamic_align.max(var.align);
            return Ok(Symbol::DynamicShared);
        }
        if let Some(&offset) = self.module_shared.get(&index) {
            return Ok(Symbol::Shared(offset));
        }
        let offset = self.layout_shared(var)?;
        self.module_shared.insert(index, offset);
        Ok(Symbol::Shared(offset))
    }

    fn layout_shared(&mut self, var: &Var<'a>) -> Decode<u32> {
        let start = align_up(self.shared_end, var.align);
        let end = start.saturating_add(var.bytes());
        if end > crate::exec::MAX_SHARED_BYTES + u64::from(SHARED_BASE) {
            return Err(malformed(format!(
                "`{}` does not fit shared memory: {} bytes",
                var.name,
                var.bytes()
            )));
        }
        self.shared_end = end;
        Ok(start as u32)
    }

    fn layout_local(&mut self, var: &Var<'a>) -> Decode<u32> {
        let start = align_up(self.local_end, var.align.max(8));
        let end = start.saturating_add(var.bytes());
        if end > MAX_LOCAL_BYTES {
            return Err(malformed(format!(
                "`{}` does not fit local memory: {} bytes",
                var.name,
                var.bytes()
            )));
        }
        self.local_end = end;
        Ok(start as u32)
    }

    /// A variable declared inside a function.
    pub(super) fn declare_variable(&mut self, var: &Var<'a>) -> Decode<()> {
        let symbol = match var.space {
            VarSpace::Shared => Symbol::Shared(self.layout_shared(var)?),
            // Arguments of calls: the callee is inlined, so they are thread-private memory.
            VarSpace::Local | VarSpace::Param => Symbol::Local(self.layout_local(var)?),
            VarSpace::Global | VarSpace::Const => {
                return Err(malformed("`.global` inside a function is not supported"));
            }
        };
        self.scope().symbols.insert(var.name, symbol);
        Ok(())
    }

    /// A kernel parameter; returns its offset.
    pub(super) fn declare_param(&mut self, var: &Var<'a>) -> Decode<u32> {
        let start = align_up(self.param_end, var.align);
        let end = start.saturating_add(var.bytes());
        if end > MAX_PARAM_BYTES {
            return Err(malformed(format!(
                "kernel parameters exceed {MAX_PARAM_BYTES} bytes"
            )));
        }
        self.param_end = end;
        self.scope()
            .symbols
            .insert(var.name, Symbol::Param(start as u32));
        Ok(start as u32)
    }
}

impl DecodeError {
    /// As a parse error at `line`, if it is one.
    pub(super) fn at(self, line: u32) -> ParseError {
        match self {
            Self::Malformed(message) => ParseError::new(line, message),
            Self::Unsupported(what) => ParseError::new(line, format!("unsupported: {what}")),
        }
    }
}
