//! `cvt` (PTX ISA §9.7.9.21).

use super::builder::Builder;
use super::float::rounding;
use super::mods::Mods;
use super::{Decode, unsupported, want};
use crate::ir::{Cvt, CvtTy, FloatMods, Op, Round, Width};
use crate::ptx::ast::{Operand, Ty};

fn cvt_ty(ty: Ty) -> Decode<CvtTy> {
    Ok(match ty {
        Ty::F16 => CvtTy::F16,
        Ty::Bf16 => CvtTy::Bf16,
        Ty::Tf32 => CvtTy::Tf32,
        Ty::F32 => CvtTy::F32,
        Ty::F64 => CvtTy::F64,
        Ty::U8 | Ty::U16 | Ty::U32 | Ty::U64 | Ty::S8 | Ty::S16 | Ty::S32 | Ty::S64 => CvtTy::Int {
            bits: ty.bytes() as u32 * 8,
            signed: ty.is_signed(),
        },
        _ => return Err(unsupported("`cvt` of this type")),
    })
}

/// `.rni`, `.rzi`, `.rmi`, `.rpi`: round to an integral value.
fn integral_rounding(mods: &mut Mods<'_>) -> Option<Round> {
    mods.find(|m| {
        Some(match m {
            "rni" => Round::Nearest,
            "rzi" => Round::Zero,
            "rmi" => Round::Down,
            "rpi" => Round::Up,
            _ => return None,
        })
    })
}

impl<'a> Builder<'_, 'a> {
    pub(super) fn convert(&mut self, mods: &mut Mods<'a>, o: &[Operand<'a>]) -> Decode<Op> {
        let integral = integral_rounding(mods);
        let round = rounding(mods);
        let m = FloatMods {
            round: integral.or(round).unwrap_or(Round::Nearest),
            ftz: mods.take("ftz"),
            sat: mods.take("sat"),
            relu: mods.take("relu"),
        };
        let (to, from) = (mods.ty()?, mods.ty()?);
        if (to, from) == (Ty::F16x2, Ty::E4m3x2) {
            want(o, 2)?;
            if m.sat || m.ftz || integral.is_some() || round != Some(Round::Nearest) {
                return Err(unsupported("this `cvt` of e4m3x2"));
            }
            return Ok(Op::CvtCodes {
                relu: m.relu,
                d: self.dst32(&o[0])?,
                a: self.src32(&o[1])?,
            });
        }
        if let Ty::F16x2 | Ty::Bf16x2 = to {
            want(o, 3)?;
            if from != Ty::F32 || m.sat || m.ftz || integral.is_some() || round.is_none() {
                return Err(unsupported("this packing `cvt`"));
            }
            return Ok(Op::CvtPack {
                bf16: to == Ty::Bf16x2,
                m,
                d: self.dst32(&o[0])?,
                hi: self.src32(&o[1])?,
                lo: self.src32(&o[2])?,
            });
        }
        want(o, 2)?;
        let (to, from) = (cvt_ty(to)?, cvt_ty(from)?);
        if m.relu && !matches!(to, CvtTy::F16 | CvtTy::Bf16 | CvtTy::Tf32) {
            return Err(unsupported("modifier `.relu` on this type"));
        }
        if to.is_float() != from.is_float() && integral.or(round).is_none() {
            return Err(unsupported("no rounding mode"));
        }
        if (to == CvtTy::Tf32 && from != CvtTy::F32) || from == CvtTy::Tf32 {
            return Err(unsupported("this tf32 conversion"));
        }
        let src_width = from.width();
        let a = match self.width_of(&o[1])? {
            // A wider source register is allowed: its low bits are converted (§9.4.1).
            Some(Width::W64) if src_width == Width::W32 && !from.is_float() => {
                return Err(unsupported("`cvt` from a wider register"));
            }
            _ => self.src(src_width, &o[1])?,
        };
        let dst = self.width_of(&o[0])?.unwrap_or(to.width());
        if to.width() == Width::W64 && dst == Width::W32 {
            return Err(unsupported("`cvt` to a narrower register"));
        }
        Ok(Op::Cvt(Box::new(Cvt {
            from,
            to,
            mods: m,
            integral: integral.is_some(),
            dst,
            d: self.dst(dst, &o[0])?,
            a,
        })))
    }
}
