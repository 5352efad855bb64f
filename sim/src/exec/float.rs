//! Floating-point instructions over lanes.

use super::alu::{combine, set_pred};
use super::regs::Regs;
use crate::ir::{FloatCmp, FloatMods, FloatOp, HalfTy, SetpDst};
use crate::num::half::{bf16_to_f32, f16_to_f32};
use crate::num::ops;

#[inline(always)]
fn un(regs: &mut Regs, m: u32, r: [u32; 4], f: impl Fn(f32) -> f32) {
    regs.un32(m, r[0], r[1], |a| f(f32::from_bits(a)).to_bits());
}

#[inline(always)]
fn bin(regs: &mut Regs, m: u32, r: [u32; 4], f: impl Fn(f32, f32) -> f32) {
    regs.bin32(m, [r[0], r[1], r[2]], |a, b| {
        f(f32::from_bits(a), f32::from_bits(b)).to_bits()
    });
}

/// NaN results are 0x7fffffff (PTX ISA §9.7.3).
#[inline(always)]
fn canonical(x: f32) -> f32 {
    if x.is_nan() {
        f32::from_bits(0x7fff_ffff)
    } else {
        x
    }
}

/// `max` that ignores a NaN operand and orders −0 below +0.
#[inline(always)]
fn max(a: f32, b: f32) -> f32 {
    let larger = if a > b || (a == b && a.is_sign_positive()) {
        a
    } else {
        b
    };
    let with_nan = if a.is_nan() { b } else { larger };
    canonical(if b.is_nan() { a } else { with_nan })
}

/// `min` that ignores a NaN operand and orders −0 below +0.
#[inline(always)]
fn min(a: f32, b: f32) -> f32 {
    let smaller = if a < b || (a == b && a.is_sign_negative()) {
        a
    } else {
        b
    };
    let with_nan = if a.is_nan() { b } else { smaller };
    canonical(if b.is_nan() { a } else { with_nan })
}

/// 2^x to within 1 ulp of f32: the error PTX allows is 2 ulp (§9.7.3.21).
#[inline(always)]
fn ex2(x: f32) -> f32 {
    // Reduce in f32 (exact), evaluate a degree-7 polynomial of 2^f, f in [−½, ½], in f64.
    let clamped = x.clamp(-200.0, 200.0);
    let whole = clamped.round_ties_even();
    let f = f64::from(clamped - whole);
    const C: [f64; 8] = [
        1.0,
        std::f64::consts::LN_2,
        0.240_226_506_959_100_7,
        0.055_504_108_664_821_58,
        0.009_618_129_107_628_477,
        0.001_333_355_814_642_844,
        0.000_154_035_303_933_816_1,
        0.000_015_252_733_804_059_84,
    ];
    let mut p = C[7];
    for k in (0..7).rev() {
        p = p * f + C[k];
    }
    // 2^whole as f64 bits; whole is within ±200.
    let scale = f64::from_bits(((whole as i64 + 1023) as u64) << 52);
    let value = (p * scale) as f32;
    if x.is_nan() { canonical(x) } else { value }
}

/// f32, nearest, no modifiers.
#[inline(always)]
pub(super) fn f32_plain(regs: &mut Regs, m: u32, f: FloatOp, r: [u32; 4]) {
    match f {
        FloatOp::Fma => regs.tern32(m, r, |a, b, c| {
            canonical(f32::from_bits(a).mul_add(f32::from_bits(b), f32::from_bits(c))).to_bits()
        }),
        FloatOp::Add => bin(regs, m, r, |a, b| canonical(a + b)),
        FloatOp::Sub => bin(regs, m, r, |a, b| canonical(a - b)),
        FloatOp::Mul => bin(regs, m, r, |a, b| canonical(a * b)),
        FloatOp::Max => bin(regs, m, r, max),
        FloatOp::Min => bin(regs, m, r, min),
        FloatOp::Div | FloatOp::DivApprox => bin(regs, m, r, |a, b| canonical(a / b)),
        FloatOp::Neg => regs.un32(m, r[0], r[1], |a| a ^ 1 << 31),
        FloatOp::Abs => regs.un32(m, r[0], r[1], |a| a & !(1 << 31)),
        FloatOp::Copysign => regs.bin32(m, [r[0], r[1], r[2]], |a, b| a & 1 << 31 | b & !(1 << 31)),
        FloatOp::Rcp | FloatOp::RcpApprox => un(regs, m, r, |a| canonical(1.0 / a)),
        FloatOp::Sqrt | FloatOp::SqrtApprox => un(regs, m, r, |a| canonical(a.sqrt())),
        FloatOp::Ex2Approx => un(regs, m, r, ex2),
        _ => scalar(regs, m, f, FloatMods::PLAIN, r),
    }
}

/// f32 with modifiers.
#[inline(always)]
pub(super) fn f32_mods(regs: &mut Regs, m: u32, f: FloatOp, mods: FloatMods, r: [u32; 4]) {
    let only_ftz = FloatMods {
        ftz: true,
        ..FloatMods::PLAIN
    };
    if mods != only_ftz {
        return scalar(regs, m, f, mods, r);
    }
    let z = ops::flush;
    match f {
        FloatOp::Ex2Approx => un(regs, m, r, |a| z(ex2(z(a)))),
        FloatOp::RcpApprox => un(regs, m, r, |a| z(canonical(1.0 / z(a)))),
        FloatOp::Add => bin(regs, m, r, |a, b| z(canonical(z(a) + z(b)))),
        FloatOp::Mul => bin(regs, m, r, |a, b| z(canonical(z(a) * z(b)))),
        FloatOp::Max => bin(regs, m, r, |a, b| max(z(a), z(b))),
        FloatOp::Min => bin(regs, m, r, |a, b| min(z(a), z(b))),
        FloatOp::Fma => regs.tern32(m, r, |a, b, c| {
            let (a, b, c) = (f32::from_bits(a), f32::from_bits(b), f32::from_bits(c));
            z(canonical(z(a).mul_add(z(b), z(c)))).to_bits()
        }),
        _ => scalar(regs, m, f, mods, r),
    }
}

/// Lane by lane, for the rare forms.
#[inline(never)]
fn scalar(regs: &mut Regs, m: u32, f: FloatOp, mods: FloatMods, r: [u32; 4]) {
    regs.tern32(m, r, |a, b, c| {
        let (a, b, c) = (f32::from_bits(a), f32::from_bits(b), f32::from_bits(c));
        ops::f32_op(f, mods, a, b, c)
    });
}

fn canonical64(x: f64) -> u64 {
    // NaN payloads are unspecified for f64 (PTX ISA §9.7.3): the quiet NaN of this machine.
    if x.is_nan() {
        f64::NAN.to_bits()
    } else {
        x.to_bits()
    }
}

#[inline(never)]
pub(super) fn f64_op(regs: &mut Regs, m: u32, f: FloatOp, r: [u32; 4]) {
    regs.tern64(m, r, |a, b, c| {
        let (x, y, z) = (f64::from_bits(a), f64::from_bits(b), f64::from_bits(c));
        canonical64(match f {
            FloatOp::Add => x + y,
            FloatOp::Sub => x - y,
            FloatOp::Mul => x * y,
            FloatOp::Fma => x.mul_add(y, z),
            FloatOp::Div | FloatOp::DivApprox => x / y,
            FloatOp::Min => ops::min_max(x, y, false, false),
            FloatOp::Max => ops::min_max(x, y, true, false),
            FloatOp::MinNan => ops::min_max(x, y, false, true),
            FloatOp::MaxNan => ops::min_max(x, y, true, true),
            FloatOp::Neg => return a ^ 1 << 63,
            FloatOp::Abs => return a & !(1 << 63),
            FloatOp::Copysign => return a & 1 << 63 | b & !(1 << 63),
            FloatOp::Rcp | FloatOp::RcpApprox => 1.0 / x,
            FloatOp::Sqrt | FloatOp::SqrtApprox => x.sqrt(),
            FloatOp::RsqrtApprox => 1.0 / x.sqrt(),
            FloatOp::Ex2Approx => x.exp2(),
            FloatOp::Lg2Approx => x.log2(),
            FloatOp::SinApprox => x.sin(),
            FloatOp::CosApprox => x.cos(),
            FloatOp::TanhApprox => x.tanh(),
        })
    });
}

#[inline(never)]
pub(super) fn half_op(
    regs: &mut Regs,
    m: u32,
    f: FloatOp,
    t: HalfTy,
    mods: FloatMods,
    r: [u32; 4],
) {
    regs.tern32(m, r, |a, b, c| {
        let low = ops::half_op(f, mods, t.bf16(), a, b, c);
        if t.packed() {
            low | ops::half_op(f, mods, t.bf16(), a >> 16, b >> 16, c >> 16) << 16
        } else {
            low
        }
    });
}

#[inline(always)]
fn compares(cmp: FloatCmp, less: bool, equal: bool, greater: bool) -> bool {
    let unordered = !(less || equal || greater);
    match cmp {
        FloatCmp::Eq => equal,
        FloatCmp::Ne => less || greater,
        FloatCmp::Lt => less,
        FloatCmp::Le => less || equal,
        FloatCmp::Gt => greater,
        FloatCmp::Ge => greater || equal,
        FloatCmp::Equ => equal || unordered,
        FloatCmp::Neu => !equal,
        FloatCmp::Ltu => less || unordered,
        FloatCmp::Leu => !greater,
        FloatCmp::Gtu => greater || unordered,
        FloatCmp::Geu => !less,
        FloatCmp::Num => !unordered,
        FloatCmp::Nan => unordered,
    }
}

#[inline(always)]
pub(super) fn cmp_f32(regs: &Regs, cmp: FloatCmp, ftz: bool, a: u32, b: u32) -> u32 {
    regs.cmp32(a, b, |a, b| {
        let (mut x, mut y) = (f32::from_bits(a), f32::from_bits(b));
        if ftz {
            (x, y) = (ops::flush(x), ops::flush(y));
        }
        compares(cmp, x < y, x == y, x > y)
    })
}

#[inline(always)]
pub(super) fn cmp_f64(regs: &Regs, cmp: FloatCmp, a: u32, b: u32) -> u32 {
    regs.cmp64(a, b, |a, b| {
        let (x, y) = (f64::from_bits(a), f64::from_bits(b));
        compares(cmp, x < y, x == y, x > y)
    })
}

#[inline(never)]
pub(super) fn setp_half(
    regs: &mut Regs,
    m: u32,
    cmp: FloatCmp,
    t: HalfTy,
    ftz: bool,
    [a, b]: [u32; 2],
    to: &SetpDst,
) {
    let widen = |x: u32| {
        let x = x & 0xffff;
        if t.bf16() {
            bf16_to_f32(x)
        } else {
            f16_to_f32(if ftz && x & 0x7c00 == 0 {
                x & 0x8000
            } else {
                x
            })
        }
    };
    let test = |shift: u32| {
        regs.cmp32(a, b, |a, b| {
            let (x, y) = (widen(a >> shift), widen(b >> shift));
            compares(cmp, x < y, x == y, x > y)
        })
    };
    if !t.packed() {
        let v = test(0);
        return set_pred(regs, m, v, to);
    }
    let (low, high) = (test(0), test(16));
    let (low, high) = match to.combine {
        None => (low, high),
        Some((f, c)) => {
            let c = regs.test(c);
            (combine(f, low, c), combine(f, high, c))
        }
    };
    regs.put_pred(to.d, low, m);
    regs.put_pred(to.q, high, m);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ex2_is_within_one_ulp() {
        let mut worst = 0i64;
        for i in -2_600_000..2_600_000 {
            let x = i as f32 * 5e-5;
            let (got, want) = (ex2(x), f64::from(x).exp2() as f32);
            worst = worst.max((i64::from(got.to_bits()) - i64::from(want.to_bits())).abs());
        }
        assert!(worst <= 1, "{worst} ulp");
        assert_eq!(ex2(f32::NEG_INFINITY), 0.0);
        assert_eq!(ex2(f32::INFINITY), f32::INFINITY);
        assert!(ex2(f32::NAN).is_nan());
        assert_eq!(ex2(-0.0), 1.0);
    }

    #[test]
    fn min_and_max_ignore_nan() {
        assert_eq!(max(f32::NAN, 2.0), 2.0);
        assert_eq!(min(2.0, f32::NAN), 2.0);
        assert_eq!(max(f32::NAN, f32::NAN).to_bits(), 0x7fff_ffff);
        assert!(max(-0.0, 0.0).is_sign_positive() && max(0.0, -0.0).is_sign_positive());
        assert!(min(-0.0, 0.0).is_sign_negative() && min(0.0, -0.0).is_sign_negative());
        assert_eq!(max(1.0, 3.0), 3.0);
        assert_eq!(min(f32::NEG_INFINITY, 3.0), f32::NEG_INFINITY);
    }

    #[test]
    fn lanes_reach_every_comparison() {
        let cases = [(1.0, 2.0), (2.0, 2.0), (3.0, 2.0), (f32::NAN, 2.0)];
        for (cmp, want) in [
            (FloatCmp::Eq, 0b0010),
            (FloatCmp::Ne, 0b0101),
            (FloatCmp::Ltu, 0b1001),
            (FloatCmp::Geu, 0b1110),
            (FloatCmp::Neu, 0b1101),
            (FloatCmp::Num, 0b0111),
            (FloatCmp::Nan, 0b1000),
        ] {
            let mut got = 0;
            for (i, (x, y)) in cases.into_iter().enumerate() {
                got |= u32::from(compares(cmp, x < y, x == y, x > y)) << i;
            }
            assert_eq!(got, want, "{cmp:?}");
        }
    }
}
