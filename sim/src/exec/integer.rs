//! Integer instructions over lanes (PTX ISA §9.7.1, §9.7.2, §9.7.8).

use super::regs::{LANES, Regs, each2};
use crate::ir::{BitCount, IntBin, IntCmp, IntTy, IntUn};

#[inline(always)]
pub(super) fn int_cmp(regs: &Regs, cmp: IntCmp, t: IntTy, a: u32, b: u32) -> u32 {
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
pub(super) fn int_bin(regs: &mut Regs, m: u32, f: IntBin, t: IntTy, r: [u32; 3]) {
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
                IntBin::MinRelu => regs.$op(m, r, |a, b| put((a as $t).min(b as $t).max(0))),
                IntBin::MaxRelu => regs.$op(m, r, |a, b| put((a as $t).max(b as $t).max(0))),
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
pub(super) fn int_un(regs: &mut Regs, m: u32, f: IntUn, t: IntTy, d: u32, a: u32) {
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
pub(super) fn bit_count(regs: &mut Regs, m: u32, f: BitCount, t: IntTy, d: u32, a: u32) {
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
pub(super) fn shift(regs: &mut Regs, m: u32, t: IntTy, [d, a, b]: [u32; 3], left: bool) {
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
pub(super) fn mad(regs: &mut Regs, m: u32, hi: bool, t: IntTy, r: [u32; 4]) {
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
pub(super) fn mul_wide(regs: &mut Regs, m: u32, t: IntTy, [d, a, b]: [u32; 3], add: Option<u32>) {
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

pub(super) fn add_carry(
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
