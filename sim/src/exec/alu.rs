//! Register-to-register instructions, 32 lanes at a time.
//!
//! Everything here is inlined into one function compiled for each [vector unit](super::vector), where a lane loop becomes a few
//! vector instructions.

use super::bits;
use super::convert;
use super::float;
use super::integer;
use super::regs::{LANES, Regs, each1, each2, select};
use super::vector::vectorised;
use crate::ir::{BoolOp, FloatClass, Op, SetpDst};

vectorised! {
    /// Executes `op` for the lanes of `m`; false if it is not a register-to-register operation.
    pub(crate) fn execute(op: &Op, regs: &mut Regs, m: u32) -> bool = execute_inline;
}

#[expect(
    clippy::extra_unused_type_parameters,
    reason = "no product here is exact"
)]
#[inline(always)]
fn execute_inline<A>(op: &Op, regs: &mut Regs, m: u32) -> bool {
    match *op {
        Op::F32 { f, d, a, b, c } => float::f32_plain(regs, m, f, [d, a, b, c]),
        Op::F32Mod {
            f,
            m: mods,
            d,
            a,
            b,
            c,
        } => float::f32_mods(regs, m, f, mods, [d, a, b, c]),
        Op::F64 { f, d, a, b, c } => float::f64_op(regs, m, f, [d, a, b, c]),
        Op::Half {
            f,
            t,
            m: mods,
            d,
            a,
            b,
            c,
        } => {
            float::half_op(regs, m, f, t, mods, [d, a, b, c]);
        }
        Op::Mov32 { d, a } => {
            let v = *regs.get32(a);
            regs.put32(d, &v, m);
        }
        Op::Mov64 { d, a } => {
            let v = *regs.get64(a);
            regs.put64(d, &v, m);
        }
        Op::MovPred { d, a } => {
            let v = regs.test(a);
            regs.put_pred(d, v, m);
        }
        Op::IntBin { f, t, d, a, b } => integer::int_bin(regs, m, f, t, [d, a, b]),
        Op::IntUn { f, t, d, a } => integer::int_un(regs, m, f, t, d, a),
        Op::BitCount { f, t, d, a } => integer::bit_count(regs, m, f, t, d, a),
        Op::Shl { t, d, a, b } => integer::shift(regs, m, t, [d, a, b], true),
        Op::Shr { t, d, a, b } => integer::shift(regs, m, t, [d, a, b], false),
        Op::Mad { hi, t, d, a, b, c } => integer::mad(regs, m, hi, t, [d, a, b, c]),
        Op::MulWide { t, d, a, b, add } => integer::mul_wide(regs, m, t, [d, a, b], add),
        Op::Tern32 { f, d, a, b, c } => bits::tern32(regs, m, f, [d, a, b, c]),
        Op::Bfe64 {
            signed,
            d,
            a,
            pos,
            len,
        } => {
            let (a, p, l) = (*regs.get64(a), *regs.get32(pos), *regs.get32(len));
            let v = std::array::from_fn(|i| bits::bfe64(a[i], p[i], l[i], signed));
            regs.put64(d, &v, m);
        }
        Op::Bfi {
            wide,
            d,
            a,
            b,
            pos,
            len,
        } => {
            let (p, l) = (*regs.get32(pos), *regs.get32(len));
            if wide {
                let (a, b) = (*regs.get64(a), *regs.get64(b));
                let v = std::array::from_fn(|i| bits::bfi(a[i], b[i], p[i], l[i], 64));
                regs.put64(d, &v, m);
            } else {
                let (a, b) = (*regs.get32(a), *regs.get32(b));
                let v = std::array::from_fn(|i| {
                    bits::bfi(a[i].into(), b[i].into(), p[i], l[i], 32) as u32
                });
                regs.put32(d, &v, m);
            }
        }
        Op::AddCarry {
            sub,
            wide,
            carry_in,
            carry_out,
            d,
            a,
            b,
        } => {
            integer::add_carry(regs, m, [sub, wide, carry_in, carry_out], [d, a, b]);
        }
        Op::Sel32 { d, a, b, p } => {
            let v = select(regs.test(p), regs.get32(a), regs.get32(b));
            regs.put32(d, &v, m);
        }
        Op::Sel64 { d, a, b, p } => {
            let v = select(regs.test(p), regs.get64(a), regs.get64(b));
            regs.put64(d, &v, m);
        }
        Op::SetpInt { cmp, t, a, b, to } => {
            let v = integer::int_cmp(regs, cmp, t, a, b);
            set_pred(regs, m, v, &to);
        }
        Op::SetpF32 { cmp, ftz, a, b, to } => {
            let v = float::cmp_f32(regs, cmp, ftz, a, b);
            set_pred(regs, m, v, &to);
        }
        Op::SetpF64 { cmp, a, b, to } => {
            let v = float::cmp_f64(regs, cmp, a, b);
            set_pred(regs, m, v, &to);
        }
        Op::SetpHalf {
            cmp,
            t,
            ftz,
            a,
            b,
            to,
        } => {
            float::setp_half(regs, m, cmp, t, ftz, [a, b], &to);
        }
        Op::PredBin { f, d, a, b } => {
            let v = combine(f, regs.test(a), regs.test(b));
            regs.put_pred(d, v, m);
        }
        Op::PredNot { d, a } => {
            let v = !regs.test(a);
            regs.put_pred(d, v, m);
        }
        Op::Testp { class, wide, d, a } => {
            let v = if wide {
                regs.cmp64(a, a, |x, _| {
                    class_of(
                        class,
                        f64::from_bits(x).classify(),
                        f64::from_bits(x).is_nan(),
                    )
                })
            } else {
                regs.cmp32(a, a, |x, _| {
                    class_of(
                        class,
                        f32::from_bits(x).classify(),
                        f32::from_bits(x).is_nan(),
                    )
                })
            };
            regs.put_pred(d, v, m);
        }
        Op::Cvt(ref cvt) => convert::cvt(regs, m, cvt),
        Op::CvtPack {
            bf16,
            m: mods,
            d,
            hi,
            lo,
        } => {
            convert::pack(regs, m, bf16, mods, [d, hi, lo]);
        }
        Op::CvtCodes { relu, d, a } => convert::codes(regs, m, relu, [d, a]),
        Op::Split64 { lo, hi, a } => {
            let a = *regs.get64(a);
            regs.put32(lo, &each1(&a, |x| x as u32), m);
            regs.put32(hi, &each1(&a, |x| (x >> 32) as u32), m);
        }
        Op::Join64 { d, lo, hi } => {
            let join = |lo: u32, hi: u32| u64::from(lo) | u64::from(hi) << 32;
            let v = each2(regs.get32(lo), regs.get32(hi), join);
            regs.put64(d, &v, m);
        }
        Op::Split32 { lo, hi, a } => {
            let a = *regs.get32(a);
            regs.put32(lo, &each1(&a, |x| x & 0xffff), m);
            regs.put32(hi, &each1(&a, |x| x >> 16), m);
        }
        Op::Join32 { d, lo, hi } => regs.bin32(m, [d, lo, hi], |lo, hi| lo & 0xffff | hi << 16),
        Op::Split64x4 { ref d, a } => {
            let a = *regs.get64(a);
            for (i, &d) in d.iter().enumerate() {
                regs.put32(d, &a.map(|x| (x >> (16 * i)) as u32 & 0xffff), m);
            }
        }
        Op::Join64x4 { d, ref a } => {
            let mut v = [0u64; LANES];
            for (i, &a) in a.iter().enumerate() {
                let part = regs.get32(a);
                for lane in 0..LANES {
                    v[lane] |= u64::from(part[lane] & 0xffff) << (16 * i);
                }
            }
            regs.put64(d, &v, m);
        }
        _ => return false,
    }
    true
}

fn class_of(class: FloatClass, category: std::num::FpCategory, nan: bool) -> bool {
    use std::num::FpCategory as C;
    match class {
        FloatClass::Finite => !matches!(category, C::Infinite | C::Nan),
        FloatClass::Infinite => category == C::Infinite,
        FloatClass::Number => !nan,
        FloatClass::NotANumber => nan,
        // Zero is a normal number to `testp` (PTX ISA §9.7.3.1).
        FloatClass::Normal => matches!(category, C::Normal | C::Zero),
        FloatClass::Subnormal => category == C::Subnormal,
    }
}

#[inline(always)]
pub(super) fn combine(f: BoolOp, a: u32, b: u32) -> u32 {
    match f {
        BoolOp::And => a & b,
        BoolOp::Or => a | b,
        BoolOp::Xor => a ^ b,
    }
}

/// Writes a comparison's outcome to its predicates.
#[inline(always)]
pub(super) fn set_pred(regs: &mut Regs, m: u32, v: u32, to: &SetpDst) {
    let (d, q) = match to.combine {
        None => (v, !v),
        Some((f, c)) => {
            let c = regs.test(c);
            (combine(f, v, c), combine(f, !v, c))
        }
    };
    regs.put_pred(to.d, d, m);
    regs.put_pred(to.q, q, m);
}
