//! Names in scope: registers, variables, labels.

use std::collections::HashMap;

use crate::ir::Reg;
use crate::ptx::ast::Ty;

/// The file a register lives in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    R32,
    R64,
    Pred,
}

impl Class {
    pub(super) fn of(ty: Ty) -> Option<Self> {
        Some(match ty {
            Ty::Pred => Self::Pred,
            Ty::B128 => return None,
            ty if ty.bytes() == 8 => Self::R64,
            _ => Self::R32,
        })
    }
}

/// Where a named variable lives.
#[derive(Clone, Copy, Debug)]
pub(super) enum Symbol {
    /// Module variable number.
    Global(u32),
    /// Static shared variable of the module, laid out when first used.
    ModuleShared(u32),
    /// Offset in the CTA's shared memory.
    Shared(u32),
    DynamicShared,
    /// Offset in the thread's local memory.
    Local(u32),
    /// Offset in the kernel's parameters.
    Param(u32),
}

/// One `{ }` scope. Registers get a slot when first used, so a huge declaration costs nothing.
#[derive(Default)]
pub(super) struct Scope<'a> {
    pub(super) ranges: HashMap<&'a str, (Class, u64)>,
    pub(super) registers: HashMap<&'a str, (Class, Option<Reg>)>,
    pub(super) symbols: HashMap<&'a str, Symbol>,
    pub(super) labels: HashMap<&'a str, u32>,
    pub(super) branch_targets: HashMap<&'a str, Vec<&'a str>>,
    /// A function body: names outside are the module's.
    pub(super) root: bool,
}

/// Result of looking up a name.
pub(super) enum Found {
    Register(Class, Reg),
    /// Declared, not yet in a file: call [`Scope::place`].
    Unplaced(Class),
}

impl<'a> Scope<'a> {
    pub(super) fn declare(&mut self, name: &'a str, class: Class, count: Option<u64>) {
        match count {
            Some(n) => {
                self.ranges.insert(name, (class, n));
            }
            None => {
                self.registers.insert(name, (class, None));
            }
        }
    }

    pub(super) fn find(&self, name: &str) -> Option<Found> {
        if let Some(&(class, reg)) = self.registers.get(name) {
            return Some(match reg {
                Some(reg) => Found::Register(class, reg),
                None => Found::Unplaced(class),
            });
        }
        let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let &(class, count) = self.ranges.get(prefix)?;
        let index: u64 = name[prefix.len()..].parse().ok()?;
        (index < count).then_some(Found::Unplaced(class))
    }

    pub(super) fn place(&mut self, name: &'a str, class: Class, reg: Reg) {
        self.registers.insert(name, (class, Some(reg)));
    }
}
