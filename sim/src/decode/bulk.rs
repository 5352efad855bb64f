//! Asynchronous copies (PTX ISA §9.7.9.24–§9.7.9.27).

use super::builder::Builder;
use super::memory::{cache_hints, rmw_op, rmw_type, space, without_policy};
use super::mods::Mods;
use super::{Decode, malformed, unsupported, want};
use crate::ir::{Addr, BulkOp, CpAsync, MbarrierKind, Op, Reg, RmwOp, RmwTy, Scope, Space};
use crate::ptx::ast::{Operand, Ty};

fn constant(operand: &Operand<'_>) -> Decode<u32> {
    match operand {
        Operand::Int(value) => {
            u32::try_from(*value).map_err(|_| malformed("the count does not fit 32 bits"))
        }
        _ => Err(malformed("expected an integer constant")),
    }
}

/// The function of a bulk reduction.
fn reduction(mods: &mut Mods<'_>) -> Decode<RmwOp> {
    mods.find(rmw_op)
        .filter(|f| !matches!(f, RmwOp::Exch | RmwOp::Cas))
        .ok_or_else(|| unsupported("this bulk reduction"))
}

impl<'a> Builder<'_, 'a> {
    pub(super) fn copies(&mut self, mods: &mut Mods<'a>, o: &[Operand<'a>]) -> Decode<Op> {
        let reduce = mods.take("reduce");
        if !mods.take("async") {
            return Err(unsupported("this `cp`"));
        }
        if mods.take("bulk") {
            return self.bulk(mods, o, reduce);
        }
        if mods.take("commit_group") {
            want(o, 0)?;
            return Ok(Op::CpAsyncCommit);
        }
        if mods.take("wait_all") {
            // Commits what is outstanding and waits for everything.
            want(o, 0)?;
            return Ok(Op::CpAsyncWait {
                pending: 0,
                all: true,
            });
        }
        if mods.take("wait_group") {
            want(o, 1)?;
            return Ok(Op::CpAsyncWait {
                pending: constant(&o[0])?,
                all: false,
            });
        }
        if mods.take("mbarrier") {
            if !mods.take("arrive") {
                return Err(unsupported("this `cp.async.mbarrier`"));
            }
            want(o, 1)?;
            let noinc = mods.take("noinc");
            let place = space(mods);
            mods.ty()?;
            return self.mbarrier_op(
                MbarrierKind::CpAsyncArrive { noinc },
                Some(&o[0]),
                (true, Scope::Cta),
                place,
            );
        }
        self.cp_async(mods, o)
    }

    fn cp_async(&mut self, mods: &mut Mods<'a>, o: &[Operand<'a>]) -> Decode<Op> {
        let shared = mods.take("shared") || mods.take("shared::cta");
        if !shared || !mods.take("global") {
            return Err(unsupported("`cp.async` other than global → shared"));
        }
        let cg = mods.take("cg");
        let policy = cache_hints(mods);
        let o = without_policy(policy, o)?;
        if o.len() < 3 || o.len() > 4 {
            return Err(malformed("expected 3 or 4 operands"));
        }
        let bytes = constant(&o[2])?;
        if !(bytes == 16 || (!cg && (bytes == 4 || bytes == 8))) {
            return Err(malformed(format!("`cp.async` cannot copy {bytes} bytes")));
        }
        let (dst, src) = (self.address(&o[0])?.0, self.address(&o[1])?.0);
        let (mut src_bytes, mut ignore) = (None, None);
        if let Some(last) = o.get(3) {
            let predicate = match last {
                Operand::Not(_) => true,
                Operand::Name(name) => self.pred_name(name, false).is_ok(),
                _ => false,
            };
            if predicate {
                ignore = Some(self.pred(last)?);
            } else {
                src_bytes = Some(self.src32(last)?);
            }
        }
        Ok(Op::CpAsync(Box::new(CpAsync {
            dst,
            src,
            bytes,
            src_bytes,
            ignore,
        })))
    }

    /// `[map, {x, y, …}]`.
    fn tensor_operand(&mut self, operand: &Operand<'a>, dims: usize) -> Decode<(Addr, Box<[Reg]>)> {
        let Operand::Memory(base, offset, rest) = operand else {
            return Err(malformed("expected `[tensor map, {coordinates}]`"));
        };
        let [Operand::Vector(coords)] = &rest[..] else {
            return Err(malformed("expected `[tensor map, {coordinates}]`"));
        };
        if coords.len() != dims {
            return Err(malformed(format!("expected {dims} coordinates")));
        }
        let map = self.address_of(base, *offset)?.0;
        let coords = coords
            .iter()
            .map(|c| self.src32(c))
            .collect::<Decode<_>>()?;
        Ok((map, coords))
    }

    fn bulk(&mut self, mods: &mut Mods<'a>, o: &[Operand<'a>], reduce: bool) -> Decode<Op> {
        if mods.take("commit_group") {
            want(o, 0)?;
            return Ok(bulk(BulkOp::Commit));
        }
        if mods.take("wait_group") {
            want(o, 1)?;
            return Ok(bulk(BulkOp::Wait {
                pending: constant(&o[0])?,
                read_only: mods.take("read"),
            }));
        }
        let prefetch = mods.take("prefetch");
        let policy = cache_hints(mods);
        let o = without_policy(policy, o)?;
        let dims = if mods.take("tensor") {
            let dims = mods.find(|m| m.strip_suffix('d')?.parse::<usize>().ok());
            Some(
                dims.filter(|d| (1..=5).contains(d))
                    .ok_or_else(|| unsupported("tensor dimensionality other than 1d to 5d"))?,
            )
        } else {
            None
        };
        if prefetch {
            mods.take("L2");
            mods.take("global");
            mods.take("tile");
            return match dims {
                Some(dims) => {
                    want(o, 1)?;
                    let map = self.tensor_operand(&o[0], dims)?.0;
                    Ok(bulk(BulkOp::PrefetchTensor { map }))
                }
                None => Ok(bulk(BulkOp::Prefetch)),
            };
        }
        let multicast = mods.take("multicast::cluster");
        let load = mods.take("mbarrier::complete_tx::bytes");
        let store = mods.take("bulk_group");
        let (to, from) = (space(mods), space(mods));
        let own = to == Space::Shared;
        let to_shared = own || to == Space::SharedCluster;
        if own && multicast {
            return Err(unsupported("a multicast to `.shared::cta`"));
        }
        match (dims, load, store) {
            (Some(dims), true, false) if to_shared && from == Space::Global && !reduce => {
                mods.take("tile");
                want(o, 3 + usize::from(multicast))?;
                let dst = self.address(&o[0])?.0;
                let (map, coords) = self.tensor_operand(&o[1], dims)?;
                Ok(bulk(BulkOp::TensorLoad {
                    own,
                    dst,
                    map,
                    coords,
                    mbar: self.address(&o[2])?.0,
                    multicast: if multicast {
                        Some(self.src16(&o[3])?)
                    } else {
                        None
                    },
                }))
            }
            (Some(dims), false, true) if to == Space::Global && from == Space::Shared => {
                mods.take("tile");
                want(o, 2)?;
                let reduce = if reduce { Some(reduction(mods)?) } else { None };
                let (map, coords) = self.tensor_operand(&o[0], dims)?;
                let src = self.address(&o[1])?.0;
                Ok(bulk(BulkOp::TensorStore {
                    map,
                    coords,
                    src,
                    reduce,
                }))
            }
            (None, true, false) if to_shared && !reduce => {
                want(o, 4 + usize::from(multicast))?;
                let (dst, src) = (self.address(&o[0])?.0, self.address(&o[1])?.0);
                let bytes = self.src32(&o[2])?;
                let mbar = self.address(&o[3])?.0;
                match from {
                    Space::Global => Ok(bulk(BulkOp::Load {
                        own,
                        dst,
                        src,
                        bytes,
                        mbar,
                        multicast: if multicast {
                            Some(self.src16(&o[4])?)
                        } else {
                            None
                        },
                    })),
                    Space::Shared if !multicast && to == Space::SharedCluster => {
                        Ok(bulk(BulkOp::SharedToCluster {
                            dst,
                            src,
                            bytes,
                            mbar,
                        }))
                    }
                    _ => Err(unsupported("this bulk copy")),
                }
            }
            (None, false, true) if to == Space::Global && from == Space::Shared => {
                want(o, 3)?;
                let reduce = if reduce {
                    let f = reduction(mods)?;
                    let noftz = mods.take("noftz");
                    Some((f, bulk_type(f, mods.ty()?, noftz)?))
                } else {
                    None
                };
                Ok(bulk(BulkOp::Store {
                    dst: self.address(&o[0])?.0,
                    src: self.address(&o[1])?.0,
                    bytes: self.src32(&o[2])?,
                    reduce,
                }))
            }
            _ => Err(unsupported("this bulk copy")),
        }
    }
}

fn bulk(op: BulkOp) -> Op {
    Op::Bulk(Box::new(op))
}

/// The type of a bulk reduction to global memory, where there is one (PTX ISA §9.7.9.25.4.2).
fn bulk_type(f: RmwOp, ty: Ty, noftz: bool) -> Decode<RmwTy> {
    let half = matches!(ty, Ty::F16 | Ty::Bf16);
    let integer = matches!(ty, Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64);
    let known = match f {
        RmwOp::Add => (integer && ty != Ty::S64) || half || matches!(ty, Ty::F32 | Ty::F64),
        RmwOp::Min | RmwOp::Max => integer || half,
        RmwOp::Inc | RmwOp::Dec => ty == Ty::U32,
        _ => matches!(ty, Ty::B32 | Ty::B64),
    };
    if !known {
        return Err(unsupported("bulk reduction of this type"));
    }
    if noftz != (half && f == RmwOp::Add) {
        return Err(malformed(
            "`.noftz` belongs to bulk additions of 16-bit floats, and only there",
        ));
    }
    rmw_type(ty).ok_or_else(|| unsupported("bulk reduction of this type"))
}
