//! Loads, stores, atomics and asynchronous copies.

use super::{Reg, Scope};

/// Where an address points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    Generic,
    Global,
    Shared,
    /// `shared::cluster`: an address that may name another CTA's shared memory.
    SharedCluster,
    Local,
    Param,
    Const,
}

/// `[base + offset]`.
#[derive(Clone, Copy, Debug)]
pub struct Addr {
    pub base: Reg,
    /// Is `base` a 64-bit register?
    pub wide: bool,
    pub offset: i64,
}

/// One register of a load or store.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    pub reg: Reg,
    pub wide: bool,
}

/// Memory-order semantics of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Weak,
    Relaxed,
    Acquire,
    Release,
    AcqRel,
}

impl Order {
    pub fn acquires(self) -> bool {
        matches!(self, Self::Acquire | Self::AcqRel)
    }

    pub fn releases(self) -> bool {
        matches!(self, Self::Release | Self::AcqRel)
    }
}

/// A load or store of one to eight elements.
#[derive(Clone, Debug)]
pub struct LdSt {
    pub space: Space,
    /// Bytes of one element: 1, 2, 4 or 8.
    pub elem_bytes: u32,
    /// Sign-extend a loaded element to its register.
    pub signed: bool,
    pub order: Order,
    /// Scope of an access that is not weak.
    pub scope: Scope,
    pub addr: Addr,
    pub slots: Box<[Slot]>,
}

impl LdSt {
    /// Bytes the whole access covers, which is also its alignment.
    pub fn bytes(&self) -> u32 {
        self.elem_bytes * self.slots.len() as u32
    }
}

/// Read-modify-write functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RmwOp {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exch,
    Cas,
    Inc,
    Dec,
}

/// Element type of a read-modify-write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RmwTy {
    U32,
    S32,
    U64,
    S64,
    F32,
    F64,
    F16x2,
    Bf16x2,
    F16,
    Bf16,
}

impl RmwTy {
    pub fn bytes(self) -> u32 {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::U64 | Self::S64 | Self::F64 => 8,
            _ => 4,
        }
    }
}

/// `atom` (with destinations) or `red` (without); several slots for the vector forms.
#[derive(Clone, Debug)]
pub struct AtomOp {
    pub space: Space,
    pub f: RmwOp,
    pub ty: RmwTy,
    pub order: Order,
    pub scope: Scope,
    pub addr: Addr,
    pub dst: Box<[Slot]>,
    pub a: Box<[Slot]>,
    /// The new value of `cas`.
    pub b: Option<Slot>,
}

/// `cp.async.{ca,cg}.shared.global [dst], [src], bytes{, src_bytes}`.
#[derive(Clone, Debug)]
pub struct CpAsync {
    pub dst: Addr,
    pub src: Addr,
    pub bytes: u32,
    /// Bytes really read; the rest of the destination becomes zero.
    pub src_bytes: Option<Reg>,
    /// Predicate form: copy nothing, write zeros.
    pub ignore: Option<super::Pred>,
}
