//! The functions of `atom`, `red` and bulk reductions (PTX ISA §9.7.13.5).

use crate::ir::{FloatMods, FloatOp, RmwOp, RmwTy};
use crate::num::ops::{flush, half_op};

/// `f(old, a)`, with `b` the new value of `cas`. `flushes`: f32 additions treat subnormals as zero, as
/// those on global memory do.
pub(crate) fn apply(f: RmwOp, ty: RmwTy, [old, a, b]: [u64; 3], flushes: bool) -> u64 {
    let bits = 8 * ty.bytes();
    let mask = u64::MAX >> (64 - bits);
    let (old, a) = (old & mask, a & mask);
    let signed = |x: u64| ((x << (64 - bits)) as i64) >> (64 - bits);
    let is_signed = matches!(ty, RmwTy::S32 | RmwTy::S64);
    let value = match f {
        RmwOp::Exch => a,
        RmwOp::Cas => {
            if old == a {
                b
            } else {
                old
            }
        }
        RmwOp::And => old & a,
        RmwOp::Or => old | a,
        RmwOp::Xor => old ^ a,
        RmwOp::Inc => {
            if old >= a {
                0
            } else {
                old + 1
            }
        }
        RmwOp::Dec => {
            if old == 0 || old > a {
                a
            } else {
                old - 1
            }
        }
        RmwOp::Add => match ty {
            RmwTy::F32 => {
                let (x, y) = (f32::from_bits(old as u32), f32::from_bits(a as u32));
                let sum = if flushes {
                    flush(flush(x) + flush(y))
                } else {
                    x + y
                };
                sum.to_bits().into()
            }
            RmwTy::F64 => (f64::from_bits(old) + f64::from_bits(a)).to_bits(),
            RmwTy::F16 | RmwTy::Bf16 | RmwTy::F16x2 | RmwTy::Bf16x2 => {
                half(FloatOp::Add, ty, old, a)
            }
            _ => old.wrapping_add(a),
        },
        RmwOp::Min | RmwOp::Max => {
            let max = f == RmwOp::Max;
            match ty {
                RmwTy::F16 | RmwTy::Bf16 | RmwTy::F16x2 | RmwTy::Bf16x2 => {
                    half(if max { FloatOp::Max } else { FloatOp::Min }, ty, old, a)
                }
                _ => {
                    let less = if is_signed {
                        signed(old) < signed(a)
                    } else {
                        old < a
                    };
                    if less == max { a } else { old }
                }
            }
        }
    };
    value & mask
}

fn half(f: FloatOp, ty: RmwTy, old: u64, a: u64) -> u64 {
    let bf16 = matches!(ty, RmwTy::Bf16 | RmwTy::Bf16x2);
    let (old, a) = (old as u32, a as u32);
    let low = half_op(f, FloatMods::PLAIN, bf16, old, a, 0);
    let high = if matches!(ty, RmwTy::F16x2 | RmwTy::Bf16x2) {
        half_op(f, FloatMods::PLAIN, bf16, old >> 16, a >> 16, 0) << 16
    } else {
        0
    };
    (low | high).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(f: RmwOp, ty: RmwTy, old: u64, a: u64, b: u64) -> u64 {
        super::apply(f, ty, [old, a, b], false)
    }

    #[test]
    fn functions() {
        assert_eq!(
            apply(RmwOp::Max, RmwTy::S32, (-1i32 as u32).into(), 3, 0),
            3
        );
        assert_eq!(
            apply(RmwOp::Max, RmwTy::U32, (-1i32 as u32).into(), 3, 0),
            0xffff_ffff
        );
        assert_eq!(
            apply(RmwOp::Min, RmwTy::S32, (-1i32 as u32).into(), 3, 0),
            0xffff_ffff
        );
        assert_eq!(apply(RmwOp::Cas, RmwTy::U64, 5, 5, 9), 9);
        assert_eq!(apply(RmwOp::Cas, RmwTy::U64, 4, 5, 9), 4);
        assert_eq!(apply(RmwOp::Inc, RmwTy::U32, 7, 7, 0), 0);
        assert_eq!(apply(RmwOp::Dec, RmwTy::U32, 0, 7, 0), 7);
        let (one, two) = (1f32.to_bits().into(), 2f32.to_bits().into());
        assert_eq!(
            apply(RmwOp::Add, RmwTy::F32, one, two, 0),
            3f32.to_bits().into()
        );
        assert_eq!(
            apply(RmwOp::Add, RmwTy::Bf16x2, 0x3f80_3f80, 0x4000_3f80, 0),
            0x4040_4000
        );
    }

    #[test]
    fn global_f32_additions_flush_subnormals() {
        let add = |flushes| super::apply(RmwOp::Add, RmwTy::F32, [1, 1, 0], flushes);
        assert_eq!((add(false), add(true)), (2, 0));
    }
}
