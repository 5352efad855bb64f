//! Tensor-core, mbarrier and bulk-copy operations.

use super::{Addr, Pred, Reg, Scope};

/// `ldmatrix` / `stmatrix` of 8×8 16-bit matrices (PTX ISA §9.7.14).
#[derive(Clone, Debug)]
pub struct MatrixMove {
    pub addr: Addr,
    pub trans: bool,
    /// Is the address generic (no `.shared`)?
    pub generic: bool,
    /// One register a matrix.
    pub regs: Box<[Reg]>,
}

/// Element types of matrix operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MmaTy {
    F16,
    Bf16,
    Tf32,
    F32,
}

/// Warp-wide `mma.sync.m16n8kK` (PTX ISA §9.7.14).
#[derive(Clone, Debug)]
pub struct Mma {
    pub k: u32,
    pub ab: MmaTy,
    /// Accumulator: f32 or packed f16.
    pub acc: MmaTy,
    pub d: Box<[Reg]>,
    pub a: Box<[Reg]>,
    pub b: Box<[Reg]>,
    pub c: Box<[Reg]>,
}

/// The A operand of `wgmma`.
#[derive(Clone, Debug)]
pub enum WgmmaA {
    /// Shared-memory descriptor in a 64-bit register.
    Descriptor(Reg),
    Registers(Box<[Reg]>),
}

/// Warpgroup-wide `wgmma.mma_async.m64nNkK` (PTX ISA §9.7.15).
#[derive(Clone, Debug)]
pub struct Wgmma {
    pub n: u32,
    pub k: u32,
    pub ab: MmaTy,
    pub acc: MmaTy,
    pub d: Box<[Reg]>,
    pub a: WgmmaA,
    pub b: Reg,
    /// D = A·B + (scale_d ? D : 0).
    pub scale_d: Pred,
    pub negate_a: bool,
    pub negate_b: bool,
    /// MN-major A / B.
    pub trans_a: bool,
    pub trans_b: bool,
}

/// Operation of an mbarrier instruction (PTX ISA §9.7.13.15).
#[derive(Clone, Debug)]
pub enum MbarrierKind {
    Init {
        count: Reg,
    },
    Inval,
    /// `arrive{.expect_tx}`; `state` receives the phase token.
    Arrive {
        count: Option<Reg>,
        expect_tx: Option<Reg>,
        drop: bool,
        state: Option<Reg>,
    },
    ExpectTx {
        bytes: Reg,
    },
    CompleteTx {
        bytes: Reg,
    },
    /// `test_wait` / `try_wait`, by state token or parity.
    Wait {
        d: Reg,
        state: Reg,
        parity: bool,
        acquire: bool,
    },
    /// `cp.async.mbarrier.arrive{.noinc}`.
    CpAsyncArrive {
        noinc: bool,
    },
    PendingCount {
        d: Reg,
        state: Reg,
    },
}

/// An mbarrier instruction and the barrier it names.
#[derive(Clone, Debug)]
pub struct MbarrierOp {
    pub kind: MbarrierKind,
    pub addr: Addr,
    /// The address is a `shared::cluster` one.
    pub cluster: bool,
    /// Generic address, no state space given.
    pub generic: bool,
    pub release: bool,
    /// Scope of the release or acquire.
    pub scope: Scope,
}

/// Bulk asynchronous operations (PTX ISA §9.7.9.25).
#[derive(Clone, Debug)]
pub enum BulkOp {
    /// Tensor load to shared memory, completing on an mbarrier. `own`: both are written as `.shared::cta`.
    TensorLoad {
        own: bool,
        dst: Addr,
        map: Addr,
        coords: Box<[Reg]>,
        mbar: Addr,
        multicast: Option<Reg>,
    },
    /// Tensor store or reduction from shared memory, completing by bulk group.
    TensorStore {
        map: Addr,
        coords: Box<[Reg]>,
        src: Addr,
        reduce: Option<super::RmwOp>,
    },
    /// Linear copy global → shared, completing on an mbarrier; `own` as above.
    Load {
        own: bool,
        dst: Addr,
        src: Addr,
        bytes: Reg,
        mbar: Addr,
        multicast: Option<Reg>,
    },
    /// Linear copy own shared → another CTA's shared, completing on its mbarrier.
    SharedToCluster {
        dst: Addr,
        src: Addr,
        bytes: Reg,
        mbar: Addr,
    },
    /// Linear copy or reduction shared → global, completing by bulk group.
    Store {
        dst: Addr,
        src: Addr,
        bytes: Reg,
        reduce: Option<(super::RmwOp, super::RmwTy)>,
    },
    Commit,
    Wait {
        pending: u32,
        read_only: bool,
    },
    /// Prefetches have no effect that a program can see; the address is checked.
    PrefetchTensor {
        map: Addr,
    },
    Prefetch,
}
