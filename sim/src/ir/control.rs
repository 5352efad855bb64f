//! Modes of warp-wide exchange, barriers and fences.

use super::{Pred, Reg};

/// How lanes are chosen by `shfl.sync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShflMode {
    Up,
    Down,
    Bfly,
    Idx,
}

/// `vote.sync` modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VoteMode {
    All,
    Any,
    Uni,
    Ballot,
}

/// `redux.sync` operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduxOp {
    Add,
    MinU,
    MinS,
    MaxU,
    MaxS,
    And,
    Or,
    Xor,
}

/// Operation of a CTA barrier instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierMode {
    Sync,
    Arrive,
    RedPopc,
    RedAnd,
    RedOr,
}

/// `bar`/`barrier{.cta}` (PTX ISA §9.7.13.1).
#[derive(Clone, Copy, Debug)]
pub struct Barrier {
    pub mode: BarrierMode,
    pub aligned: bool,
    pub id: Reg,
    /// Thread count, or none for the whole CTA.
    pub count: Option<Reg>,
    /// Destination and source of the reducing forms.
    pub d: Reg,
    pub p: Pred,
}

/// A special register whose value can change while a warp runs, or differs by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dynamic {
    Clock32,
    Clock64,
    GlobalTimer,
    /// `activemask.b32`.
    ActiveMask,
}

/// Memory ordering barriers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// `membar`, `fence.{sc,acq_rel}` at some scope (PTX ISA §9.7.13.4).
    Memory(Scope),
    /// `fence.proxy.async{.shared::{cta,cluster}, .global}`: generic ↔ async proxy.
    ProxyAsync { shared: bool, global: bool },
    /// `fence.proxy.alias` and the like, which nothing here distinguishes.
    ProxyOther,
    /// `fence.mbarrier_init.release.cluster`.
    MbarrierInit,
}

/// Scope of a fence or an atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    Cta,
    Cluster,
    Gpu,
    Sys,
}

/// Parts of `barrier.cluster`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterBarrier {
    Arrive { release: bool },
    Wait { acquire: bool },
}

/// Windows of the generic address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    Global,
    Shared,
    /// The shared memory of every CTA of the cluster.
    SharedCluster,
    Local,
    Param,
    Const,
}
