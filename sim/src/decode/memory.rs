//! Loads, stores and atomics (PTX ISA §9.7.9.8–§9.7.9.14, §9.7.13.5–6).

use super::builder::Builder;
use super::mods::Mods;
use super::{Decode, malformed, unsupported, want};
use crate::ir::{AtomOp, LdSt, Op, Order, RmwOp, RmwTy, Scope, Slot, Space};
use crate::ptx::ast::{Operand, Ty};

/// The state space of a memory instruction; generic if none is named.
pub(super) fn space(mods: &mut Mods<'_>) -> Space {
    mods.find(|m| {
        Some(match m {
            "global" => Space::Global,
            "shared" | "shared::cta" => Space::Shared,
            "shared::cluster" => Space::SharedCluster,
            "local" => Space::Local,
            "param" | "param::entry" | "param::func" => Space::Param,
            "const" => Space::Const,
            _ => return None,
        })
    })
    .unwrap_or(Space::Generic)
}

/// `.cta`, `.cluster`, `.gpu`, `.sys`.
pub(super) fn scope(mods: &mut Mods<'_>) -> Option<Scope> {
    mods.find(|m| {
        Some(match m {
            "cta" => Scope::Cta,
            "cluster" => Scope::Cluster,
            "gpu" => Scope::Gpu,
            "sys" => Scope::Sys,
            _ => return None,
        })
    })
}

fn order(mods: &mut Mods<'_>) -> Option<Order> {
    mods.find(|m| {
        Some(match m {
            "weak" => Order::Weak,
            // A volatile access is relaxed at system scope (PTX ISA §8.2.2).
            "relaxed" | "volatile" => Order::Relaxed,
            "acquire" => Order::Acquire,
            "release" => Order::Release,
            "acq_rel" => Order::AcqRel,
            _ => return None,
        })
    })
}

/// Cache hints change no value. Returns whether one more operand, the policy, follows.
pub(super) fn cache_hints(mods: &mut Mods<'_>) -> bool {
    let mut policy = false;
    while let Some(hint) = mods.find(|m| {
        let plain = matches!(m, "ca" | "cg" | "cs" | "lu" | "cv" | "wb" | "wt" | "nc");
        let named = m.starts_with("L1::") || m.starts_with("L2::");
        (plain || named).then_some(m == "L2::cache_hint")
    }) {
        policy |= hint;
    }
    policy
}

/// Drops the cache-policy operand if there is one.
pub(super) fn without_policy<'o, 'a>(
    policy: bool,
    o: &'o [Operand<'a>],
) -> Decode<&'o [Operand<'a>]> {
    match (policy, o.split_last()) {
        (true, Some((_, rest))) => Ok(rest),
        (true, None) => Err(malformed("a cache policy operand is missing")),
        (false, _) => Ok(o),
    }
}

fn vector(mods: &mut Mods<'_>) -> usize {
    mods.find(|m| {
        Some(match m {
            "v2" => 2,
            "v4" => 4,
            "v8" => 8,
            _ => return None,
        })
    })
    .unwrap_or(1)
}

/// A read-modify-write function.
pub(super) fn rmw_op(m: &str) -> Option<RmwOp> {
    Some(match m {
        "add" => RmwOp::Add,
        "min" => RmwOp::Min,
        "max" => RmwOp::Max,
        "and" => RmwOp::And,
        "or" => RmwOp::Or,
        "xor" => RmwOp::Xor,
        "exch" => RmwOp::Exch,
        "cas" => RmwOp::Cas,
        "inc" => RmwOp::Inc,
        "dec" => RmwOp::Dec,
        _ => return None,
    })
}

/// Type of the memory operand of a read-modify-write function.
pub(super) fn rmw_type(ty: Ty) -> Option<RmwTy> {
    Some(match ty {
        Ty::B32 | Ty::U32 => RmwTy::U32,
        Ty::S32 => RmwTy::S32,
        Ty::B64 | Ty::U64 => RmwTy::U64,
        Ty::S64 => RmwTy::S64,
        Ty::F32 => RmwTy::F32,
        Ty::F64 => RmwTy::F64,
        Ty::F16 => RmwTy::F16,
        Ty::F16x2 => RmwTy::F16x2,
        Ty::Bf16 => RmwTy::Bf16,
        Ty::Bf16x2 => RmwTy::Bf16x2,
        _ => return None,
    })
}

/// Vector sizes an atomic has on sm_90 (PTX ISA §9.7.13.5, §9.7.13.6).
fn vectors(f: RmwOp, ty: RmwTy) -> &'static [usize] {
    match ty {
        RmwTy::F32 if f == RmwOp::Add => &[2, 4],
        RmwTy::F16x2 | RmwTy::Bf16x2 => &[2, 4],
        RmwTy::F16 | RmwTy::Bf16 => &[2, 4, 8],
        _ => &[],
    }
}

impl<'a> Builder<'_, 'a> {
    /// The space of an access once its address symbol is known.
    pub(super) fn settle_space(&self, written: Space, symbol: Option<Space>) -> Decode<Space> {
        match (written, symbol) {
            // The parameters of an inlined function are thread-private memory.
            (Space::Param, Some(Space::Local)) => Ok(Space::Local),
            (Space::Param, None) if !self.inlining.is_empty() => Ok(Space::Local),
            (Space::SharedCluster, Some(Space::Shared)) | (Space::Generic, Some(_)) => {
                if written == Space::Generic {
                    // A bare symbol in a generic access is that symbol's window.
                    Ok(symbol.unwrap_or(Space::Generic))
                } else {
                    Ok(written)
                }
            }
            (Space::Const, Some(Space::Global)) => Ok(Space::Const),
            (w, Some(s)) if w != s => {
                Err(malformed("the address symbol is not in the named space"))
            }
            (w, _) => Ok(w),
        }
    }

    pub(super) fn memory(&mut self, mods: &mut Mods<'a>, o: &[Operand<'a>]) -> Decode<Op> {
        match mods.mnemonic {
            "ld" | "ldu" => self.load_store(mods, o, true),
            "st" => self.load_store(mods, o, false),
            "atom" => self.atomic(mods, o, true),
            "red" => self.atomic(mods, o, false),
            _ => {
                // A prefetch has no effect a program can observe.
                while mods.find(|_| Some(())).is_some() {}
                want(o, 1)?;
                self.address(&o[0])?;
                Ok(Op::Nop)
            }
        }
    }

    fn load_store(&mut self, mods: &mut Mods<'a>, o: &[Operand<'a>], load: bool) -> Decode<Op> {
        let order = order(mods);
        // A volatile access has no scope written: its is the system's.
        let scope = scope(mods).unwrap_or(Scope::Sys);
        let written = space(mods);
        let policy = cache_hints(mods);
        let lanes = vector(mods);
        let ty = mods.ty()?;
        let o = without_policy(policy, o)?;
        want(o, 2)?;
        let (value, address) = if load { (&o[0], &o[1]) } else { (&o[1], &o[0]) };
        if matches!(ty, Ty::Pred | Ty::B128 | Ty::Tf32) {
            return Err(unsupported("memory access of this type"));
        }
        let (addr, symbol) = self.address(address)?;
        let list = Self::list(value);
        if list.len() != lanes {
            return Err(malformed(format!(
                "{lanes} registers expected, {} given",
                list.len()
            )));
        }
        let bytes = ty.bytes();
        let slots = list
            .iter()
            .map(|operand| {
                if load {
                    self.slot_dst(bytes, operand)
                } else {
                    self.slot_src(bytes, operand)
                }
            })
            .collect::<Decode<Box<[Slot]>>>()?;
        if slots.iter().any(|s| bytes == 8 && !s.wide) {
            return Err(malformed("a 64-bit access needs 64-bit registers"));
        }
        let access = Box::new(LdSt {
            space: self.settle_space(written, symbol)?,
            elem_bytes: bytes as u32,
            signed: ty.is_signed(),
            order: order.unwrap_or(Order::Weak),
            scope,
            addr,
            slots,
        });
        Ok(if load { Op::Ld(access) } else { Op::St(access) })
    }

    fn atomic(&mut self, mods: &mut Mods<'a>, o: &[Operand<'a>], returns: bool) -> Decode<Op> {
        let order = order(mods).unwrap_or(Order::Relaxed);
        // PTX ISA §9.7.13.5: without a scope, `.gpu`.
        let scope = scope(mods).unwrap_or(Scope::Gpu);
        let written = space(mods);
        if mods.take("async") {
            return Err(unsupported("`red.async`"));
        }
        let policy = cache_hints(mods);
        let noftz = mods.take("noftz");
        let lanes = vector(mods);
        let f = mods
            .find(rmw_op)
            .ok_or_else(|| unsupported("this atomic operation"))?;
        let ty = rmw_type(mods.ty()?).ok_or_else(|| unsupported("atomic of this type"))?;
        let float = matches!(
            ty,
            RmwTy::F32 | RmwTy::F64 | RmwTy::F16 | RmwTy::F16x2 | RmwTy::Bf16 | RmwTy::Bf16x2
        );
        let half = matches!(ty, RmwTy::F16 | RmwTy::F16x2 | RmwTy::Bf16 | RmwTy::Bf16x2);
        let known = match f {
            RmwOp::Add => true,
            RmwOp::Min | RmwOp::Max => !float || (half && lanes > 1),
            RmwOp::Inc | RmwOp::Dec => ty == RmwTy::U32,
            _ => !float,
        };
        if !known || (lanes > 1 && !vectors(f, ty).contains(&lanes)) {
            return Err(unsupported("this atomic operation on this type"));
        }
        if lanes > 1 && !matches!(written, Space::Global | Space::Generic) {
            return Err(unsupported("an atomic vector outside global memory"));
        }
        if half != noftz {
            return Err(malformed(
                "`.noftz` belongs to atomics of 16-bit floats, and only there",
            ));
        }
        let o = without_policy(policy, o)?;
        let first = usize::from(returns);
        let sources = if f == RmwOp::Cas { 2 } else { 1 };
        want(o, first + 1 + sources)?;
        let bytes = u64::from(ty.bytes());
        let (addr, symbol) = self.address(&o[first])?;
        let sources_of = |b: &mut Self, operand: &Operand<'a>| {
            Self::list(operand)
                .iter()
                .map(|x| b.slot_src(bytes, x))
                .collect::<Decode<Box<[Slot]>>>()
        };
        let a = sources_of(self, &o[first + 1])?;
        let dst = if returns {
            Self::list(&o[0])
                .iter()
                .map(|x| self.slot_dst(bytes, x))
                .collect::<Decode<Box<[Slot]>>>()?
        } else {
            Box::default()
        };
        if a.len() != lanes || (returns && dst.len() != lanes) {
            return Err(malformed(format!("{lanes} registers expected")));
        }
        let b = if f == RmwOp::Cas {
            Some(self.slot_src(bytes, &o[first + 2])?)
        } else {
            None
        };
        let narrow = |s: &Slot| bytes == 8 && !s.wide;
        if a.iter().chain(&dst).chain(&b).any(narrow) {
            return Err(malformed("a 64-bit access needs 64-bit registers"));
        }
        Ok(Op::Atom(Box::new(AtomOp {
            space: self.settle_space(written, symbol)?,
            f,
            ty,
            order,
            scope,
            addr,
            dst,
            a,
            b,
        })))
    }
}
