//! Arithmetic mnemonics, routed by type; floating-point forms (PTX ISA §9.7.3–§9.7.5).

use super::builder::Builder;
use super::mods::Mods;
use super::{Decode, unsupported, want};
use crate::ir::{FloatMods, FloatOp, HalfTy, Op, Reg, Round, Width};
use crate::ptx::ast::{Operand, Ty};

/// A rounding modifier, if there is one.
pub(super) fn rounding(mods: &mut Mods<'_>) -> Option<Round> {
    mods.find(|m| {
        Some(match m {
            "rn" => Round::Nearest,
            "rna" => Round::NearestAway,
            "rz" => Round::Zero,
            "rm" => Round::Down,
            "rp" => Round::Up,
            _ => return None,
        })
    })
}

/// The 16-bit floating format a type names.
pub(super) fn half_ty(ty: Ty) -> Option<HalfTy> {
    Some(match ty {
        Ty::F16 => HalfTy::F16,
        Ty::F16x2 => HalfTy::F16x2,
        Ty::Bf16 => HalfTy::Bf16,
        Ty::Bf16x2 => HalfTy::Bf16x2,
        _ => return None,
    })
}

impl<'a> Builder<'_, 'a> {
    pub(super) fn arithmetic(&mut self, mods: &mut Mods<'a>, o: &[Operand<'a>]) -> Decode<Op> {
        let ty = mods.ty()?;
        if matches!(ty, Ty::F32 | Ty::F64) || half_ty(ty).is_some() {
            return self.float(mods, ty, o);
        }
        self.int_arithmetic(mods, ty, o)
    }

    fn float(&mut self, mods: &mut Mods<'a>, ty: Ty, o: &[Operand<'a>]) -> Decode<Op> {
        let round = rounding(mods);
        let approx = mods.take("approx") || mods.take("full");
        let nan = mods.take("NaN");
        let m = FloatMods {
            round: round.unwrap_or(Round::Nearest),
            ftz: mods.take("ftz"),
            sat: mods.take("sat"),
            relu: mods.take("relu"),
        };
        let f = match (mods.mnemonic, approx) {
            ("add", false) => FloatOp::Add,
            ("sub", false) => FloatOp::Sub,
            ("mul", false) => FloatOp::Mul,
            ("fma" | "mad", false) => FloatOp::Fma,
            ("div", false) => FloatOp::Div,
            ("div", true) => FloatOp::DivApprox,
            ("min", false) if nan => FloatOp::MinNan,
            ("min", false) => FloatOp::Min,
            ("max", false) if nan => FloatOp::MaxNan,
            ("max", false) => FloatOp::Max,
            ("neg", false) => FloatOp::Neg,
            ("abs", false) => FloatOp::Abs,
            ("copysign", false) => FloatOp::Copysign,
            ("rcp", false) => FloatOp::Rcp,
            ("rcp", true) => FloatOp::RcpApprox,
            ("sqrt", false) => FloatOp::Sqrt,
            ("sqrt", true) => FloatOp::SqrtApprox,
            ("rsqrt", true) => FloatOp::RsqrtApprox,
            ("ex2", true) => FloatOp::Ex2Approx,
            ("lg2", true) => FloatOp::Lg2Approx,
            ("sin", true) => FloatOp::SinApprox,
            ("cos", true) => FloatOp::CosApprox,
            ("tanh", true) => FloatOp::TanhApprox,
            _ => return Err(unsupported("this form")),
        };
        if nan && !matches!(f, FloatOp::MinNan | FloatOp::MaxNan) {
            return Err(unsupported("modifier `.NaN`"));
        }
        if matches!(
            f,
            FloatOp::Fma | FloatOp::Div | FloatOp::Rcp | FloatOp::Sqrt
        ) && round.is_none()
        {
            return Err(unsupported("no rounding mode"));
        }
        match (ty, half_ty(ty)) {
            (Ty::F64, _) => self.float64(f, m, approx, o),
            (_, Some(t)) => self.half_op(f, t, m, o),
            _ => {
                let [d, a, b, c] = self.float_operands(f, Width::W32, false, o)?;
                if m.relu {
                    return Err(unsupported("modifier `.relu` on f32"));
                }
                Ok(if m == FloatMods::PLAIN {
                    Op::F32 { f, d, a, b, c }
                } else {
                    Op::F32Mod { f, m, d, a, b, c }
                })
            }
        }
    }

    /// Destination and up to three sources; absent ones repeat the last.
    fn float_operands(
        &mut self,
        f: FloatOp,
        width: Width,
        half: bool,
        o: &[Operand<'a>],
    ) -> Decode<[Reg; 4]> {
        want(o, 1 + f.arity())?;
        let mut regs = [self.dst(width, &o[0])?; 4];
        for i in 1..4 {
            regs[i] = match o.get(i) {
                Some(operand) if half => self.src16(operand)?,
                Some(operand) => self.src(width, operand)?,
                None => regs[i - 1],
            };
        }
        Ok(regs)
    }

    fn float64(&mut self, f: FloatOp, m: FloatMods, approx: bool, o: &[Operand<'a>]) -> Decode<Op> {
        let plain = FloatMods {
            round: m.round,
            ..FloatMods::PLAIN
        };
        if approx || m != plain || m.round != Round::Nearest {
            return Err(unsupported("this form on f64"));
        }
        let [d, a, b, c] = self.float_operands(f, Width::W64, false, o)?;
        Ok(Op::F64 { f, d, a, b, c })
    }

    fn half_op(&mut self, f: FloatOp, t: HalfTy, m: FloatMods, o: &[Operand<'a>]) -> Decode<Op> {
        if m.round != Round::Nearest
            || matches!(
                f,
                FloatOp::Div
                    | FloatOp::DivApprox
                    | FloatOp::Rcp
                    | FloatOp::RcpApprox
                    | FloatOp::Sqrt
                    | FloatOp::SqrtApprox
                    | FloatOp::RsqrtApprox
                    | FloatOp::Lg2Approx
                    | FloatOp::SinApprox
                    | FloatOp::CosApprox
                    | FloatOp::Copysign
            )
        {
            return Err(unsupported("this form on a 16-bit type"));
        }
        let [d, a, b, c] = self.float_operands(f, Width::W32, !t.packed(), o)?;
        Ok(Op::Half {
            f,
            t,
            m,
            d,
            a,
            b,
            c,
        })
    }
}
