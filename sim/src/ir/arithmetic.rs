//! The pieces operations are made of: types, functions, modes and modifiers.

use super::{Pred, Reg, Width};

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
    /// The smaller, or 0 if that is negative (`min.relu.s32`).
    MinRelu,
    /// The larger, likewise.
    MaxRelu,
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
