//! A decoded kernel: code, register counts, parameters and launch directives.

use std::sync::Arc;

use super::{Inst, Op, Reg};
use crate::ptx::ast::EntryDirectives;

/// A kernel parameter as the PTX declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    pub name: String,
    /// Bytes of the blob [`crate::launch`] expects.
    pub bytes: u32,
    pub align: u32,
    /// Byte offset in the parameter space.
    pub offset: u32,
}

/// Source of a register's initial value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Preset {
    Value(u64),
    /// Address of a module-scope `.global`/`.const` variable, plus an offset.
    Global {
        variable: u32,
        offset: i64,
    },
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    NWarpId,
    LaneMask(LaneMask),
    ClusterId(u8),
    NClusterId(u8),
    ClusterCtaid(u8),
    ClusterNctaid(u8),
    ClusterCtaRank,
    ClusterNctaRank,
    SmId,
    NSmId,
    GridId,
    DynamicSharedBytes,
    TotalSharedBytes,
    /// Address of a shared variable, without the part that distinguishes the CTAs of a cluster.
    Shared(u64),
    /// Address of dynamic shared memory.
    DynamicSharedBase,
}

/// `%lanemask_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LaneMask {
    Eq,
    Le,
    Lt,
    Ge,
    Gt,
}

/// A kernel ready to run.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub name: String,
    pub params: Vec<Parameter>,
    pub param_bytes: u32,
    pub directives: EntryDirectives,
    /// Bytes of shared memory the kernel declares itself; dynamic memory follows.
    pub static_shared_bytes: u32,
    /// Alignment of the dynamic part.
    pub dynamic_shared_align: u32,
    pub local_bytes: u32,
    pub code: Vec<Inst>,
    /// For each branch, the instruction where its paths meet again (`u32::MAX`: never).
    pub reconverge: Vec<u32>,
    pub regs32: u32,
    pub regs64: u32,
    pub preds: u32,
    pub presets32: Vec<(Reg, Preset)>,
    pub presets64: Vec<(Reg, Preset)>,
    /// Opcode text of each instruction, as an index into `opcodes`.
    pub opcode_of: Vec<u32>,
    pub opcodes: Vec<Arc<str>>,
}

impl Kernel {
    /// Does it issue `wgmma`s?
    pub fn uses_wgmma(&self) -> bool {
        self.code.iter().any(|i| matches!(i.op, Op::Wgmma(_)))
    }

    /// Opcode of instruction `pc`, as written.
    pub fn opcode(&self, pc: u32) -> &str {
        &self.opcodes[self.opcode_of[pc as usize] as usize]
    }
}
