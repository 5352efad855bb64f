//! Comparison and selection (PTX ISA §9.7.6, §9.7.7).

use super::builder::Builder;
use super::float::half_ty;
use super::integer::int_ty;
use super::mods::Mods;
use super::{Decode, malformed, unsupported, want};
use crate::ir::{BoolOp, FloatClass, FloatCmp, IntCmp, IntTy, Op, PRED_SINK, SetpDst, Width};
use crate::ptx::ast::{Operand, Ty};

/// Comparison spellings: float meaning, integer meaning, and whether it forces unsigned.
fn comparison(m: &str) -> Option<(Option<FloatCmp>, Option<IntCmp>, bool)> {
    use FloatCmp as F;
    use IntCmp as I;
    Some(match m {
        "eq" => (Some(F::Eq), Some(I::Eq), false),
        "ne" => (Some(F::Ne), Some(I::Ne), false),
        "lt" => (Some(F::Lt), Some(I::Lt), false),
        "le" => (Some(F::Le), Some(I::Le), false),
        "gt" => (Some(F::Gt), Some(I::Gt), false),
        "ge" => (Some(F::Ge), Some(I::Ge), false),
        "lo" => (None, Some(I::Lt), true),
        "ls" => (None, Some(I::Le), true),
        "hi" => (None, Some(I::Gt), true),
        "hs" => (None, Some(I::Ge), true),
        "equ" => (Some(F::Equ), None, false),
        "neu" => (Some(F::Neu), None, false),
        "ltu" => (Some(F::Ltu), None, false),
        "leu" => (Some(F::Leu), None, false),
        "gtu" => (Some(F::Gtu), None, false),
        "geu" => (Some(F::Geu), None, false),
        "num" => (Some(F::Num), None, false),
        "nan" => (Some(F::Nan), None, false),
        _ => return None,
    })
}

impl<'a> Builder<'_, 'a> {
    pub(super) fn compare(&mut self, mods: &mut Mods<'a>, o: &[Operand<'a>]) -> Decode<Op> {
        match mods.mnemonic {
            "setp" => self.setp(mods, o),
            "selp" => {
                want(o, 4)?;
                let ty = mods.ty()?;
                let width = if ty.bytes() == 8 {
                    Width::W64
                } else {
                    Width::W32
                };
                if ty.bytes() == 1 || ty == Ty::B128 {
                    return Err(unsupported("`selp` of this type"));
                }
                let d = self.dst(width, &o[0])?;
                let (a, b) = match ty.bytes() {
                    2 => (self.src16(&o[1])?, self.src16(&o[2])?),
                    _ => (self.src(width, &o[1])?, self.src(width, &o[2])?),
                };
                let p = self.pred(&o[3])?;
                Ok(match width {
                    Width::W64 => Op::Sel64 { d, a, b, p },
                    Width::W32 => Op::Sel32 { d, a, b, p },
                })
            }
            _ => self.testp(mods, o),
        }
    }

    fn setp(&mut self, mods: &mut Mods<'a>, o: &[Operand<'a>]) -> Decode<Op> {
        let Some((float, int, unsigned)) = mods.find(comparison) else {
            return Err(unsupported("this comparison"));
        };
        let combine = mods.find(|m| {
            Some(match m {
                "and" => BoolOp::And,
                "or" => BoolOp::Or,
                "xor" => BoolOp::Xor,
                _ => return None,
            })
        });
        let ftz = mods.take("ftz");
        let ty = mods.ty()?;
        want(o, if combine.is_some() { 4 } else { 3 })?;
        let (d, q) = match o[0] {
            Operand::Pair(d, q) => (self.pred_name(d, true)?, self.pred_name(q, true)?),
            ref single => (self.dst_pred(single)?, PRED_SINK),
        };
        let to = SetpDst {
            d,
            q,
            combine: match combine {
                Some(op) => Some((op, self.pred(&o[3])?)),
                None => None,
            },
        };
        let no = || unsupported("this comparison on this type");
        match ty {
            Ty::F32 => Ok(Op::SetpF32 {
                cmp: float.ok_or_else(no)?,
                ftz,
                a: self.src32(&o[1])?,
                b: self.src32(&o[2])?,
                to,
            }),
            Ty::F64 => Ok(Op::SetpF64 {
                cmp: float.ok_or_else(no)?,
                a: self.src64(&o[1])?,
                b: self.src64(&o[2])?,
                to,
            }),
            _ => {
                if let Some(t) = half_ty(ty) {
                    let packed = t.packed();
                    let source = if packed { Self::src32 } else { Self::src16 };
                    return Ok(Op::SetpHalf {
                        cmp: float.ok_or_else(no)?,
                        t,
                        ftz,
                        a: source(self, &o[1])?,
                        b: source(self, &o[2])?,
                        to,
                    });
                }
                if ftz {
                    return Err(unsupported("modifier `.ftz`"));
                }
                let t = match (int_ty(ty)?, unsigned) {
                    (IntTy::S16, true) => IntTy::U16,
                    (IntTy::S32, true) => IntTy::U32,
                    (IntTy::S64, true) => IntTy::U64,
                    (t, _) => t,
                };
                Ok(Op::SetpInt {
                    cmp: int.ok_or_else(no)?,
                    t,
                    a: self.src_int(t, &o[1])?,
                    b: self.src_int(t, &o[2])?,
                    to,
                })
            }
        }
    }

    fn testp(&mut self, mods: &mut Mods<'a>, o: &[Operand<'a>]) -> Decode<Op> {
        want(o, 2)?;
        let class = mods
            .find(|m| {
                Some(match m {
                    "finite" => FloatClass::Finite,
                    "infinite" => FloatClass::Infinite,
                    "number" => FloatClass::Number,
                    "notanumber" => FloatClass::NotANumber,
                    "normal" => FloatClass::Normal,
                    "subnormal" => FloatClass::Subnormal,
                    _ => return None,
                })
            })
            .ok_or_else(|| malformed("`testp` without a class"))?;
        let wide = match mods.ty()? {
            Ty::F32 => false,
            Ty::F64 => true,
            _ => return Err(unsupported("`testp` of this type")),
        };
        let width = if wide { Width::W64 } else { Width::W32 };
        Ok(Op::Testp {
            class,
            wide,
            d: self.dst_pred(&o[0])?,
            a: self.src(width, &o[1])?,
        })
    }
}
