//! Barriers, fences and mbarriers (PTX ISA §9.7.13).

use super::builder::Builder;
use super::memory::{scope, space};
use super::mods::Mods;
use super::{Decode, unsupported, want};
use crate::ir::{
    Barrier, BarrierMode, ClusterBarrier, Fence, MbarrierKind, MbarrierOp, Op, Pred, SINK, Scope,
    Space,
};
use crate::ptx::ast::Operand;

impl<'a> Builder<'_, 'a> {
    pub(super) fn barriers(&mut self, mods: &mut Mods<'a>, o: &[Operand<'a>]) -> Decode<Op> {
        let mnemonic = mods.mnemonic;
        match mnemonic {
            "bar" if mods.take("warp") => {
                want(o, 1)?;
                if !mods.take("sync") {
                    return Err(unsupported("this `bar.warp`"));
                }
                Ok(Op::BarWarp {
                    mask: self.src32(&o[0])?,
                })
            }
            "barrier" if mods.take("cluster") => {
                want(o, 0)?;
                let what = if mods.take("arrive") {
                    let relaxed = mods.take("relaxed");
                    mods.take("release");
                    ClusterBarrier::Arrive { release: !relaxed }
                } else if mods.take("wait") {
                    mods.take("acquire");
                    ClusterBarrier::Wait { acquire: true }
                } else {
                    return Err(unsupported("this `barrier.cluster`"));
                };
                Ok(Op::ClusterBarrier {
                    what,
                    aligned: mods.take("aligned"),
                })
            }
            "bar" | "barrier" => self.cta_barrier(mods, o),
            "membar" => {
                if mods.take("proxy") {
                    return Err(unsupported("`membar.proxy`"));
                }
                let at = if mods.take("gl") {
                    Some(Scope::Gpu)
                } else {
                    scope(mods)
                };
                match at {
                    Some(scope) => Ok(Op::Fence(Fence::Memory(scope))),
                    None => Err(unsupported("this `membar`")),
                }
            }
            "fence" => Self::fence(mods),
            _ => self.mbarrier(mods, o),
        }
    }

    fn cta_barrier(&mut self, mods: &mut Mods<'a>, o: &[Operand<'a>]) -> Decode<Op> {
        mods.take("cta");
        let aligned = mods.take("aligned") || mods.mnemonic == "bar";
        let mode = if mods.take("sync") {
            BarrierMode::Sync
        } else if mods.take("arrive") {
            BarrierMode::Arrive
        } else if mods.take("red") {
            let mode = if mods.take("popc") {
                BarrierMode::RedPopc
            } else if mods.take("and") {
                BarrierMode::RedAnd
            } else if mods.take("or") {
                BarrierMode::RedOr
            } else {
                return Err(unsupported("this reducing barrier"));
            };
            mods.ty()?;
            mode
        } else {
            return Err(unsupported("this barrier"));
        };
        let reduces = !matches!(mode, BarrierMode::Sync | BarrierMode::Arrive);
        let (d, p, o) = match (reduces, o) {
            (true, [d, middle @ .., p]) => {
                let d = if mode == BarrierMode::RedPopc {
                    self.dst32(d)?
                } else {
                    self.dst_pred(d)?
                };
                (d, self.pred(p)?, middle)
            }
            _ => (SINK, Pred::TRUE, o),
        };
        let (id, count) = match o {
            [id] if mode != BarrierMode::Arrive => (self.src32(id)?, None),
            [id, count] => (self.src32(id)?, Some(self.src32(count)?)),
            _ => return Err(unsupported("this operand list")),
        };
        Ok(Op::Barrier(Box::new(Barrier {
            mode,
            aligned,
            id,
            count,
            d,
            p,
        })))
    }

    fn fence(mods: &mut Mods<'a>) -> Decode<Op> {
        if mods.take("mbarrier_init") {
            return if mods.take("release") && mods.take("cluster") {
                Ok(Op::Fence(Fence::MbarrierInit))
            } else {
                Err(unsupported("this `fence.mbarrier_init`"))
            };
        }
        if mods.take("proxy") {
            if mods.take("alias") {
                return Ok(Op::Fence(Fence::ProxyOther));
            }
            if !mods.take("async") {
                return Err(unsupported("this `fence.proxy`"));
            }
            let (shared, global) = match space(mods) {
                Space::Generic => (true, true),
                Space::Global => (false, true),
                Space::Shared | Space::SharedCluster => (true, false),
                _ => return Err(unsupported("this `fence.proxy.async`")),
            };
            return Ok(Op::Fence(Fence::ProxyAsync { shared, global }));
        }
        // Without a qualifier the fence is `.acq_rel`; the weaker ones are treated as that, too.
        for order in ["acq_rel", "sc", "acquire", "release"] {
            mods.take(order);
        }
        match scope(mods) {
            Some(scope) => Ok(Op::Fence(Fence::Memory(scope))),
            None => Err(unsupported("this `fence`")),
        }
    }

    fn mbarrier(&mut self, mods: &mut Mods<'a>, o: &[Operand<'a>]) -> Decode<Op> {
        let relaxed = mods.take("relaxed");
        let release = !relaxed;
        mods.take("release");
        mods.take("acquire");
        // PTX ISA §9.7.13.15.13 and .16: without a scope, `.cta`.
        let scope = scope(mods).unwrap_or(Scope::Cta);
        let place = space(mods);
        if !matches!(place, Space::Generic | Space::Shared | Space::SharedCluster) {
            return Err(unsupported("mbarrier outside shared memory"));
        }
        mods.ty()?;
        let (kind, address) = if mods.take("init") {
            want(o, 2)?;
            (
                MbarrierKind::Init {
                    count: self.src32(&o[1])?,
                },
                &o[0],
            )
        } else if mods.take("inval") {
            want(o, 1)?;
            (MbarrierKind::Inval, &o[0])
        } else if mods.take("pending_count") {
            want(o, 2)?;
            let kind = MbarrierKind::PendingCount {
                d: self.dst32(&o[0])?,
                state: self.src64(&o[1])?,
            };
            // No barrier is touched: any address stands in.
            return self.mbarrier_op(kind, None, (release, scope), place);
        } else if mods.take("arrive") {
            self.arrive(mods, o, false)?
        } else if mods.take("arrive_drop") {
            self.arrive(mods, o, true)?
        } else if mods.take("expect_tx") {
            want(o, 2)?;
            (
                MbarrierKind::ExpectTx {
                    bytes: self.src32(&o[1])?,
                },
                &o[0],
            )
        } else if mods.take("complete_tx") {
            want(o, 2)?;
            (
                MbarrierKind::CompleteTx {
                    bytes: self.src32(&o[1])?,
                },
                &o[0],
            )
        } else {
            // PTX ISA §9.7.13.15.16: only `.shared::cta`.
            if place == Space::SharedCluster {
                return Err(unsupported("a wait for another CTA's mbarrier"));
            }
            let blocking = mods.take("try_wait");
            if !blocking && !mods.take("test_wait") {
                return Err(unsupported("this `mbarrier`"));
            }
            let parity = mods.take("parity");
            match (blocking, o.len()) {
                (_, 3) | (true, 4) => {}
                _ => return Err(unsupported("this operand list")),
            }
            if let Some(hint) = o.get(3) {
                self.src32(hint)?;
            }
            let state = if parity {
                self.src32(&o[2])?
            } else {
                self.src64(&o[2])?
            };
            (
                MbarrierKind::Wait {
                    d: self.dst_pred(&o[0])?,
                    state,
                    parity,
                    acquire: !relaxed,
                },
                &o[1],
            )
        };
        self.mbarrier_op(kind, Some(address), (release, scope), place)
    }

    fn arrive<'o>(
        &mut self,
        mods: &mut Mods<'a>,
        o: &'o [Operand<'a>],
        drop: bool,
    ) -> Decode<(MbarrierKind, &'o Operand<'a>)> {
        let expect = mods.take("expect_tx");
        // `.noComplete` promises the arrival does not end the phase; the count is then given.
        mods.take("noComplete");
        // `mbarrier.arrive [a]` without a destination is the sink form.
        let (state, rest) = match o {
            [Operand::Memory(..), ..] => (None, o),
            [Operand::Sink, rest @ ..] => (None, rest),
            [state, rest @ ..] => (Some(self.dst64(state)?), rest),
            [] => return Err(unsupported("this operand list")),
        };
        let (address, argument) = match rest {
            [address] if !expect => (address, None),
            [address, argument] => (address, Some(self.src32(argument)?)),
            _ => return Err(unsupported("this operand list")),
        };
        let (count, expect_tx) = if expect {
            (None, argument)
        } else {
            (argument, None)
        };
        let kind = MbarrierKind::Arrive {
            count,
            expect_tx,
            drop,
            state,
        };
        Ok((kind, address))
    }

    pub(super) fn mbarrier_op(
        &mut self,
        kind: MbarrierKind,
        address: Option<&Operand<'a>>,
        (release, scope): (bool, Scope),
        place: Space,
    ) -> Decode<Op> {
        let addr = match address {
            Some(operand) => {
                let (addr, symbol) = self.address(operand)?;
                self.settle_space(place, symbol)?;
                addr
            }
            None => crate::ir::Addr {
                base: self.const64(0),
                wide: true,
                offset: 0,
            },
        };
        Ok(Op::Mbarrier(Box::new(MbarrierOp {
            kind,
            addr,
            cluster: place == Space::SharedCluster,
            generic: place == Space::Generic,
            release,
            scope,
        })))
    }
}
