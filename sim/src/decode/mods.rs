//! The dotted modifiers of an opcode, taken one by one; whatever is left over is unknown.

use super::{Decode, unsupported};
use crate::ptx::ast::Ty;

/// Most modifiers an opcode may carry.
const MAX_MODIFIERS: usize = 24;

pub(super) struct Mods<'a> {
    pub(super) mnemonic: &'a str,
    rest: Vec<&'a str>,
}

impl<'a> Mods<'a> {
    pub(super) fn new(opcode: &'a str) -> Self {
        let mut parts = opcode.split('.');
        let mnemonic = parts.next().unwrap_or("");
        Self {
            mnemonic,
            rest: parts.take(MAX_MODIFIERS + 1).collect(),
        }
    }

    /// Removes the modifier if it is there.
    pub(super) fn take(&mut self, modifier: &str) -> bool {
        match self.rest.iter().position(|&m| m == modifier) {
            Some(i) => {
                self.rest.remove(i);
                true
            }
            None => false,
        }
    }

    /// Removes the first modifier `f` accepts.
    pub(super) fn find<T>(&mut self, f: impl Fn(&str) -> Option<T>) -> Option<T> {
        for (i, m) in self.rest.iter().enumerate() {
            if let Some(found) = f(m) {
                self.rest.remove(i);
                return Some(found);
            }
        }
        None
    }

    /// Removes the first modifier that is a type.
    pub(super) fn ty(&mut self) -> Decode<Ty> {
        match self.find(Ty::parse) {
            Some(ty) => Ok(ty),
            None => Err(unsupported("no operand type")),
        }
    }

    /// Errors unless every modifier was taken.
    pub(super) fn finish(self) -> Decode<()> {
        match self.rest.first() {
            None => Ok(()),
            Some(m) => Err(unsupported(format!("modifier `.{m}`"))),
        }
    }
}
