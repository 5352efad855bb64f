//! Arithmetic, data movement and control operations.

use super::{AtomOp, BulkOp, CpAsync, LdSt, MatrixMove, MbarrierOp, Mma, Pred, Reg, Wgmma, Width};

/// Integer types of arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntTy {
    U16,
    S16,
    U32,
    S32,
    U64,
    S64,
}

impl IntTy {
    pub fn width(self) -> Width {
        match self {
            Self::U64 | Self::S64 => Width::W64,
            _ => Width::W32,
        }
    }

    pub fn bits(self) -> u32 {
        match self {
            Self::U16 | Self::S16 => 16,
            Self::U32 | Self::S32 => 32,
            Self::U64 | Self::S64 => 64,
        }
    }

    pub fn signed(self) -> bool {
        matches!(self, Self::S16 | Self::S32 | Self::S64)
    }
}

/// Two-operand integer operations whose result has the operands' width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntBin {
    Add,
    Sub,
    MulLo,
    MulHi,
    Div,
    Rem,
    Min,
    Max,
    And,
    Or,
    Xor,
    AddSat,
    SubSat,
}

/// One-operand integer operations whose result has the operand's width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntUn {
    Not,
    Cnot,
    Neg,
    Abs,
    Brev,
}

/// One-operand integer operations with a 32-bit result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitCount {
    Popc,
    Clz,
    /// Position of the most significant bit that is not the sign.
    Bfind,
    /// The left shift that would bring that bit to the top.
    BfindShift,
}

/// 32-bit operations of three sources that fit no other family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tern32 {
    /// Funnel shifts: high word `c`… see PTX ISA `shf`.
    ShfLeftWrap,
    ShfLeftClamp,
    ShfRightWrap,
    ShfRightClamp,
    Lop3(u8),
    Prmt(PrmtMode),
    SadU,
    SadS,
    Dp4a {
        a_signed: bool,
        b_signed: bool,
    },
    BfeU,
    BfeS,
    Mul24Lo {
        signed: bool,
        add: bool,
    },
    BmskClamp,
    BmskWrap,
}

/// `prmt` modes (PTX ISA §9.7.1, `prmt`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrmtMode {
    Default,
    F4e,
    B4e,
    Rc8,
    Ecl,
    Ecr,
    Rc16,
}

/// Comparison of integers; signedness is the type's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntCmp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// Comparison of floats: ordered, then the unordered twins, then `num`/`nan`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatCmp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Equ,
    Neu,
    Ltu,
    Leu,
    Gtu,
    Geu,
    Num,
    Nan,
}

/// Boolean combination of a comparison with a predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoolOp {
    And,
    Or,
    Xor,
}

/// Where a comparison's outcome goes: `d = cmp op c`, `q = !cmp op c`.
#[derive(Clone, Copy, Debug)]
pub struct SetpDst {
    pub d: Reg,
    pub q: Reg,
    pub combine: Option<(BoolOp, Pred)>,
}

/// Rounding of floating-point results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// To nearest, ties to even.
    Nearest,
    /// To nearest, ties away from zero (`.rna`).
    NearestAway,
    Zero,
    Down,
    Up,
}

/// Modifiers of an f32, f16 or bf16 operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloatMods {
    pub round: Round,
    /// Subnormal inputs and results become signed zero.
    pub ftz: bool,
    /// Clamp to [0, 1], NaN to +0.
    pub sat: bool,
    /// Negative results and NaN to 0 / canonical NaN (`.relu`).
    pub relu: bool,
}

impl FloatMods {
    pub const PLAIN: Self = Self {
        round: Round::Nearest,
        ftz: false,
        sat: false,
        relu: false,
    };
}

/// Floating-point operations, shared by all formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatOp {
    Add,
    Sub,
    Mul,
    Fma,
    Div,
    DivApprox,
    Min,
    Max,
    MinNan,
    MaxNan,
    Neg,
    Abs,
    Copysign,
    Rcp,
    RcpApprox,
    Sqrt,
    SqrtApprox,
    RsqrtApprox,
    Ex2Approx,
    Lg2Approx,
    SinApprox,
    CosApprox,
    TanhApprox,
}

impl FloatOp {
    /// Number of sources.
    pub fn arity(self) -> usize {
        match self {
            Self::Fma => 3,
            Self::Add
            | Self::Sub
            | Self::Mul
            | Self::Div
            | Self::DivApprox
            | Self::Min
            | Self::Max
            | Self::MinNan
            | Self::MaxNan
            | Self::Copysign => 2,
            _ => 1,
        }
    }
}

/// 16-bit floating formats, one or two to a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HalfTy {
    F16,
    F16x2,
    Bf16,
    Bf16x2,
}

impl HalfTy {
    pub fn packed(self) -> bool {
        matches!(self, Self::F16x2 | Self::Bf16x2)
    }

    pub fn bf16(self) -> bool {
        matches!(self, Self::Bf16 | Self::Bf16x2)
    }
}

/// A scalar type `cvt` converts from or to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CvtTy {
    Int { bits: u32, signed: bool },
    F16,
    Bf16,
    Tf32,
    F32,
    F64,
}

impl CvtTy {
    pub fn width(self) -> Width {
        match self {
            Self::Int { bits: 64, .. } | Self::F64 => Width::W64,
            _ => Width::W32,
        }
    }

    pub fn is_float(self) -> bool {
        !matches!(self, Self::Int { .. })
    }
}

/// A scalar `cvt`.
#[derive(Clone, Copy, Debug)]
pub struct Cvt {
    pub from: CvtTy,
    pub to: CvtTy,
    pub mods: FloatMods,
    /// `.rni`, `.rzi`, …: float → float keeps the value integral.
    pub integral: bool,
    /// Destination register class (may be wider than the type).
    pub dst: Width,
    pub d: Reg,
    pub a: Reg,
}

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

/// What a CTA barrier instruction does.
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

/// Every operation the machine executes.
#[derive(Clone, Debug)]
pub enum Op {
    Nop,
    Mov32 {
        d: Reg,
        a: Reg,
    },
    Mov64 {
        d: Reg,
        a: Reg,
    },
    MovPred {
        d: Reg,
        a: Pred,
    },
    Read {
        what: Dynamic,
        d: Reg,
        wide: bool,
    },

    IntBin {
        f: IntBin,
        t: IntTy,
        d: Reg,
        a: Reg,
        b: Reg,
    },
    IntUn {
        f: IntUn,
        t: IntTy,
        d: Reg,
        a: Reg,
    },
    BitCount {
        f: BitCount,
        t: IntTy,
        d: Reg,
        a: Reg,
    },
    Shl {
        t: IntTy,
        d: Reg,
        a: Reg,
        b: Reg,
    },
    Shr {
        t: IntTy,
        d: Reg,
        a: Reg,
        b: Reg,
    },
    /// `mad.lo` / `mad.hi`.
    Mad {
        hi: bool,
        t: IntTy,
        d: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
    },
    /// `mul.wide` and `mad.wide` (`add`): the result is twice as wide as `t`.
    MulWide {
        t: IntTy,
        d: Reg,
        a: Reg,
        b: Reg,
        add: Option<Reg>,
    },
    Tern32 {
        f: Tern32,
        d: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
    },
    Bfe64 {
        signed: bool,
        d: Reg,
        a: Reg,
        pos: Reg,
        len: Reg,
    },
    Bfi {
        wide: bool,
        d: Reg,
        a: Reg,
        b: Reg,
        pos: Reg,
        len: Reg,
    },
    /// `add.cc`, `addc`, `sub.cc`, `subc`: `sub`, carry in, carry out.
    AddCarry {
        sub: bool,
        wide: bool,
        carry_in: bool,
        carry_out: bool,
        d: Reg,
        a: Reg,
        b: Reg,
    },
    Sel32 {
        d: Reg,
        a: Reg,
        b: Reg,
        p: Pred,
    },
    Sel64 {
        d: Reg,
        a: Reg,
        b: Reg,
        p: Pred,
    },
    SetpInt {
        cmp: IntCmp,
        t: IntTy,
        a: Reg,
        b: Reg,
        to: SetpDst,
    },
    SetpF32 {
        cmp: FloatCmp,
        ftz: bool,
        a: Reg,
        b: Reg,
        to: SetpDst,
    },
    SetpF64 {
        cmp: FloatCmp,
        a: Reg,
        b: Reg,
        to: SetpDst,
    },
    /// f16/bf16 comparison; a packed type writes `d` from the low half and `q` from the high one.
    SetpHalf {
        cmp: FloatCmp,
        t: HalfTy,
        ftz: bool,
        a: Reg,
        b: Reg,
        to: SetpDst,
    },
    PredBin {
        f: BoolOp,
        d: Reg,
        a: Pred,
        b: Pred,
    },
    PredNot {
        d: Reg,
        a: Pred,
    },
    /// `testp.<class>.f32`.
    Testp {
        class: FloatClass,
        wide: bool,
        d: Reg,
        a: Reg,
    },

    /// f32, round to nearest, no modifier: the fast path.
    F32 {
        f: FloatOp,
        d: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
    },
    /// f32 with modifiers.
    F32Mod {
        f: FloatOp,
        m: FloatMods,
        d: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
    },
    F64 {
        f: FloatOp,
        d: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
    },
    Half {
        f: FloatOp,
        t: HalfTy,
        m: FloatMods,
        d: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
    },
    Cvt(Box<Cvt>),
    /// `cvt.rn.{f16x2,bf16x2}.f32 d, hi, lo`.
    CvtPack {
        bf16: bool,
        m: FloatMods,
        d: Reg,
        hi: Reg,
        lo: Reg,
    },

    /// `mov.b64 {lo, hi}, a` and the other way round; either half may be the sink.
    Split64 {
        lo: Reg,
        hi: Reg,
        a: Reg,
    },
    Join64 {
        d: Reg,
        lo: Reg,
        hi: Reg,
    },
    Split32 {
        lo: Reg,
        hi: Reg,
        a: Reg,
    },
    Join32 {
        d: Reg,
        lo: Reg,
        hi: Reg,
    },
    Split64x4 {
        d: Box<[Reg; 4]>,
        a: Reg,
    },
    Join64x4 {
        d: Reg,
        a: Box<[Reg; 4]>,
    },

    Ld(Box<LdSt>),
    St(Box<LdSt>),
    Atom(Box<AtomOp>),
    CpAsync(Box<CpAsync>),
    CpAsyncCommit,
    /// `cp.async.wait_group`, or `wait_all` (`all`), which also covers what was never committed.
    CpAsyncWait {
        pending: u32,
        all: bool,
    },
    /// Generic → window offset (`to_window`) or back.
    Cvta {
        space: Window,
        to_window: bool,
        d: Reg,
        a: Reg,
    },
    /// Does the generic address lie in the window?
    IsSpace {
        space: Window,
        d: Reg,
        a: Reg,
    },
    Mapa {
        wide: bool,
        generic: bool,
        d: Reg,
        a: Reg,
        rank: Reg,
    },
    /// Rank of the CTA a cluster shared address belongs to.
    GetCtaRank {
        wide: bool,
        d: Reg,
        a: Reg,
    },

    Shfl {
        mode: ShflMode,
        d: Reg,
        p: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
        mask: Reg,
    },
    Vote {
        mode: VoteMode,
        d: Reg,
        a: Pred,
        mask: Reg,
    },
    Redux {
        f: ReduxOp,
        d: Reg,
        a: Reg,
        mask: Reg,
    },
    MatchAny {
        wide: bool,
        d: Reg,
        a: Reg,
        mask: Reg,
    },
    MatchAll {
        wide: bool,
        d: Reg,
        p: Reg,
        a: Reg,
        mask: Reg,
    },
    Elect {
        d: Reg,
        p: Reg,
        mask: Reg,
    },
    BarWarp {
        mask: Reg,
    },
    Barrier(Box<Barrier>),
    ClusterBarrier {
        what: ClusterBarrier,
        aligned: bool,
    },
    Fence(Fence),

    LdMatrix(Box<MatrixMove>),
    StMatrix(Box<MatrixMove>),
    Mma(Box<Mma>),
    Mbarrier(Box<MbarrierOp>),
    Bulk(Box<BulkOp>),
    Wgmma(Box<Wgmma>),
    WgmmaFence,
    WgmmaCommit,
    WgmmaWait {
        pending: u32,
    },
    SetMaxNReg {
        count: u32,
        increase: bool,
    },
    GridDepWait,
    GridDepLaunch,
    Nanosleep,

    Bra {
        target: u32,
    },
    BrxIdx {
        index: Reg,
        targets: Box<[u32]>,
    },
    Exit,
    Trap,
    /// Execution of this is an error with this text.
    Unsupported(Box<str>),
}

/// `testp` classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatClass {
    Finite,
    Infinite,
    Number,
    NotANumber,
    Normal,
    Subnormal,
}

/// Windows of the generic address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    Global,
    Shared,
    Local,
    Param,
    Const,
}
