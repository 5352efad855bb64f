//! `cvt` over lanes (PTX ISA §9.7.9.21).

use super::regs::{LANES, Regs, each1};
use crate::ir::{Cvt, CvtTy, FloatMods, Round, Width};
use crate::num::exact;
use crate::num::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::num::ops::{flush, integral, relu};
use crate::num::round::{BF16, F16, F32, TF32, canonical_nan, round};

/// The integer a register's low `bits` hold.
fn int_of(raw: u64, bits: u32, signed: bool) -> i128 {
    let shifted = raw << (64 - bits);
    if signed {
        i128::from(shifted as i64 >> (64 - bits))
    } else {
        i128::from(shifted >> (64 - bits))
    }
}

fn float_of(ty: CvtTy, raw: u64, ftz: bool) -> f64 {
    match ty {
        CvtTy::F16 => f16_to_f32(raw as u32 & 0xffff).into(),
        CvtTy::Bf16 => bf16_to_f32(raw as u32 & 0xffff).into(),
        CvtTy::F64 => f64::from_bits(raw),
        _ => {
            let x = f32::from_bits(raw as u32);
            f64::from(if ftz { flush(x) } else { x })
        }
    }
}

fn int_range(bits: u32, signed: bool) -> (i128, i128) {
    if signed {
        (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    } else {
        (0, (1 << bits) - 1)
    }
}

/// One element, as the bits of its destination register.
fn convert(c: &Cvt, raw: u64) -> u64 {
    let m = c.mods;
    match (c.from, c.to) {
        (
            CvtTy::Int { bits, signed },
            CvtTy::Int {
                bits: to,
                signed: to_signed,
            },
        ) => {
            let mut value = int_of(raw, bits, signed);
            if m.sat {
                let (low, high) = int_range(to, to_signed);
                value = value.clamp(low, high);
            }
            // The result is extended to the register by its own signedness.
            extend(int_of(value as u64, to, to_signed), c.dst)
        }
        (CvtTy::Int { bits, signed }, CvtTy::F64) => {
            int_to_f64(int_of(raw, bits, signed), m.round).to_bits()
        }
        (CvtTy::Int { bits, signed }, to) => to_float(to, exact::int(int_of(raw, bits, signed)), m),
        (from, CvtTy::Int { bits, signed }) => {
            let x = float_of(from, raw, m.ftz);
            // Out-of-range values clamp. NaN becomes 0, or the lowest value's bits where either type
            // has 64 bits (§9.7.9.21).
            let nan = if bits == 64 || from == CvtTy::F64 {
                1i128 << (bits - 1)
            } else {
                0
            };
            let (low, high) = int_range(bits, signed);
            let value = (integral(x, m.round) as i128).clamp(low, high);
            extend(if x.is_nan() { nan } else { value }, c.dst)
        }
        (from, to) => {
            let mut x = float_of(from, raw, m.ftz);
            if c.integral {
                x = integral(x, m.round);
            }
            to_float(to, x, m)
        }
    }
}

/// An integer of at most 64 bits as an f64.
fn int_to_f64(value: i128, round: Round) -> f64 {
    let nearest = value as f64;
    let excess = nearest as i128 - value;
    let down = match round {
        Round::Nearest | Round::NearestAway => return nearest,
        Round::Down => true,
        Round::Up => false,
        Round::Zero => value > 0,
    };
    match (down, excess) {
        (true, 1..) => nearest.next_down(),
        (false, ..0) => nearest.next_up(),
        _ => nearest,
    }
}

fn extend(value: i128, dst: Width) -> u64 {
    match dst {
        Width::W64 => value as u64,
        Width::W32 => u64::from(value as u32),
    }
}

fn to_float(to: CvtTy, x: f64, m: FloatMods) -> u64 {
    let mut x = x;
    if m.sat {
        x = if x > 0.0 { x.min(1.0) } else { 0.0 };
    }
    if m.relu {
        x = relu(x);
    }
    let bits = match to {
        CvtTy::F64 => {
            return if x.is_nan() {
                f64::NAN.to_bits()
            } else {
                x.to_bits()
            };
        }
        CvtTy::F16 => round(x, F16, m.round),
        CvtTy::Bf16 => round(x, BF16, m.round),
        CvtTy::Tf32 => round(x, TF32, m.round),
        _ => {
            let bits = round(x, F32, m.round);
            if m.ftz {
                flush(f32::from_bits(bits)).to_bits()
            } else {
                bits
            }
        }
    };
    u64::from(bits)
}

const fn int(bits: u32, signed: bool) -> CvtTy {
    CvtTy::Int { bits, signed }
}

/// The conversions that are most of the traffic, lane by lane without a branch; any other takes the slow way.
#[inline(always)]
pub(super) fn cvt(regs: &mut Regs, m: u32, c: &Cvt) {
    const U16: CvtTy = int(16, false);
    const U32: CvtTy = int(32, false);
    const S32: CvtTy = int(32, true);
    if c.mods != FloatMods::PLAIN || c.integral {
        return slow(regs, m, c);
    }
    match (c.from, c.to, c.dst) {
        (U32, CvtTy::Int { bits: 64, .. }, Width::W64) => {
            let v = each1(regs.get32(c.a), u64::from);
            regs.put64(c.d, &v, m);
        }
        (S32, CvtTy::Int { bits: 64, .. }, Width::W64) => {
            let v = each1(regs.get32(c.a), |x| i64::from(x as i32) as u64);
            regs.put64(c.d, &v, m);
        }
        (CvtTy::Int { bits: 64, .. }, CvtTy::Int { bits: 32, .. }, Width::W32) => {
            let v = each1(regs.get64(c.a), |x| x as u32);
            regs.put32(c.d, &v, m);
        }
        (U16, CvtTy::Int { bits: 32, .. }, Width::W32) => {
            let v = each1(regs.get32(c.a), |x| x & 0xffff);
            regs.put32(c.d, &v, m);
        }
        (U32, CvtTy::F32, Width::W32) => {
            let v = each1(regs.get32(c.a), |x| (x as f32).to_bits());
            regs.put32(c.d, &v, m);
        }
        (S32, CvtTy::F32, Width::W32) => {
            let v = each1(regs.get32(c.a), |x| (x as i32 as f32).to_bits());
            regs.put32(c.d, &v, m);
        }
        (CvtTy::F16, CvtTy::F32, Width::W32) => {
            let v = each1(regs.get32(c.a), |x| canonical_nan(f16_to_f32(x & 0xffff)));
            regs.put32(c.d, &v, m);
        }
        (CvtTy::Bf16, CvtTy::F32, Width::W32) => {
            let v = each1(regs.get32(c.a), |x| canonical_nan(bf16_to_f32(x & 0xffff)));
            regs.put32(c.d, &v, m);
        }
        _ => slow(regs, m, c),
    }
}

#[inline(never)]
fn slow(regs: &mut Regs, m: u32, c: &Cvt) {
    let raw: [u64; LANES] = match c.from.width() {
        Width::W32 => regs.get32(c.a).map(u64::from),
        Width::W64 => *regs.get64(c.a),
    };
    let v = raw.map(|x| convert(c, x));
    match c.dst {
        Width::W64 => regs.put64(c.d, &v, m),
        Width::W32 => {
            // A result narrower than 32 bits fills its register zero- or sign-extended; 16-bit
            // registers keep their upper half clear.
            let narrow = matches!(c.to, CvtTy::Int { bits: 16, .. });
            let mask = if narrow { 0xffff } else { u32::MAX };
            regs.put32(c.d, &v.map(|x| x as u32 & mask), m);
        }
    }
}

#[inline(always)]
fn pair(one: impl Fn(f32) -> u32, hi: u32, lo: u32) -> u32 {
    one(f32::from_bits(lo)) | one(f32::from_bits(hi)) << 16
}

#[inline(always)]
pub(super) fn pack(regs: &mut Regs, m: u32, bf16: bool, mods: FloatMods, r: [u32; 3]) {
    if mods == FloatMods::PLAIN {
        if bf16 {
            regs.bin32(m, r, |hi, lo| pair(f32_to_bf16, hi, lo));
        } else {
            regs.bin32(m, r, |hi, lo| pair(f32_to_f16, hi, lo));
        }
        return;
    }
    let format = if bf16 { BF16 } else { F16 };
    let one = |x: u32| {
        let x = f64::from(f32::from_bits(x));
        let x = if mods.relu { relu(x) } else { x };
        round(x, format, mods.round)
    };
    regs.bin32(m, r, |hi, lo| one(lo) | one(hi) << 16);
}

/// The f16 of an e4m3 code, NaN as 0x7fff.
#[inline(always)]
fn f16_of_code(code: u32) -> u32 {
    const NAN: u32 = 0x7f;
    let magnitude = code & NAN;
    // As an f16 whose exponent has the same bits, of which the bias is greater by 8.
    let scaled = f16_to_f32(magnitude << 7) * 256.0;
    let bits = f32_to_f16(scaled) | (code & 0x80) << 8;
    if magnitude == NAN { 0x7fff } else { bits }
}

/// Two codes, lower byte first.
pub(super) fn codes(regs: &mut Regs, m: u32, relu: bool, [d, a]: [u32; 2]) {
    let one = |code: u32| {
        let value = f16_of_code(code & 0xff);
        let is_below = relu && value & 0x8000 != 0;
        if is_below { 0 } else { value }
    };
    let v = each1(regs.get32(a), |x| one(x) | one(x >> 8) << 16);
    regs.put32(d, &v, m);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Round;

    fn one(from: CvtTy, to: CvtTy, round: Round, integral: bool, raw: u64) -> u64 {
        let mods = FloatMods {
            round,
            ..FloatMods::PLAIN
        };
        let dst = to.width();
        convert(
            &Cvt {
                from,
                to,
                mods,
                integral,
                dst,
                d: 0,
                a: 0,
            },
            raw,
        )
    }

    #[test]
    fn integers_become_f64_by_the_rounding_asked_for() {
        const ODD: i128 = (1 << 54) + 1;
        let below = (1i64 << 54) as f64;
        assert_eq!(int_to_f64(ODD, Round::Nearest), below);
        assert_eq!(int_to_f64(ODD, Round::Up), below.next_up());
        assert_eq!(int_to_f64(ODD, Round::Down), below);
        assert_eq!(int_to_f64(-ODD, Round::Zero), -below);
        assert_eq!(int_to_f64(-ODD, Round::Down), (-below).next_down());
        // Two from either neighbour: to the one with an even significand.
        assert_eq!(int_to_f64((1 << 54) + 6, Round::Nearest), below + 8.0);
        assert_eq!(int_to_f64((1 << 54) + 7, Round::Down), below + 4.0);
    }

    #[test]
    fn integers_and_floats() {
        let u32_ = CvtTy::Int {
            bits: 32,
            signed: false,
        };
        let s32 = CvtTy::Int {
            bits: 32,
            signed: true,
        };
        let s64 = CvtTy::Int {
            bits: 64,
            signed: true,
        };
        let u8_ = CvtTy::Int {
            bits: 8,
            signed: false,
        };
        let f = |x: f32| u64::from(x.to_bits());
        assert_eq!(
            one(s32, s64, Round::Nearest, false, 0xffff_fffe),
            -2i64 as u64
        );
        assert_eq!(
            one(CvtTy::F32, s32, Round::Zero, true, f(-3.9)),
            (-3i32 as u32).into()
        );
        assert_eq!(
            one(CvtTy::F32, s32, Round::Zero, true, f(1e20)),
            i32::MAX as u64
        );
        assert_eq!(one(CvtTy::F32, u32_, Round::Zero, true, f(-5.0)), 0);
        assert_eq!(one(CvtTy::F32, s32, Round::Zero, true, f(f32::NAN)), 0);
        assert_eq!(one(u32_, u8_, Round::Nearest, false, 0x1ff), 0xff);
        assert_eq!(
            one(u32_, CvtTy::F32, Round::Nearest, false, 16_777_217),
            f(16_777_216.0)
        );
        assert_eq!(
            one(u32_, CvtTy::F32, Round::Up, false, 16_777_217),
            f(16_777_218.0)
        );
        assert_eq!(
            one(CvtTy::F32, CvtTy::F32, Round::Down, true, f(-0.5)),
            f(-1.0)
        );
        assert_eq!(
            one(CvtTy::F32, CvtTy::F16, Round::Nearest, false, f(65520.0)),
            0x7c00
        );
    }
}
