//! The parsed form of a PTX module: text structure only, no meaning yet.

/// State spaces a variable can be declared in (PTX ISA §5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VarSpace {
    Global,
    Const,
    Shared,
    Local,
    Param,
}

/// A scalar type suffix such as `.b32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ty {
    B8,
    B16,
    B32,
    B64,
    B128,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    E4m3x2,
    Tf32,
    F32,
    F64,
    Pred,
}

impl Ty {
    /// The type a suffix (without its dot) names.
    pub fn parse(s: &str) -> Option<Self> {
        Some(match s {
            "b8" => Self::B8,
            "b16" => Self::B16,
            "b32" => Self::B32,
            "b64" => Self::B64,
            "b128" => Self::B128,
            "u8" => Self::U8,
            "u16" => Self::U16,
            "u32" => Self::U32,
            "u64" => Self::U64,
            "s8" => Self::S8,
            "s16" => Self::S16,
            "s32" => Self::S32,
            "s64" => Self::S64,
            "f16" => Self::F16,
            "f16x2" => Self::F16x2,
            "bf16" => Self::Bf16,
            "bf16x2" => Self::Bf16x2,
            "e4m3x2" => Self::E4m3x2,
            "tf32" => Self::Tf32,
            "f32" => Self::F32,
            "f64" => Self::F64,
            "pred" => Self::Pred,
            _ => return None,
        })
    }

    /// Size in bytes; a predicate counts as one.
    pub fn bytes(self) -> u64 {
        match self {
            Self::B8 | Self::U8 | Self::S8 | Self::Pred => 1,
            Self::B16 | Self::U16 | Self::S16 | Self::F16 | Self::Bf16 | Self::E4m3x2 => 2,
            Self::B32
            | Self::U32
            | Self::S32
            | Self::F32
            | Self::F16x2
            | Self::Bf16x2
            | Self::Tf32 => 4,
            Self::B64 | Self::U64 | Self::S64 | Self::F64 => 8,
            Self::B128 => 16,
        }
    }

    /// Is it one of the `.s` types?
    pub fn is_signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }
}

/// One element of a variable's initialiser.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init<'a> {
    /// The element's bits.
    Bits(u64),
    /// The address of another variable, plus an offset; `generic(sym)` and `sym` are the same here
    /// because a global address is its own generic address.
    Address(&'a str, i64),
}

/// A variable in a memory space.
#[derive(Clone, Debug)]
pub struct Var<'a> {
    pub space: VarSpace,
    pub name: &'a str,
    pub align: u64,
    /// Element type and number of elements; 0 for `[]`.
    pub ty: Ty,
    pub elems: u64,
    pub external: bool,
    pub init: Vec<Init<'a>>,
    pub line: u32,
}

impl Var<'_> {
    /// Bytes it occupies; saturates.
    pub fn bytes(&self) -> u64 {
        self.ty.bytes().saturating_mul(self.elems)
    }
}

/// An operand as written.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand<'a> {
    /// A register, variable, label or special register.
    Name(&'a str),
    Int(u64),
    F32(u32),
    F64(u64),
    /// `_`
    Sink,
    /// `!p`
    Not(&'a str),
    /// `d|p`
    Pair(&'a str, &'a str),
    /// `{a, b, …}`
    Vector(Vec<Operand<'a>>),
    /// `[a+4, {x, y}, …]`: the first element with its offset, then the rest.
    Memory(Box<Operand<'a>>, i64, Vec<Operand<'a>>),
    /// `(a, b)`: the argument list of a call.
    List(Vec<Operand<'a>>),
}

/// `@p` or `@!p`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guard<'a> {
    pub name: &'a str,
    pub negated: bool,
}

/// A statement of a function body.
#[derive(Clone, Debug)]
pub enum Stmt<'a> {
    /// `.reg .b32 %r<N>` (count `Some`) or `.reg .b32 a` (count `None`).
    Reg {
        ty: Ty,
        name: &'a str,
        count: Option<u64>,
    },
    Var(Var<'a>),
    Label(&'a str, u32),
    Inst(Inst<'a>),
    /// `{ … }`: a scope of its own.
    Block(Vec<Stmt<'a>>),
    /// `label: .branchtargets a, b, …;`
    BranchTargets(&'a str, Vec<&'a str>),
}

/// An instruction as written.
#[derive(Clone, Debug)]
pub struct Inst<'a> {
    pub guard: Option<Guard<'a>>,
    /// The whole dotted opcode.
    pub opcode: &'a str,
    pub operands: Vec<Operand<'a>>,
    pub line: u32,
}

/// Launch-related directives of an entry (PTX ISA §11.4).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryDirectives {
    pub maxntid: Option<[u32; 3]>,
    pub reqntid: Option<[u32; 3]>,
    pub minnctapersm: Option<u32>,
    pub maxnreg: Option<u32>,
    pub explicit_cluster: bool,
    pub reqnctapercluster: Option<[u32; 3]>,
}

/// A kernel or device function.
#[derive(Clone, Debug)]
pub struct Function<'a> {
    pub name: &'a str,
    pub entry: bool,
    pub returns: Vec<Var<'a>>,
    pub params: Vec<Var<'a>>,
    pub directives: EntryDirectives,
    /// `None` for a declaration.
    pub body: Option<Vec<Stmt<'a>>>,
    pub line: u32,
}

/// A parsed module.
#[derive(Clone, Debug, Default)]
pub struct Module<'a> {
    pub target: &'a str,
    pub variables: Vec<Var<'a>>,
    pub functions: Vec<Function<'a>>,
}
