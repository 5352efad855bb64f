//! Which 32-bit registers an instruction reads and writes, for the checks of asynchronous operations.

use super::{BulkOp, CvtTy, LdSt, MbarrierKind, Op, Reg, SINK, Slot, Width};

/// 32-bit registers of one instruction. The `wgmma` operations themselves touch none here.
#[derive(Clone, Debug, Default)]
pub struct Touched {
    pub reads: Vec<Reg>,
    pub writes: Vec<Reg>,
}

impl Touched {
    /// The registers of `op`.
    pub fn of(op: &Op) -> Self {
        let mut t = Self::default();
        t.add(op);
        t.writes.retain(|&r| r != SINK);
        t
    }

    fn r(&mut self, regs: &[Reg]) -> &mut Self {
        self.reads.extend_from_slice(regs);
        self
    }

    fn w(&mut self, regs: &[Reg]) -> &mut Self {
        self.writes.extend_from_slice(regs);
        self
    }

    fn int(&mut self, wide: bool, d: &[Reg], sources: &[Reg]) {
        if !wide {
            self.w(d).r(sources);
        }
    }

    fn slots(&mut self, slots: &[Slot], write: bool) {
        for s in slots.iter().filter(|s| !s.wide) {
            if write {
                self.writes.push(s.reg);
            } else {
                self.reads.push(s.reg);
            }
        }
    }

    fn addr(&mut self, addr: &super::Addr) -> &mut Self {
        if !addr.wide {
            self.reads.push(addr.base);
        }
        self
    }

    fn access(&mut self, op: &LdSt, load: bool) {
        self.addr(&op.addr);
        self.slots(&op.slots, load);
    }

    fn add(&mut self, op: &Op) {
        match op {
            Op::Mov32 { d, a } => self.int(false, &[*d], &[*a]),
            Op::Read { d, wide, .. } => self.int(*wide, &[*d], &[]),
            Op::IntBin { t, d, a, b, .. } => self.int(t.bits() == 64, &[*d], &[*a, *b]),
            Op::IntUn { t, d, a, .. } => self.int(t.bits() == 64, &[*d], &[*a]),
            Op::BitCount { t, d, a, .. } => {
                self.w(&[*d]);
                self.int(t.bits() == 64, &[], &[*a]);
            }
            Op::Shl { t, d, a, b } | Op::Shr { t, d, a, b } => {
                self.r(&[*b]);
                self.int(t.bits() == 64, &[*d], &[*a]);
            }
            Op::Mad { t, d, a, b, c, .. } => self.int(t.bits() == 64, &[*d], &[*a, *b, *c]),
            Op::MulWide { t, d, a, b, add } => {
                self.r(&[*a, *b]);
                let add: Vec<Reg> = add.iter().copied().collect();
                self.int(t.bits() == 32, &[*d], &add);
            }
            Op::Tern32 { d, a, b, c, .. }
            | Op::F32 { d, a, b, c, .. }
            | Op::F32Mod { d, a, b, c, .. }
            | Op::Half { d, a, b, c, .. } => {
                self.w(&[*d]).r(&[*a, *b, *c]);
            }
            Op::Bfe64 { pos, len, .. } => {
                self.r(&[*pos, *len]);
            }
            Op::Bfi {
                wide,
                d,
                a,
                b,
                pos,
                len,
            } => {
                self.r(&[*pos, *len]);
                self.int(*wide, &[*d], &[*a, *b]);
            }
            Op::AddCarry { wide, d, a, b, .. } => self.int(*wide, &[*d], &[*a, *b]),
            Op::Sel32 { d, a, b, .. } => self.int(false, &[*d], &[*a, *b]),
            Op::SetpInt { t, a, b, .. } => self.int(t.bits() == 64, &[], &[*a, *b]),
            Op::SetpF32 { a, b, .. } | Op::SetpHalf { a, b, .. } => {
                self.r(&[*a, *b]);
            }
            Op::Testp { wide, a, .. } => self.int(*wide, &[], &[*a]),
            Op::Cvt(c) => {
                if c.dst == Width::W32 {
                    self.w(&[c.d]);
                }
                if CvtTy::width(c.from) == Width::W32 {
                    self.r(&[c.a]);
                }
            }
            Op::CvtPack { d, hi, lo, .. } => {
                self.w(&[*d]).r(&[*hi, *lo]);
            }
            Op::Split64 { lo, hi, .. } => {
                self.w(&[*lo, *hi]);
            }
            Op::Join64 { lo, hi, .. } => {
                self.r(&[*lo, *hi]);
            }
            Op::Split32 { lo, hi, a } => {
                self.w(&[*lo, *hi]).r(&[*a]);
            }
            Op::Join32 { d, lo, hi } => {
                self.w(&[*d]).r(&[*lo, *hi]);
            }
            Op::Split64x4 { d, .. } => {
                self.w(&d[..]);
            }
            Op::Join64x4 { a, .. } => {
                self.r(&a[..]);
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
                self.reads.extend(op.src_bytes);
            }
            Op::Mapa {
                wide, d, a, rank, ..
            } => {
                self.r(&[*rank]);
                self.int(*wide, &[*d], &[*a]);
            }
            Op::GetCtaRank { wide, d, a } => {
                self.w(&[*d]);
                self.int(*wide, &[], &[*a]);
            }
            Op::Shfl {
                d, a, b, c, mask, ..
            } => {
                self.w(&[*d]).r(&[*a, *b, *c, *mask]);
            }
            Op::Vote { mode, d, mask, .. } => {
                self.r(&[*mask]);
                if *mode == super::VoteMode::Ballot {
                    self.w(&[*d]);
                }
            }
            Op::Redux { d, a, mask, .. } => {
                self.w(&[*d]).r(&[*a, *mask]);
            }
            Op::MatchAny { wide, d, a, mask }
            | Op::MatchAll {
                wide, d, a, mask, ..
            } => {
                self.w(&[*d]).r(&[*mask]);
                self.int(*wide, &[], &[*a]);
            }
            Op::Elect { d, mask, .. } => {
                self.w(&[*d]).r(&[*mask]);
            }
            Op::BarWarp { mask } => {
                self.r(&[*mask]);
            }
            Op::Barrier(op) => {
                self.r(&[op.id]);
                self.reads.extend(op.count);
                if op.mode == super::BarrierMode::RedPopc {
                    self.w(&[op.d]);
                }
            }
            Op::LdMatrix(op) => {
                self.addr(&op.addr).w(&op.regs);
            }
            Op::StMatrix(op) => {
                self.addr(&op.addr).r(&op.regs);
            }
            Op::Mma(op) => {
                self.w(&op.d).r(&op.a).r(&op.b).r(&op.c);
            }
            Op::Mbarrier(op) => {
                self.addr(&op.addr);
                match op.kind {
                    MbarrierKind::Init { count } => self.reads.push(count),
                    MbarrierKind::Arrive {
                        count, expect_tx, ..
                    } => {
                        self.reads.extend(count);
                        self.reads.extend(expect_tx);
                    }
                    MbarrierKind::ExpectTx { bytes } | MbarrierKind::CompleteTx { bytes } => {
                        self.reads.push(bytes);
                    }
                    MbarrierKind::Wait {
                        state,
                        parity: true,
                        ..
                    } => self.reads.push(state),
                    MbarrierKind::PendingCount { d, .. } => self.writes.push(d),
                    _ => {}
                }
            }
            Op::Bulk(op) => self.bulk(op),
            Op::BrxIdx { index, .. } => self.reads.push(*index),
            // 64-bit, predicate or no registers at all.
            Op::Nop
            | Op::Mov64 { .. }
            | Op::MovPred { .. }
            | Op::Sel64 { .. }
            | Op::SetpF64 { .. }
            | Op::PredBin { .. }
            | Op::PredNot { .. }
            | Op::F64 { .. }
            | Op::CpAsyncCommit
            | Op::CpAsyncWait { .. }
            | Op::Cvta { .. }
            | Op::IsSpace { .. }
            | Op::ClusterBarrier { .. }
            | Op::Fence(_)
            | Op::Wgmma(_)
            | Op::WgmmaFence
            | Op::WgmmaCommit
            | Op::WgmmaWait { .. }
            | Op::SetMaxNReg { .. }
            | Op::GridDepWait
            | Op::GridDepLaunch
            | Op::Nanosleep
            | Op::Bra { .. }
            | Op::Exit
            | Op::Trap
            | Op::Unsupported(_) => {}
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
            } => {
                self.addr(dst).addr(map).addr(mbar).r(coords);
                self.reads.extend(multicast);
            }
            BulkOp::TensorStore {
                map, coords, src, ..
            } => {
                self.addr(map).addr(src).r(coords);
            }
            BulkOp::Load {
                dst,
                src,
                bytes,
                mbar,
                multicast,
            } => {
                self.addr(dst).addr(src).addr(mbar).r(&[*bytes]);
                self.reads.extend(multicast);
            }
            BulkOp::SharedToCluster {
                dst,
                src,
                bytes,
                mbar,
            } => {
                self.addr(dst).addr(src).addr(mbar).r(&[*bytes]);
            }
            BulkOp::Store {
                dst, src, bytes, ..
            } => {
                self.addr(dst).addr(src).r(&[*bytes]);
            }
            BulkOp::PrefetchTensor { map } => {
                self.addr(map);
            }
            BulkOp::Commit | BulkOp::Wait { .. } | BulkOp::Prefetch => {}
        }
    }
}
