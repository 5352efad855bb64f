//! Integer, logic and bit instructions (PTX ISA §9.7.1, §9.7.2, §9.7.8).

use super::builder::Builder;
use super::mods::Mods;
use super::{Decode, unsupported, want};
use crate::ir::{BitCount, BoolOp, IntBin, IntTy, IntUn, Op, PrmtMode, Tern32};
use crate::ptx::ast::{Operand, Ty};

/// The integer type of an arithmetic instruction.
pub(super) fn int_ty(ty: Ty) -> Decode<IntTy> {
    Ok(match ty {
        Ty::B16 | Ty::U16 => IntTy::U16,
        Ty::S16 => IntTy::S16,
        Ty::B32 | Ty::U32 => IntTy::U32,
        Ty::S32 => IntTy::S32,
        Ty::B64 | Ty::U64 => IntTy::U64,
        Ty::S64 => IntTy::S64,
        _ => return Err(unsupported("this operand type")),
    })
}

impl<'a> Builder<'_, 'a> {
    pub(super) fn int_bin(&mut self, f: IntBin, t: IntTy, o: &[Operand<'a>]) -> Decode<Op> {
        want(o, 3)?;
        Ok(Op::IntBin {
            f,
            t,
            d: self.dst_int(t, &o[0])?,
            a: self.src_int(t, &o[1])?,
            b: self.src_int(t, &o[2])?,
        })
    }

    pub(super) fn int_un(&mut self, f: IntUn, t: IntTy, o: &[Operand<'a>]) -> Decode<Op> {
        want(o, 2)?;
        Ok(Op::IntUn {
            f,
            t,
            d: self.dst_int(t, &o[0])?,
            a: self.src_int(t, &o[1])?,
        })
    }

    fn tern32(&mut self, f: Tern32, o: &[Operand<'a>]) -> Decode<Op> {
        want(o, 4)?;
        Ok(Op::Tern32 {
            f,
            d: self.dst32(&o[0])?,
            a: self.src32(&o[1])?,
            b: self.src32(&o[2])?,
            c: self.src32(&o[3])?,
        })
    }

    /// Integer `add`…`abs`, whose mnemonics the floating-point types share.
    pub(super) fn int_arithmetic(
        &mut self,
        mods: &mut Mods<'a>,
        ty: Ty,
        o: &[Operand<'a>],
    ) -> Decode<Op> {
        let t = int_ty(ty)?;
        let mnemonic = mods.mnemonic;
        match mnemonic {
            "add" | "sub" => {
                let sub = mods.mnemonic == "sub";
                if mods.take("cc") {
                    return self.carry(sub, t, false, true, o);
                }
                let f = match (sub, mods.take("sat")) {
                    (false, false) => IntBin::Add,
                    (true, false) => IntBin::Sub,
                    (false, true) if t == IntTy::S32 => IntBin::AddSat,
                    (true, true) if t == IntTy::S32 => IntBin::SubSat,
                    _ => return Err(unsupported("`.sat` on this type")),
                };
                self.int_bin(f, t, o)
            }
            "mul" if mods.take("wide") => self.wide(t, o, false),
            "mul" if mods.take("hi") => self.int_bin(IntBin::MulHi, t, o),
            "mul" if mods.take("lo") => self.int_bin(IntBin::MulLo, t, o),
            "mad" if mods.take("wide") => self.wide(t, o, true),
            "mad" => {
                let hi = mods.take("hi");
                if !hi && !mods.take("lo") {
                    return Err(unsupported("`mad` without `.lo`, `.hi` or `.wide`"));
                }
                want(o, 4)?;
                Ok(Op::Mad {
                    hi,
                    t,
                    d: self.dst_int(t, &o[0])?,
                    a: self.src_int(t, &o[1])?,
                    b: self.src_int(t, &o[2])?,
                    c: self.src_int(t, &o[3])?,
                })
            }
            "div" => self.int_bin(IntBin::Div, t, o),
            "rem" => self.int_bin(IntBin::Rem, t, o),
            "min" | "max" => {
                let f = match (mnemonic, mods.take("relu")) {
                    ("min", false) => IntBin::Min,
                    (_, false) => IntBin::Max,
                    ("min", true) if t == IntTy::S32 => IntBin::MinRelu,
                    (_, true) if t == IntTy::S32 => IntBin::MaxRelu,
                    _ => return Err(unsupported("`.relu` on this type")),
                };
                self.int_bin(f, t, o)
            }
            "neg" => self.int_un(IntUn::Neg, t, o),
            "abs" => self.int_un(IntUn::Abs, t, o),
            other => Err(unsupported(format!("integer `{other}`"))),
        }
    }

    fn wide(&mut self, t: IntTy, o: &[Operand<'a>], add: bool) -> Decode<Op> {
        want(o, if add { 4 } else { 3 })?;
        let twice = match t.bits() {
            16 => IntTy::U32,
            32 => IntTy::U64,
            _ => return Err(unsupported("128-bit product")),
        };
        Ok(Op::MulWide {
            t,
            d: self.dst_int(twice, &o[0])?,
            a: self.src_int(t, &o[1])?,
            b: self.src_int(t, &o[2])?,
            add: if add {
                Some(self.src_int(twice, &o[3])?)
            } else {
                None
            },
        })
    }

    fn carry(
        &mut self,
        sub: bool,
        t: IntTy,
        carry_in: bool,
        carry_out: bool,
        o: &[Operand<'a>],
    ) -> Decode<Op> {
        want(o, 3)?;
        if t.bits() == 16 {
            return Err(unsupported("16-bit carry arithmetic"));
        }
        Ok(Op::AddCarry {
            sub,
            wide: t.bits() == 64,
            carry_in,
            carry_out,
            d: self.dst_int(t, &o[0])?,
            a: self.src_int(t, &o[1])?,
            b: self.src_int(t, &o[2])?,
        })
    }

    pub(super) fn integer(&mut self, mods: &mut Mods<'a>, o: &[Operand<'a>]) -> Decode<Op> {
        match mods.mnemonic {
            "and" => self.logic(mods, IntBin::And, BoolOp::And, o),
            "or" => self.logic(mods, IntBin::Or, BoolOp::Or, o),
            "xor" => self.logic(mods, IntBin::Xor, BoolOp::Xor, o),
            "not" => match mods.ty()? {
                Ty::Pred => {
                    want(o, 2)?;
                    Ok(Op::PredNot {
                        d: self.dst_pred(&o[0])?,
                        a: self.pred(&o[1])?,
                    })
                }
                ty => self.int_un(IntUn::Not, int_ty(ty)?, o),
            },
            "cnot" => {
                let t = int_ty(mods.ty()?)?;
                self.int_un(IntUn::Cnot, t, o)
            }
            "brev" => {
                let t = int_ty(mods.ty()?)?;
                self.int_un(IntUn::Brev, t, o)
            }
            "shl" | "shr" => {
                want(o, 3)?;
                let t = int_ty(mods.ty()?)?;
                let d = self.dst_int(t, &o[0])?;
                let (a, b) = (self.src_int(t, &o[1])?, self.src32(&o[2])?);
                Ok(if mods.mnemonic == "shl" {
                    Op::Shl { t, d, a, b }
                } else {
                    Op::Shr { t, d, a, b }
                })
            }
            "popc" | "clz" | "bfind" => {
                want(o, 2)?;
                let f = match (mods.mnemonic, mods.take("shiftamt")) {
                    ("popc", false) => BitCount::Popc,
                    ("clz", false) => BitCount::Clz,
                    ("bfind", false) => BitCount::Bfind,
                    ("bfind", true) => BitCount::BfindShift,
                    _ => return Err(unsupported("modifier `.shiftamt`")),
                };
                let t = int_ty(mods.ty()?)?;
                Ok(Op::BitCount {
                    f,
                    t,
                    d: self.dst32(&o[0])?,
                    a: self.src_int(t, &o[1])?,
                })
            }
            "bfe" | "bfi" => self.bit_field(mods, o),
            "addc" | "subc" => {
                let carry_out = mods.take("cc");
                let t = int_ty(mods.ty()?)?;
                self.carry(mods.mnemonic == "subc", t, true, carry_out, o)
            }
            _ => self.special32(mods, o),
        }
    }

    fn logic(
        &mut self,
        mods: &mut Mods<'a>,
        f: IntBin,
        p: BoolOp,
        o: &[Operand<'a>],
    ) -> Decode<Op> {
        match mods.ty()? {
            Ty::Pred => {
                want(o, 3)?;
                Ok(Op::PredBin {
                    f: p,
                    d: self.dst_pred(&o[0])?,
                    a: self.pred(&o[1])?,
                    b: self.pred(&o[2])?,
                })
            }
            ty => self.int_bin(f, int_ty(ty)?, o),
        }
    }

    fn bit_field(&mut self, mods: &mut Mods<'a>, o: &[Operand<'a>]) -> Decode<Op> {
        let ty = mods.ty()?;
        let t = int_ty(ty)?;
        if mods.mnemonic == "bfi" {
            want(o, 5)?;
            return Ok(Op::Bfi {
                wide: t.bits() == 64,
                d: self.dst_int(t, &o[0])?,
                a: self.src_int(t, &o[1])?,
                b: self.src_int(t, &o[2])?,
                pos: self.src32(&o[3])?,
                len: self.src32(&o[4])?,
            });
        }
        match t {
            IntTy::U32 => self.tern32(Tern32::BfeU, o),
            IntTy::S32 => self.tern32(Tern32::BfeS, o),
            IntTy::U64 | IntTy::S64 => {
                want(o, 4)?;
                Ok(Op::Bfe64 {
                    signed: t.signed(),
                    d: self.dst64(&o[0])?,
                    a: self.src64(&o[1])?,
                    pos: self.src32(&o[2])?,
                    len: self.src32(&o[3])?,
                })
            }
            _ => Err(unsupported("16-bit `bfe`")),
        }
    }

    /// 32-bit instructions of three sources.
    fn special32(&mut self, mods: &mut Mods<'a>, o: &[Operand<'a>]) -> Decode<Op> {
        let mut padded;
        let mut operands = o;
        let f = match mods.mnemonic {
            "shf" => {
                let left = mods.take("l");
                let wrap = mods.take("wrap");
                if !(left || mods.take("r")) || !(wrap || mods.take("clamp")) {
                    return Err(unsupported("this `shf`"));
                }
                match (left, wrap) {
                    (true, true) => Tern32::ShfLeftWrap,
                    (true, false) => Tern32::ShfLeftClamp,
                    (false, true) => Tern32::ShfRightWrap,
                    (false, false) => Tern32::ShfRightClamp,
                }
            }
            "lop3" => {
                want(o, 5)?;
                let Operand::Int(table) = o[4] else {
                    return Err(unsupported("`lop3` with a variable table"));
                };
                operands = &o[..4];
                Tern32::Lop3(table as u8)
            }
            "prmt" => Tern32::Prmt(
                mods.find(|m| {
                    Some(match m {
                        "f4e" => PrmtMode::F4e,
                        "b4e" => PrmtMode::B4e,
                        "rc8" => PrmtMode::Rc8,
                        "ecl" => PrmtMode::Ecl,
                        "ecr" => PrmtMode::Ecr,
                        "rc16" => PrmtMode::Rc16,
                        _ => return None,
                    })
                })
                .unwrap_or(PrmtMode::Default),
            ),
            "bmsk" => {
                // Two sources: pad with a third nobody reads.
                padded = o.to_vec();
                padded.push(Operand::Int(0));
                operands = &padded;
                if mods.take("clamp") {
                    Tern32::BmskClamp
                } else if mods.take("wrap") {
                    Tern32::BmskWrap
                } else {
                    return Err(unsupported("this `bmsk`"));
                }
            }
            "sad" | "mul24" | "mad24" => {
                let lo = mods.take("lo");
                let ty = mods.ty()?;
                let t = int_ty(ty)?;
                if t.bits() != 32 || (mods.mnemonic != "sad" && !lo) {
                    return Err(unsupported("this form"));
                }
                let f = match mods.mnemonic {
                    "sad" if t.signed() => Tern32::SadS,
                    "sad" => Tern32::SadU,
                    m => Tern32::Mul24Lo {
                        signed: t.signed(),
                        add: m == "mad24",
                    },
                };
                if mods.mnemonic == "mul24" {
                    padded = o.to_vec();
                    padded.push(Operand::Int(0));
                    operands = &padded;
                }
                return self.tern32(f, operands);
            }
            "dp4a" => {
                let (a, b) = (mods.ty()?, mods.ty()?);
                return self.tern32(
                    Tern32::Dp4a {
                        a_signed: a.is_signed(),
                        b_signed: b.is_signed(),
                    },
                    o,
                );
            }
            other => return Err(unsupported(format!("instruction `{other}`"))),
        };
        if mods.ty()?.bytes() != 4 {
            return Err(unsupported("this operand type"));
        }
        self.tern32(f, operands)
    }
}
