//! Which registers an instruction reads and writes.

use super::{
    Addr, BarrierMode, BulkOp, CvtTy, IntTy, LdSt, MbarrierKind, MbarrierOp, Op, PRED_SINK, Pred,
    Reg, SINK, SetpDst, Slot, VoteMode, WgmmaA, Width,
};

/// What an instruction does to a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    /// Both, by one operand.
    Update,
}

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
        visit(&mut op.clone(), &mut |access, place, _| {
            if access != Access::Write {
                operands.reads.push(place);
            }
            if access != Access::Read && !place.is_sink() {
                operands.writes.push(place);
            }
        });
        if let Op::AddCarry {
            carry_in,
            carry_out,
            ..
        } = op
        {
            operands.reads.extend(carry_in.then_some(Place::Carry));
            operands.writes.extend(carry_out.then_some(Place::Carry));
        }
        operands
    }
}

/// Calls `f` for every register of `op`, once for each operand; it may put another register there.
pub fn visit(op: &mut Op, f: &mut impl FnMut(Access, Place, &mut Reg)) {
    Visitor(f).add(op);
}

struct Visitor<'f, F>(&'f mut F);

/// Operands of one kind.
trait Of<'r, T: 'r>: IntoIterator<Item = &'r mut T> {}

impl<'r, T: 'r, I: IntoIterator<Item = &'r mut T>> Of<'r, T> for I {}

impl<F: FnMut(Access, Place, &mut Reg)> Visitor<'_, F> {
    fn each<'r>(
        &mut self,
        access: Access,
        file: fn(Reg) -> Place,
        regs: impl Of<'r, Reg>,
    ) -> &mut Self {
        for reg in regs {
            (self.0)(access, file(*reg), reg);
        }
        self
    }

    fn r32<'r>(&mut self, regs: impl Of<'r, Reg>) -> &mut Self {
        self.each(Access::Read, Place::R32, regs)
    }

    fn w32<'r>(&mut self, regs: impl Of<'r, Reg>) -> &mut Self {
        self.each(Access::Write, Place::R32, regs)
    }

    fn r64<'r>(&mut self, regs: impl Of<'r, Reg>) -> &mut Self {
        self.each(Access::Read, Place::R64, regs)
    }

    fn w64<'r>(&mut self, regs: impl Of<'r, Reg>) -> &mut Self {
        self.each(Access::Write, Place::R64, regs)
    }

    fn rp<'r>(&mut self, preds: impl Of<'r, Pred>) -> &mut Self {
        let regs = preds.into_iter().map(|pred| &mut pred.reg);
        self.each(Access::Read, Place::Pred, regs)
    }

    fn wp<'r>(&mut self, preds: impl Of<'r, Reg>) -> &mut Self {
        self.each(Access::Write, Place::Pred, preds)
    }

    /// Registers of one class.
    fn sized<'r>(
        &mut self,
        wide: bool,
        writes: impl Of<'r, Reg>,
        reads: impl Of<'r, Reg>,
    ) -> &mut Self {
        if wide {
            self.w64(writes).r64(reads)
        } else {
            self.w32(writes).r32(reads)
        }
    }

    fn typed<'r>(
        &mut self,
        t: IntTy,
        writes: impl Of<'r, Reg>,
        reads: impl Of<'r, Reg>,
    ) -> &mut Self {
        self.sized(t.width() == Width::W64, writes, reads)
    }

    fn setp(&mut self, to: &mut SetpDst) -> &mut Self {
        if let Some((_, with)) = &mut to.combine {
            self.rp([with]);
        }
        self.wp([&mut to.d, &mut to.q])
    }

    fn slots<'r>(&mut self, access: Access, slots: impl Of<'r, Slot>) {
        for slot in slots {
            let file = if slot.wide { Place::R64 } else { Place::R32 };
            self.each(access, file, [&mut slot.reg]);
        }
    }

    fn addr(&mut self, addr: &mut Addr) -> &mut Self {
        self.sized(addr.wide, [], [&mut addr.base])
    }

    fn access(&mut self, op: &mut LdSt, access: Access) {
        self.addr(&mut op.addr);
        self.slots(access, &mut op.slots);
    }

    fn add(&mut self, op: &mut Op) {
        match op {
            Op::Mov32 { d, a } => {
                self.w32([d]).r32([a]);
            }
            Op::Mov64 { d, a } | Op::Cvta { d, a, .. } => {
                self.w64([d]).r64([a]);
            }
            Op::MovPred { d, a } | Op::PredNot { d, a } => {
                self.wp([d]).rp([a]);
            }
            Op::PredBin { d, a, b, .. } => {
                self.wp([d]).rp([a, b]);
            }
            Op::Read { d, wide, .. } => {
                self.sized(*wide, [d], []);
            }
            Op::IntBin { t, d, a, b, .. } => {
                self.typed(*t, [d], [a, b]);
            }
            Op::IntUn { t, d, a, .. } => {
                self.typed(*t, [d], [a]);
            }
            Op::BitCount { t, d, a, .. } => {
                self.w32([d]).typed(*t, [], [a]);
            }
            Op::Shl { t, d, a, b } | Op::Shr { t, d, a, b } => {
                self.r32([b]).typed(*t, [d], [a]);
            }
            Op::Mad { t, d, a, b, c, .. } => {
                self.typed(*t, [d], [a, b, c]);
            }
            Op::MulWide { t, d, a, b, add } => {
                self.r32([a, b]);
                self.sized(t.bits() == 32, [d], add);
            }
            Op::Tern32 { d, a, b, c, .. }
            | Op::F32 { d, a, b, c, .. }
            | Op::F32Mod { d, a, b, c, .. }
            | Op::Half { d, a, b, c, .. } => {
                self.w32([d]).r32([a, b, c]);
            }
            Op::F64 { d, a, b, c, .. } => {
                self.w64([d]).r64([a, b, c]);
            }
            Op::Bfe64 { d, a, pos, len, .. } => {
                self.w64([d]).r64([a]).r32([pos, len]);
            }
            Op::Bfi {
                wide,
                d,
                a,
                b,
                pos,
                len,
            } => {
                self.r32([pos, len]).sized(*wide, [d], [a, b]);
            }
            Op::AddCarry { wide, d, a, b, .. } => {
                self.sized(*wide, [d], [a, b]);
            }
            Op::Sel32 { d, a, b, p } => {
                self.w32([d]).r32([a, b]).rp([p]);
            }
            Op::Sel64 { d, a, b, p } => {
                self.w64([d]).r64([a, b]).rp([p]);
            }
            Op::SetpInt { t, a, b, to, .. } => {
                self.typed(*t, [], [a, b]).setp(to);
            }
            Op::SetpF32 { a, b, to, .. } | Op::SetpHalf { a, b, to, .. } => {
                self.r32([a, b]).setp(to);
            }
            Op::SetpF64 { a, b, to, .. } => {
                self.r64([a, b]).setp(to);
            }
            Op::Testp { wide, d, a, .. } => {
                self.wp([d]).sized(*wide, [], [a]);
            }
            Op::Cvt(c) => {
                let from_wide = CvtTy::width(c.from) == Width::W64;
                self.sized(c.dst == Width::W64, [&mut c.d], [])
                    .sized(from_wide, [], [&mut c.a]);
            }
            Op::CvtPack { d, hi, lo, .. } => {
                self.w32([d]).r32([hi, lo]);
            }
            Op::CvtCodes { d, a, .. } => {
                self.w32([d]).r32([a]);
            }
            Op::Split64 { lo, hi, a } => {
                self.w32([lo, hi]).r64([a]);
            }
            Op::Join64 { d, lo, hi } => {
                self.w64([d]).r32([lo, hi]);
            }
            Op::Split32 { lo, hi, a } => {
                self.w32([lo, hi]).r32([a]);
            }
            Op::Join32 { d, lo, hi } => {
                self.w32([d]).r32([lo, hi]);
            }
            Op::Split64x4 { d, a } => {
                self.w32(&mut d[..]).r64([a]);
            }
            Op::Join64x4 { d, a } => {
                self.w64([d]).r32(&mut a[..]);
            }
            Op::Ld(op) => self.access(op, Access::Write),
            Op::St(op) => self.access(op, Access::Read),
            Op::Atom(op) => {
                self.addr(&mut op.addr);
                self.slots(Access::Write, &mut op.dst);
                self.slots(Access::Read, &mut op.a);
                self.slots(Access::Read, &mut op.b);
            }
            Op::CpAsync(op) => {
                self.addr(&mut op.dst).addr(&mut op.src);
                self.r32(&mut op.src_bytes);
                self.rp(&mut op.ignore);
            }
            Op::IsSpace { d, a, .. } => {
                self.wp([d]).r64([a]);
            }
            Op::Mapa {
                wide, d, a, rank, ..
            } => {
                self.r32([rank]).sized(*wide, [d], [a]);
            }
            Op::GetCtaRank { wide, d, a, .. } => {
                self.w32([d]).sized(*wide, [], [a]);
            }
            Op::BrxIdx { index, .. } => {
                self.r32([index]);
            }
            Op::Bulk(op) => self.bulk(op),
            Op::Mbarrier(op) => self.mbarrier(op),
            _ => self.warp_wide(op),
        }
    }

    /// Exchanges, barriers and matrix operations; the rest has no registers at all.
    fn warp_wide(&mut self, op: &mut Op) {
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
                self.w32([d]).wp([p]).r32([a, b, c, mask]);
            }
            Op::Vote { mode, d, a, mask } => {
                self.rp([a]).r32([mask]);
                match mode {
                    VoteMode::Ballot => self.w32([d]),
                    _ => self.wp([d]),
                };
            }
            Op::Redux { d, a, mask, .. } => {
                self.w32([d]).r32([a, mask]);
            }
            Op::MatchAny { wide, d, a, mask } => {
                self.w32([d]).r32([mask]).sized(*wide, [], [a]);
            }
            Op::MatchAll {
                wide,
                d,
                p,
                a,
                mask,
            } => {
                self.w32([d]).wp([p]).r32([mask]);
                self.sized(*wide, [], [a]);
            }
            Op::Elect { d, p, mask } => {
                self.w32([d]).wp([p]).r32([mask]);
            }
            Op::BarWarp { mask } => {
                self.r32([mask]);
            }
            Op::Barrier(op) => {
                self.r32([&mut op.id]).r32(&mut op.count);
                match op.mode {
                    BarrierMode::RedPopc => self.rp([&mut op.p]).w32([&mut op.d]),
                    BarrierMode::RedAnd | BarrierMode::RedOr => {
                        self.rp([&mut op.p]).wp([&mut op.d])
                    }
                    BarrierMode::Sync | BarrierMode::Arrive => self,
                };
            }
            Op::LdMatrix(op) => {
                self.addr(&mut op.addr).w32(&mut op.regs);
            }
            Op::StMatrix(op) => {
                self.addr(&mut op.addr).r32(&mut op.regs);
            }
            Op::Mma(op) => {
                self.w32(&mut op.d)
                    .r32(&mut op.a)
                    .r32(&mut op.b)
                    .r32(&mut op.c);
            }
            Op::Wgmma(op) => {
                self.each(Access::Update, Place::R32, &mut op.d);
                self.r64([&mut op.b]).rp([&mut op.scale_d]);
                match &mut op.a {
                    WgmmaA::Descriptor(a) => self.r64([a]),
                    WgmmaA::Registers(a) => self.r32(a),
                };
            }
            _ => {}
        }
    }

    fn mbarrier(&mut self, op: &mut MbarrierOp) {
        self.addr(&mut op.addr);
        match &mut op.kind {
            MbarrierKind::Init { count } => {
                self.r32([count]);
            }
            MbarrierKind::Arrive {
                count,
                expect_tx,
                state,
                ..
            } => {
                self.r32(count).r32(expect_tx);
                self.w64(state);
            }
            MbarrierKind::ExpectTx { bytes } | MbarrierKind::CompleteTx { bytes } => {
                self.r32([bytes]);
            }
            MbarrierKind::Wait {
                d, state, parity, ..
            } => {
                self.wp([d]).sized(!*parity, [], [state]);
            }
            MbarrierKind::PendingCount { d, state } => {
                self.w32([d]).r64([state]);
            }
            MbarrierKind::Inval | MbarrierKind::CpAsyncArrive { .. } => {}
        }
    }

    fn bulk(&mut self, op: &mut BulkOp) {
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
                self.r32(multicast);
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
                self.addr(dst).addr(src).addr(mbar).r32([bytes]);
                self.r32(multicast);
            }
            BulkOp::SharedToCluster {
                dst,
                src,
                bytes,
                mbar,
            } => {
                self.addr(dst).addr(src).addr(mbar).r32([bytes]);
            }
            BulkOp::Store {
                dst, src, bytes, ..
            } => {
                self.addr(dst).addr(src).r32([bytes]);
            }
            BulkOp::PrefetchTensor { map } => {
                self.addr(map);
            }
            BulkOp::Commit | BulkOp::Wait { .. } | BulkOp::Prefetch => {}
        }
    }
}
