//! The decoded form of a kernel: flat instructions with direct register indices.
//!
//! Immediates and special registers that never change live in registers of their own, filled when a
//! warp starts, so an operand is always just an index. Predicates are lane masks.

mod arithmetic;
pub mod cfg;
mod control;
pub mod kernel;
mod memory_ops;
mod operands;
mod ops;
mod packed;
mod tensor_ops;
mod touched;

pub use arithmetic::*;
pub use control::*;
pub use kernel::{Kernel, Parameter};
pub use memory_ops::*;
pub use operands::{Access, Operands, Place, visit};
pub use ops::*;
pub use tensor_ops::*;
pub use touched::Touched;

/// Index of a register within the file of its class.
pub type Reg = u32;

/// Always-true predicate: the guard of an unguarded instruction.
pub const PRED_TRUE: Reg = 0;
/// Predicate destination nobody reads.
pub const PRED_SINK: Reg = 1;
/// 32- and 64-bit destination nobody reads.
pub const SINK: Reg = 0;

/// A predicate source, possibly negated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pred {
    pub reg: Reg,
    pub negated: bool,
}

impl Pred {
    pub const TRUE: Self = Self {
        reg: PRED_TRUE,
        negated: false,
    };
}

/// Register width class: 8- and 16-bit values live zero-extended in 32-bit registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    W32,
    W64,
}

/// One decoded instruction.
#[derive(Clone, Debug)]
pub struct Inst {
    pub op: Op,
    pub guard: Pred,
    /// 1-based line in the PTX text.
    pub line: u32,
}
