//! `mov`, packing and address-space conversion (PTX ISA §9.7.9.1–§9.7.9.7).

use super::builder::Builder;
use super::mods::Mods;
use super::{Decode, malformed, unsupported, want};
use crate::ir::{Dynamic, IntTy, Op, Width, Window};
use crate::ptx::ast::{Operand, Ty};

fn window(mods: &mut Mods<'_>) -> Decode<Window> {
    for (name, window) in [
        ("global", Window::Global),
        ("shared", Window::Shared),
        ("shared::cta", Window::Shared),
        ("shared::cluster", Window::SharedCluster),
        ("local", Window::Local),
        ("param", Window::Param),
        ("param::entry", Window::Param),
        ("const", Window::Const),
    ] {
        if mods.take(name) {
            return Ok(window);
        }
    }
    Err(unsupported("no state space"))
}

impl<'a> Builder<'_, 'a> {
    pub(super) fn moves(&mut self, mods: &mut Mods<'a>, o: &[Operand<'a>]) -> Decode<Op> {
        match mods.mnemonic {
            "mov" => self.mov(mods, o),
            "cvta" => self.cvta(mods, o),
            "isspacep" => {
                want(o, 2)?;
                Ok(Op::IsSpace {
                    space: window(mods)?,
                    d: self.dst_pred(&o[0])?,
                    a: self.src64(&o[1])?,
                })
            }
            "mapa" => {
                want(o, 3)?;
                let generic = !mods.take("shared::cluster");
                let wide = mods.ty()?.bytes() == 8;
                let width = if wide { Width::W64 } else { Width::W32 };
                Ok(Op::Mapa {
                    wide,
                    generic,
                    d: self.dst(width, &o[0])?,
                    a: self.src(width, &o[1])?,
                    rank: self.src32(&o[2])?,
                })
            }
            _ => {
                want(o, 2)?;
                let generic = !mods.take("shared::cluster");
                let wide = mods.ty()?.bytes() == 8;
                let width = if wide { Width::W64 } else { Width::W32 };
                if generic && !wide {
                    return Err(unsupported("a 32-bit generic address"));
                }
                Ok(Op::GetCtaRank {
                    wide,
                    generic,
                    d: self.dst32(&o[0])?,
                    a: self.src(width, &o[1])?,
                })
            }
        }
    }

    fn cvta(&mut self, mods: &mut Mods<'a>, o: &[Operand<'a>]) -> Decode<Op> {
        want(o, 2)?;
        let to_window = mods.take("to");
        let space = window(mods)?;
        if mods.ty()? != Ty::U64 {
            return Err(unsupported("32-bit `cvta`"));
        }
        // A parameter of an inlined function is local memory.
        let space = if space == Window::Param && !self.inlining.is_empty() {
            Window::Local
        } else {
            space
        };
        Ok(Op::Cvta {
            space,
            to_window,
            d: self.dst64(&o[0])?,
            a: self.src64(&o[1])?,
        })
    }

    fn mov(&mut self, mods: &mut Mods<'a>, o: &[Operand<'a>]) -> Decode<Op> {
        want(o, 2)?;
        let ty = mods.ty()?;
        if ty == Ty::Pred {
            return Ok(Op::MovPred {
                d: self.dst_pred(&o[0])?,
                a: self.pred(&o[1])?,
            });
        }
        match (&o[0], &o[1]) {
            (Operand::Vector(d), source) => self.split(ty, d, source),
            (_, Operand::Vector(a)) => self.join(ty, &o[0], a),
            (_, Operand::Name(name)) if dynamic(name).is_some() => {
                let (what, wide) = dynamic(name).ok_or_else(|| malformed("special register"))?;
                let width = if wide { Width::W64 } else { Width::W32 };
                Ok(Op::Read {
                    what,
                    wide,
                    d: self.dst(width, &o[0])?,
                })
            }
            _ => match ty.bytes() {
                8 => Ok(Op::Mov64 {
                    d: self.dst64(&o[0])?,
                    a: self.src64(&o[1])?,
                }),
                4 => Ok(Op::Mov32 {
                    d: self.dst32(&o[0])?,
                    a: self.src32(&o[1])?,
                }),
                2 => Ok(Op::Mov32 {
                    d: self.dst32(&o[0])?,
                    a: self.src16(&o[1])?,
                }),
                _ => Err(unsupported("`mov` of this type")),
            },
        }
    }

    fn split(&mut self, ty: Ty, d: &[Operand<'a>], source: &Operand<'a>) -> Decode<Op> {
        match (ty.bytes(), d) {
            (8, [lo, hi]) => Ok(Op::Split64 {
                lo: self.dst32(lo)?,
                hi: self.dst32(hi)?,
                a: self.src64(source)?,
            }),
            (4, [lo, hi]) => Ok(Op::Split32 {
                lo: self.dst32(lo)?,
                hi: self.dst32(hi)?,
                a: self.src32(source)?,
            }),
            (8, [d0, d1, d2, d3]) => Ok(Op::Split64x4 {
                d: Box::new([
                    self.dst32(d0)?,
                    self.dst32(d1)?,
                    self.dst32(d2)?,
                    self.dst32(d3)?,
                ]),
                a: self.src64(source)?,
            }),
            _ => Err(unsupported("this unpacking `mov`")),
        }
    }

    fn join(&mut self, ty: Ty, d: &Operand<'a>, a: &[Operand<'a>]) -> Decode<Op> {
        match (ty.bytes(), a) {
            (8, [lo, hi]) => Ok(Op::Join64 {
                d: self.dst64(d)?,
                lo: self.src32(lo)?,
                hi: self.src32(hi)?,
            }),
            (4, [lo, hi]) => Ok(Op::Join32 {
                d: self.dst32(d)?,
                lo: self.src_int(IntTy::U16, lo)?,
                hi: self.src_int(IntTy::U16, hi)?,
            }),
            (8, [a0, a1, a2, a3]) => Ok(Op::Join64x4 {
                d: self.dst64(d)?,
                a: Box::new([
                    self.src16(a0)?,
                    self.src16(a1)?,
                    self.src16(a2)?,
                    self.src16(a3)?,
                ]),
            }),
            _ => Err(unsupported("this packing `mov`")),
        }
    }
}

/// A special register that must be read when the instruction runs.
fn dynamic(name: &str) -> Option<(Dynamic, bool)> {
    Some(match name {
        "%clock" => (Dynamic::Clock32, false),
        "%clock64" => (Dynamic::Clock64, true),
        "%globaltimer" => (Dynamic::GlobalTimer, true),
        _ => return None,
    })
}
