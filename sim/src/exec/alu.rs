//! Register-to-register instructions, 32 lanes at a time.
//!
//! Everything here is inlined into one function compiled twice: for the build's baseline, and for
//! AVX2 + FMA, where a lane loop becomes a few vector instructions. The choice is made at run time.

use super::bits;
use super::convert;
use super::float;
use super::regs::{LANES, Regs, each1, each2, select};
use crate::ir::{BitCount, BoolOp, FloatClass, IntBin, IntCmp, IntTy, IntUn, Op, SetpDst};

/// Executes `op` for the lanes of `m`; false if it is not a register-to-register operation.
#[inline]
pub(crate) fn execute(op: &Op, regs: &mut Regs, m: u32) -> bool {
    #[cfg(target_arch = "x86_64")]
    if vector_unit() {
        // SAFETY: `vector_unit` has just checked that this CPU has AVX2, FMA and F16C.
        return unsafe { execute_avx2(op, regs, m) };
    }
    execute_inline(op, regs, m)
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn vector_unit() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("fma")
        && std::arch::is_x86_feature_detected!("f16c")
}

/// # Safety
/// The CPU has AVX2, FMA and F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
unsafe fn execute_avx2(op: &Op, regs: &mut Regs, m: u32) -> bool {
    execute_inline(op, regs, m)
}

#[inline(always)]
fn execute_inline(op: &Op, regs: &mut Regs, m: u32) -> bool {
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
        Op::IntBin { f, t, d, a, b } => int_bin(regs, m, f, t, [d, a, b]),
        Op::IntUn { f, t, d, a } => int_un(regs, m, f, t, d, a),
        Op::BitCount { f, t, d, a } => bit_count(regs, m, f, t, d, a),
        Op::Shl { t, d, a, b } => shift(regs, m, t, [d, a, b], true),
        Op::Shr { t, d, a, b } => shift(regs, m, t, [d, a, b], false),
        Op::Mad { hi, t, d, a, b, c } => mad(regs, m, hi, t, [d, a, b, c]),
        Op::MulWide { t, d, a, b, add } => mul_wide(regs, m, t, [d, a, b], add),
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
            add_carry(regs, m, [sub, wide, carry_in, carry_out], [d, a, b]);
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
            let v = int_cmp(regs, cmp, t, a, b);
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

#[inline(always)]
fn int_cmp(regs: &Regs, cmp: IntCmp, t: IntTy, a: u32, b: u32) -> u32 {
    macro_rules! go {
        ($f:ident, $t:ty) => {
            match cmp {
                IntCmp::Eq => regs.$f(a, b, |x, y| x as $t == y as $t),
                IntCmp::Ne => regs.$f(a, b, |x, y| x as $t != y as $t),
                IntCmp::Lt => regs.$f(a, b, |x, y| (x as $t) < (y as $t)),
                IntCmp::Le => regs.$f(a, b, |x, y| x as $t <= y as $t),
                IntCmp::Gt => regs.$f(a, b, |x, y| x as $t > y as $t),
                IntCmp::Ge => regs.$f(a, b, |x, y| x as $t >= y as $t),
            }
        };
    }
    match t {
        IntTy::U16 => go!(cmp32, u16),
        IntTy::S16 => go!(cmp32, i16),
        IntTy::U32 => go!(cmp32, u32),
        IntTy::S32 => go!(cmp32, i32),
        IntTy::U64 => go!(cmp64, u64),
        IntTy::S64 => go!(cmp64, i64),
    }
}

#[inline(always)]
fn int_bin(regs: &mut Regs, m: u32, f: IntBin, t: IntTy, r: [u32; 3]) {
    // `$wrap` narrows a result back to its register.
    macro_rules! go {
        ($op:ident, $t:ty, $wide:ty, $u:ty, $reg:ty) => {{
            let put = |v: $t| v as $u as $reg;
            match f {
                IntBin::Add => regs.$op(m, r, |a, b| put((a as $t).wrapping_add(b as $t))),
                IntBin::Sub => regs.$op(m, r, |a, b| put((a as $t).wrapping_sub(b as $t))),
                IntBin::MulLo => regs.$op(m, r, |a, b| put((a as $t).wrapping_mul(b as $t))),
                IntBin::MulHi => regs.$op(m, r, |a, b| {
                    put(((a as $t as $wide * b as $t as $wide) >> <$t>::BITS) as $t)
                }),
                // Division by zero is unspecified (PTX ISA §9.7.1.5); hardware gives all ones, and
                // the dividend as the remainder.
                IntBin::Div => regs.$op(m, r, |a, b| {
                    put(if b as $t == 0 {
                        !0
                    } else {
                        (a as $t).wrapping_div(b as $t)
                    })
                }),
                IntBin::Rem => regs.$op(m, r, |a, b| {
                    put(if b as $t == 0 {
                        a as $t
                    } else {
                        (a as $t).wrapping_rem(b as $t)
                    })
                }),
                IntBin::Min => regs.$op(m, r, |a, b| put((a as $t).min(b as $t))),
                IntBin::Max => regs.$op(m, r, |a, b| put((a as $t).max(b as $t))),
                IntBin::And => regs.$op(m, r, |a, b| put(a as $t & b as $t)),
                IntBin::Or => regs.$op(m, r, |a, b| put(a as $t | b as $t)),
                IntBin::Xor => regs.$op(m, r, |a, b| put(a as $t ^ b as $t)),
                IntBin::AddSat => regs.$op(m, r, |a, b| put((a as $t).saturating_add(b as $t))),
                IntBin::SubSat => regs.$op(m, r, |a, b| put((a as $t).saturating_sub(b as $t))),
            }
        }};
    }
    match t {
        IntTy::U16 => go!(bin32, u16, u32, u16, u32),
        IntTy::S16 => go!(bin32, i16, i32, u16, u32),
        IntTy::U32 => go!(bin32, u32, u64, u32, u32),
        IntTy::S32 => go!(bin32, i32, i64, u32, u32),
        IntTy::U64 => go!(bin64, u64, u128, u64, u64),
        IntTy::S64 => go!(bin64, i64, i128, u64, u64),
    }
}

#[inline(always)]
fn int_un(regs: &mut Regs, m: u32, f: IntUn, t: IntTy, d: u32, a: u32) {
    macro_rules! go {
        ($op:ident, $s:ty, $u:ty, $reg:ty) => {
            match f {
                IntUn::Not => regs.$op(m, d, a, |x| !(x as $u) as $reg),
                IntUn::Cnot => regs.$op(m, d, a, |x| <$reg>::from(x as $u == 0)),
                IntUn::Neg => regs.$op(m, d, a, |x| (x as $u).wrapping_neg() as $reg),
                IntUn::Abs => regs.$op(m, d, a, |x| (x as $s).wrapping_abs() as $u as $reg),
                IntUn::Brev => regs.$op(m, d, a, |x| (x as $u).reverse_bits() as $reg),
            }
        };
    }
    match t.bits() {
        16 => go!(un32, i16, u16, u32),
        32 => go!(un32, i32, u32, u32),
        _ => go!(un64, i64, u64, u64),
    }
}

#[inline(always)]
fn bit_count(regs: &mut Regs, m: u32, f: BitCount, t: IntTy, d: u32, a: u32) {
    let width = t.bits();
    let count = |x: u64| match f {
        BitCount::Popc => x.count_ones(),
        BitCount::Clz => x.leading_zeros() - (64 - width),
        BitCount::Bfind | BitCount::BfindShift => {
            let negative = t.signed() && x >> (width - 1) & 1 == 1;
            let mask = u64::MAX >> (64 - width);
            let significant = if negative { !x & mask } else { x };
            match (significant, f) {
                (0, _) => u32::MAX,
                (s, BitCount::Bfind) => 63 - s.leading_zeros(),
                (s, _) => width - 1 - (63 - s.leading_zeros()),
            }
        }
    };
    if width == 64 {
        let v = regs.get64(a).map(count);
        regs.put32(d, &v, m);
    } else {
        regs.un32(m, d, a, |x| count(x.into()));
    }
}

/// Shifts clamp their amount to the width (PTX ISA §9.7.8.7).
#[inline(always)]
fn shift(regs: &mut Regs, m: u32, t: IntTy, [d, a, b]: [u32; 3], left: bool) {
    if t.bits() == 64 {
        let (x, n) = (*regs.get64(a), *regs.get32(b));
        let v = match (left, t.signed()) {
            (true, _) => each2(&x, &n, |x, n| if n > 63 { 0 } else { x << (n & 63) }),
            (false, false) => each2(&x, &n, |x, n| if n > 63 { 0 } else { x >> (n & 63) }),
            (false, true) => each2(&x, &n, |x, n| (x as i64 >> n.min(63)) as u64),
        };
        regs.put64(d, &v, m);
        return;
    }
    let r = [d, a, b];
    match (t.bits(), left, t.signed()) {
        (32, true, _) => regs.bin32(m, r, |x, n| if n > 31 { 0 } else { x << (n & 31) }),
        (32, false, false) => regs.bin32(m, r, |x, n| if n > 31 { 0 } else { x >> (n & 31) }),
        (32, false, true) => regs.bin32(m, r, |x, n| (x as i32 >> n.min(31)) as u32),
        (_, true, _) => regs.bin32(m, r, |x, n| if n > 15 { 0 } else { x << n & 0xffff }),
        (_, false, false) => regs.bin32(m, r, |x, n| (x & 0xffff) >> n.min(16)),
        (_, false, true) => {
            regs.bin32(m, r, |x, n| {
                (i32::from(x as i16) >> n.min(15)) as u32 & 0xffff
            });
        }
    }
}

#[inline(always)]
fn mad(regs: &mut Regs, m: u32, hi: bool, t: IntTy, r: [u32; 4]) {
    match (t, hi) {
        (IntTy::U32 | IntTy::S32, false) => {
            regs.tern32(m, r, |a, b, c| a.wrapping_mul(b).wrapping_add(c));
        }
        (IntTy::U64 | IntTy::S64, false) => {
            regs.tern64(m, r, |a, b, c| a.wrapping_mul(b).wrapping_add(c));
        }
        (IntTy::U16 | IntTy::S16, false) => {
            regs.tern32(m, r, |a, b, c| a.wrapping_mul(b).wrapping_add(c) & 0xffff)
        }
        (IntTy::U32, true) => regs.tern32(m, r, |a, b, c| {
            (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c)
        }),
        (IntTy::S32, true) => regs.tern32(m, r, |a, b, c| {
            (((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32).wrapping_add(c)
        }),
        (IntTy::U64, true) => regs.tern64(m, r, |a, b, c| {
            (((u128::from(a) * u128::from(b)) >> 64) as u64).wrapping_add(c)
        }),
        (IntTy::S64, true) => regs.tern64(m, r, |a, b, c| {
            (((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64).wrapping_add(c)
        }),
        (IntTy::U16, true) => regs.tern32(m, r, |a, b, c| {
            (((a & 0xffff) * (b & 0xffff)) >> 16).wrapping_add(c) & 0xffff
        }),
        (IntTy::S16, true) => regs.tern32(m, r, |a, b, c| {
            let product = i32::from(a as i16) * i32::from(b as i16);
            ((product >> 16) as u32).wrapping_add(c) & 0xffff
        }),
    }
}

#[inline(always)]
fn mul_wide(regs: &mut Regs, m: u32, t: IntTy, [d, a, b]: [u32; 3], add: Option<u32>) {
    if t.bits() == 32 {
        let (x, y) = (regs.get32(a), regs.get32(b));
        let mut v: [u64; LANES] = if t.signed() {
            each2(x, y, |x, y| {
                (i64::from(x as i32) * i64::from(y as i32)) as u64
            })
        } else {
            each2(x, y, |x, y| u64::from(x) * u64::from(y))
        };
        if let Some(c) = add {
            let c = regs.get64(c);
            for i in 0..LANES {
                v[i] = v[i].wrapping_add(c[i]);
            }
        }
        regs.put64(d, &v, m);
        return;
    }
    let c = add.map(|c| *regs.get32(c)).unwrap_or([0; LANES]);
    let (x, y) = (regs.get32(a), regs.get32(b));
    let v: [u32; LANES] = std::array::from_fn(|i| {
        let product = if t.signed() {
            (i32::from(x[i] as i16) * i32::from(y[i] as i16)) as u32
        } else {
            (x[i] & 0xffff) * (y[i] & 0xffff)
        };
        product.wrapping_add(c[i])
    });
    regs.put32(d, &v, m);
}

fn add_carry(
    regs: &mut Regs,
    m: u32,
    [sub, wide, carry_in, carry_out]: [bool; 4],
    [d, a, b]: [u32; 3],
) {
    let width = if wide { 64 } else { 32 };
    let carry = if carry_in { regs.carry } else { 0 };
    let mut out = 0u32;
    let mut result = [0u64; LANES];
    for (i, out_lane) in result.iter_mut().enumerate() {
        let (x, y) = if wide {
            (regs.get64(a)[i], regs.get64(b)[i])
        } else {
            (regs.get32(a)[i].into(), regs.get32(b)[i].into())
        };
        let c = u128::from(carry >> i & 1);
        // The flag is the borrow for a subtraction.
        let full = if sub {
            u128::from(x).wrapping_sub(y.into()).wrapping_sub(c)
        } else {
            u128::from(x) + u128::from(y) + c
        };
        out |= ((full >> width & 1) as u32) << i;
        *out_lane = full as u64;
    }
    if wide {
        regs.put64(d, &result, m);
    } else {
        regs.put32(d, &result.map(|x| x as u32), m);
    }
    if carry_out {
        regs.carry = (regs.carry & !m) | (out & m);
    }
}
