//! Which registers an instruction reads and writes.

use super::{
    Addr, BarrierMode, BulkOp, CvtTy, IntTy, LdSt, MbarrierKind, MbarrierOp, Op, PRED_SINK, Pred,
    Reg, SINK, SetpDst, Slot, VoteMode, WgmmaA, Width,
};

/// A register, by the file it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    R32(Reg),
    R64(Reg),
    Pred(Reg),
    /// The carry flag of `add.cc` and its like.
    Carry,
}

impl Place {
    fn sized(wide: bool, reg: Reg) -> Self {
        if wide { Self::R64(reg) } else { Self::R32(reg) }
    }

    fn is_sink(self) -> bool {
        matches!(
            self,
            Self::R32(SINK) | Self::R64(SINK) | Self::Pred(PRED_SINK)
        )
    }
}

/// Registers of one operation; its guard is not among them.
#[derive(Clone, Debug, Default)]
pub struct Operands {
    pub reads: Vec<Place>,
    pub writes: Vec<Place>,
}

impl Operands {
    /// The registers of `op`.
    pub fn of(op: &Op) -> Self {
        let mut operands = Self::default();
        operands.add(op);
        operands.writes.retain(|place| !place.is_sink());
        operands
    }

    fn r32(&mut self, regs: &[Reg]) -> &mut Self {
        self.reads.extend(regs.iter().map(|&r| Place::R32(r)));
        self
    }

    fn w32(&mut self, regs: &[Reg]) -> &mut Self {
        self.writes.extend(regs.iter().map(|&r| Place::R32(r)));
        self
    }

    fn r64(&mut self, regs: &[Reg]) -> &mut Self {
        self.reads.extend(regs.iter().map(|&r| Place::R64(r)));
        self
    }

    fn w64(&mut self, regs: &[Reg]) -> &mut Self {
        self.writes.extend(regs.iter().map(|&r| Place::R64(r)));
        self
    }

    fn rp(&mut self, preds: &[Pred]) -> &mut Self {
        self.reads.extend(preds.iter().map(|p| Place::Pred(p.reg)));
        self
    }

    fn wp(&mut self, preds: &[Reg]) -> &mut Self {
        self.writes.extend(preds.iter().map(|&p| Place::Pred(p)));
        self
    }

    /// Registers of one class.
    fn sized(&mut self, wide: bool, writes: &[Reg], reads: &[Reg]) -> &mut Self {
        if wide {
            self.w64(writes).r64(reads)
        } else {
            self.w32(writes).r32(reads)
        }
    }

    fn typed(&mut self, t: IntTy, writes: &[Reg], reads: &[Reg]) -> &mut Self {
        self.sized(t.width() == Width::W64, writes, reads)
    }

    fn setp(&mut self, to: &SetpDst) -> &mut Self {
        if let Some((_, with)) = to.combine {
            self.rp(&[with]);
        }
        self.wp(&[to.d, to.q])
    }

    fn slots(&mut self, slots: &[Slot], write: bool) {
        let places = slots.iter().map(|s| Place::sized(s.wide, s.reg));
        if write {
            self.writes.extend(places);
        } else {
            self.reads.extend(places);
        }
    }

    fn addr(&mut self, addr: &Addr) -> &mut Self {
        self.reads.push(Place::sized(addr.wide, addr.base));
        self
    }

    fn access(&mut self, op: &LdSt, load: bool) {
        self.addr(&op.addr);
        self.slots(&op.slots, load);
    }

    fn add(&mut self, op: &Op) {
        match op {
            Op::Mov32 { d, a } => {
                self.w32(&[*d]).r32(&[*a]);
            }
            Op::Mov64 { d, a } | Op::Cvta { d, a, .. } => {
                self.w64(&[*d]).r64(&[*a]);
            }
            Op::MovPred { d, a } | Op::PredNot { d, a } => {
                self.wp(&[*d]).rp(&[*a]);
            }
            Op::PredBin { d, a, b, .. } => {
                self.wp(&[*d]).rp(&[*a, *b]);
            }
            Op::Read { d, wide, .. } => {
                self.sized(*wide, &[*d], &[]);
            }
            Op::IntBin { t, d, a, b, .. } => {
                self.typed(*t, &[*d], &[*a, *b]);
            }
            Op::IntUn { t, d, a, .. } => {
                self.typed(*t, &[*d], &[*a]);
            }
            Op::BitCount { t, d, a, .. } => {
                self.w32(&[*d]).typed(*t, &[], &[*a]);
            }
            Op::Shl { t, d, a, b } | Op::Shr { t, d, a, b } => {
                self.r32(&[*b]).typed(*t, &[*d], &[*a]);
            }
            Op::Mad { t, d, a, b, c, .. } => {
                self.typed(*t, &[*d], &[*a, *b, *c]);
            }
            Op::MulWide { t, d, a, b, add } => {
                self.r32(&[*a, *b]);
                self.sized(t.bits() == 32, &[*d], add.as_slice());
            }
            Op::Tern32 { d, a, b, c, .. }
            | Op::F32 { d, a, b, c, .. }
            | Op::F32Mod { d, a, b, c, .. }
            | Op::Half { d, a, b, c, .. } => {
                self.w32(&[*d]).r32(&[*a, *b, *c]);
            }
            Op::F64 { d, a, b, c, .. } => {
                self.w64(&[*d]).r64(&[*a, *b, *c]);
            }
            Op::Bfe64 { d, a, pos, len, .. } => {
                self.w64(&[*d]).r64(&[*a]).r32(&[*pos, *len]);
            }
            Op::Bfi {
                wide,
                d,
                a,
                b,
                pos,
                len,
            } => {
                self.r32(&[*pos, *len]).sized(*wide, &[*d], &[*a, *b]);
            }
            Op::AddCarry {
                wide,
                carry_in,
                carry_out,
                d,
                a,
                b,
                ..
            } => {
                self.sized(*wide, &[*d], &[*a, *b]);
                self.reads.extend(carry_in.then_some(Place::Carry));
                self.writes.extend(carry_out.then_some(Place::Carry));
            }
            Op::Sel32 { d, a, b, p } => {
                self.w32(&[*d]).r32(&[*a, *b]).rp(&[*p]);
            }
            Op::Sel64 { d, a, b, p } => {
                self.w64(&[*d]).r64(&[*a, *b]).rp(&[*p]);
            }
            Op::SetpInt { t, a, b, to, .. } => {
                self.typed(*t, &[], &[*a, *b]).setp(to);
            }
            Op::SetpF32 { a, b, to, .. } | Op::SetpHalf { a, b, to, .. } => {
                self.r32(&[*a, *b]).setp(to);
            }
            Op::SetpF64 { a, b, to, .. } => {
                self.r64(&[*a, *b]).setp(to);
            }
            Op::Testp { wide, d, a, .. } => {
                self.wp(&[*d]).sized(*wide, &[], &[*a]);
            }
            Op::Cvt(c) => {
                let from_wide = CvtTy::width(c.from) == Width::W64;
                self.sized(c.dst == Width::W64, &[c.d], &[])
                    .sized(from_wide, &[], &[c.a]);
            }
            Op::CvtPack { d, hi, lo, .. } => {
                self.w32(&[*d]).r32(&[*hi, *lo]);
            }
            Op::Split64 { lo, hi, a } => {
                self.w32(&[*lo, *hi]).r64(&[*a]);
            }
            Op::Join64 { d, lo, hi } => {
                self.w64(&[*d]).r32(&[*lo, *hi]);
            }
            Op::Split32 { lo, hi, a } => {
                self.w32(&[*lo, *hi]).r32(&[*a]);
            }
            Op::Join32 { d, lo, hi } => {
                self.w32(&[*d]).r32(&[*lo, *hi]);
            }
            Op::Split64x4 { d, a } => {
                self.w32(&d[..]).r64(&[*a]);
            }
            Op::Join64x4 { d, a } => {
                self.w64(&[*d]).r32(&a[..]);
            }
            Op::Ld(op) => self.access(op, true),
            Op::St(op) => self.access(op, false),
            Op::Atom(op) => {
                self.addr(&op.addr);
                self.slots(&op.dst, true);
                self.slots(&op.a, false);
                self.slots(op.b.as_slice(), false);
            }
            Op::CpAsync(op) => {
                self.addr(&op.dst).addr(&op.src);
                self.r32(op.src_bytes.as_slice());
                self.rp(op.ignore.as_slice());
            }
            Op::IsSpace { d, a, .. } => {
                self.wp(&[*d]).r64(&[*a]);
            }
            Op::Mapa {
                wide, d, a, rank, ..
            } => {
                self.r32(&[*rank]).sized(*wide, &[*d], &[*a]);
            }
            Op::GetCtaRank { wide, d, a, .. } => {
                self.w32(&[*d]).sized(*wide, &[], &[*a]);
            }
            Op::BrxIdx { index, .. } => {
                self.r32(&[*index]);
            }
            Op::Bulk(op) => self.bulk(op),
            Op::Mbarrier(op) => self.mbarrier(op),
            _ => self.warp_wide(op),
        }
    }

    /// Exchanges, barriers and matrix operations; the rest has no registers at all.
    fn warp_wide(&mut self, op: &Op) {
        match op {
            Op::Shfl {
                d,
                p,
                a,
                b,
                c,
                mask,
                ..
            } => {
                self.w32(&[*d]).wp(&[*p]).r32(&[*a, *b, *c, *mask]);
            }
            Op::Vote { mode, d, a, mask } => {
                self.rp(&[*a]).r32(&[*mask]);
                match mode {
                    VoteMode::Ballot => self.w32(&[*d]),
                    _ => self.wp(&[*d]),
                };
            }
            Op::Redux { d, a, mask, .. } => {
                self.w32(&[*d]).r32(&[*a, *mask]);
            }
            Op::MatchAny { wide, d, a, mask } => {
                self.w32(&[*d]).r32(&[*mask]).sized(*wide, &[], &[*a]);
            }
            Op::MatchAll {
                wide,
                d,
                p,
                a,
                mask,
            } => {
                self.w32(&[*d]).wp(&[*p]).r32(&[*mask]);
                self.sized(*wide, &[], &[*a]);
            }
            Op::Elect { d, p, mask } => {
                self.w32(&[*d]).wp(&[*p]).r32(&[*mask]);
            }
            Op::BarWarp { mask } => {
                self.r32(&[*mask]);
            }
            Op::Barrier(op) => {
                self.r32(&[op.id]).r32(op.count.as_slice());
                match op.mode {
                    BarrierMode::RedPopc => self.rp(&[op.p]).w32(&[op.d]),
                    BarrierMode::RedAnd | BarrierMode::RedOr => self.rp(&[op.p]).wp(&[op.d]),
                    BarrierMode::Sync | BarrierMode::Arrive => self,
                };
            }
            Op::LdMatrix(op) => {
                self.addr(&op.addr).w32(&op.regs);
            }
            Op::StMatrix(op) => {
                self.addr(&op.addr).r32(&op.regs);
            }
            Op::Mma(op) => {
                self.w32(&op.d).r32(&op.a).r32(&op.b).r32(&op.c);
            }
            Op::Wgmma(op) => {
                self.w32(&op.d).r32(&op.d).r64(&[op.b]).rp(&[op.scale_d]);
                match &op.a {
                    WgmmaA::Descriptor(a) => self.r64(&[*a]),
                    WgmmaA::Registers(a) => self.r32(a),
                };
            }
            _ => {}
        }
    }

    fn mbarrier(&mut self, op: &MbarrierOp) {
        self.addr(&op.addr);
        match op.kind {
            MbarrierKind::Init { count } => {
                self.r32(&[count]);
            }
            MbarrierKind::Arrive {
                count,
                expect_tx,
                state,
                ..
            } => {
                self.r32(count.as_slice()).r32(expect_tx.as_slice());
                self.w64(state.as_slice());
            }
            MbarrierKind::ExpectTx { bytes } | MbarrierKind::CompleteTx { bytes } => {
                self.r32(&[bytes]);
            }
            MbarrierKind::Wait {
                d, state, parity, ..
            } => {
                self.wp(&[d]).sized(!parity, &[], &[state]);
            }
            MbarrierKind::PendingCount { d, state } => {
                self.w32(&[d]).r64(&[state]);
            }
            MbarrierKind::Inval | MbarrierKind::CpAsyncArrive { .. } => {}
        }
    }

    fn bulk(&mut self, op: &BulkOp) {
        match op {
            BulkOp::TensorLoad {
                dst,
                map,
                coords,
                mbar,
                multicast,
                ..
            } => {
                self.addr(dst).addr(map).addr(mbar).r32(coords);
                self.r32(multicast.as_slice());
            }
            BulkOp::TensorStore {
                map, coords, src, ..
            } => {
                self.addr(map).addr(src).r32(coords);
            }
            BulkOp::Load {
                dst,
                src,
                bytes,
                mbar,
                multicast,
                ..
            } => {
                self.addr(dst).addr(src).addr(mbar).r32(&[*bytes]);
                self.r32(multicast.as_slice());
            }
            BulkOp::SharedToCluster {
                dst,
                src,
                bytes,
                mbar,
            } => {
                self.addr(dst).addr(src).addr(mbar).r32(&[*bytes]);
            }
            BulkOp::Store {
                dst, src, bytes, ..
            } => {
                self.addr(dst).addr(src).r32(&[*bytes]);
            }
            BulkOp::PrefetchTensor { map } => {
                self.addr(map);
            }
            BulkOp::Commit | BulkOp::Wait { .. } | BulkOp::Prefetch => {}
        }
    }
}
