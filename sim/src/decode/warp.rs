//! Warp-wide exchange (PTX ISA §9.7.9.6, §9.7.13.9–§9.7.13.14).

use super::builder::Builder;
use super::mods::Mods;
use super::{Decode, unsupported, want};
use crate::ir::{Dynamic, Op, PRED_SINK, ReduxOp, Reg, ShflMode, VoteMode, Width};
use crate::ptx::ast::{Operand, Ty};

impl<'a> Builder<'_, 'a> {
    /// `d` or `d|p`.
    fn dst_and_pred(&mut self, operand: &Operand<'a>) -> Decode<(Reg, Reg)> {
        match *operand {
            Operand::Pair(d, p) => {
                let d = if d == "_" {
                    Operand::Sink
                } else {
                    Operand::Name(d)
                };
                Ok((self.dst32(&d)?, self.pred_name(p, true)?))
            }
            ref single => Ok((self.dst32(single)?, PRED_SINK)),
        }
    }

    pub(super) fn warp_wide(&mut self, mods: &mut Mods<'a>, o: &[Operand<'a>]) -> Decode<Op> {
        if mods.mnemonic == "activemask" {
            want(o, 1)?;
            mods.ty()?;
            return Ok(Op::Read {
                what: Dynamic::ActiveMask,
                wide: false,
                d: self.dst32(&o[0])?,
            });
        }
        if !mods.take("sync") {
            return Err(unsupported("warp-wide instruction without `.sync`"));
        }
        match mods.mnemonic {
            "shfl" => self.shfl(mods, o),
            "vote" => self.vote(mods, o),
            "redux" => self.redux(mods, o),
            "elect" => {
                want(o, 2)?;
                let (d, p) = self.dst_and_pred(&o[0])?;
                Ok(Op::Elect {
                    d,
                    p,
                    mask: self.src32(&o[1])?,
                })
            }
            _ => {
                want(o, 3)?;
                let any = mods.take("any");
                if !any && !mods.take("all") {
                    return Err(unsupported("this `match`"));
                }
                let wide = mods.ty()?.bytes() == 8;
                let width = if wide { Width::W64 } else { Width::W32 };
                let (d, p) = self.dst_and_pred(&o[0])?;
                let a = self.src(width, &o[1])?;
                let mask = self.src32(&o[2])?;
                Ok(if any {
                    Op::MatchAny { wide, d, a, mask }
                } else {
                    Op::MatchAll {
                        wide,
                        d,
                        p,
                        a,
                        mask,
                    }
                })
            }
        }
    }

    fn shfl(&mut self, mods: &mut Mods<'a>, o: &[Operand<'a>]) -> Decode<Op> {
        want(o, 5)?;
        let mode = mods
            .find(|m| {
                Some(match m {
                    "up" => ShflMode::Up,
                    "down" => ShflMode::Down,
                    "bfly" => ShflMode::Bfly,
                    "idx" => ShflMode::Idx,
                    _ => return None,
                })
            })
            .ok_or_else(|| unsupported("this `shfl`"))?;
        if mods.ty()? != Ty::B32 {
            return Err(unsupported("`shfl` of this type"));
        }
        let (d, p) = self.dst_and_pred(&o[0])?;
        Ok(Op::Shfl {
            mode,
            d,
            p,
            a: self.src32(&o[1])?,
            b: self.src32(&o[2])?,
            c: self.src32(&o[3])?,
            mask: self.src32(&o[4])?,
        })
    }

    fn vote(&mut self, mods: &mut Mods<'a>, o: &[Operand<'a>]) -> Decode<Op> {
        want(o, 3)?;
        let mode = mods
            .find(|m| {
                Some(match m {
                    "all" => VoteMode::All,
                    "any" => VoteMode::Any,
                    "uni" => VoteMode::Uni,
                    "ballot" => VoteMode::Ballot,
                    _ => return None,
                })
            })
            .ok_or_else(|| unsupported("this `vote`"))?;
        mods.ty()?;
        let d = if mode == VoteMode::Ballot {
            self.dst32(&o[0])?
        } else {
            self.dst_pred(&o[0])?
        };
        Ok(Op::Vote {
            mode,
            d,
            a: self.pred(&o[1])?,
            mask: self.src32(&o[2])?,
        })
    }

    fn redux(&mut self, mods: &mut Mods<'a>, o: &[Operand<'a>]) -> Decode<Op> {
        want(o, 3)?;
        let name = mods.find(|m| {
            ["add", "min", "max", "and", "or", "xor"]
                .into_iter()
                .find(|&n| n == m)
        });
        let signed = match mods.ty()? {
            Ty::S32 => true,
            Ty::U32 | Ty::B32 => false,
            _ => return Err(unsupported("`redux` of this type")),
        };
        let f = match (name, signed) {
            (Some("add"), _) => ReduxOp::Add,
            (Some("min"), true) => ReduxOp::MinS,
            (Some("min"), false) => ReduxOp::MinU,
            (Some("max"), true) => ReduxOp::MaxS,
            (Some("max"), false) => ReduxOp::MaxU,
            (Some("and"), _) => ReduxOp::And,
            (Some("or"), _) => ReduxOp::Or,
            (Some("xor"), _) => ReduxOp::Xor,
            _ => return Err(unsupported("this `redux`")),
        };
        Ok(Op::Redux {
            f,
            d: self.dst32(&o[0])?,
            a: self.src32(&o[1])?,
            mask: self.src32(&o[2])?,
        })
    }
}
