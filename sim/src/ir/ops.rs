//! The operations.

use super::*;

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
    /// `cvt.rn{.relu}.f16x2.e4m3x2 d, a`.
    CvtCodes {
        relu: bool,
        d: Reg,
        a: Reg,
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
    /// Rank of the CTA a cluster shared address (or a generic one) belongs to.
    GetCtaRank {
        wide: bool,
        generic: bool,
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

impl Op {
    /// `.aligned` instructions: all threads of the warp must execute them together.
    pub(crate) fn wants_whole_warp(&self) -> bool {
        match self {
            Self::Barrier(barrier) => barrier.aligned,
            Self::ClusterBarrier { aligned, .. } => *aligned,
            Self::LdMatrix(_)
            | Self::StMatrix(_)
            | Self::Mma(_)
            | Self::Wgmma(_)
            | Self::WgmmaFence
            | Self::WgmmaCommit
            | Self::WgmmaWait { .. }
            | Self::SetMaxNReg { .. } => true,
            _ => false,
        }
    }
}
