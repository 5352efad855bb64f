//! Bit-field and byte operations.

use super::regs::Regs;
use crate::ir::{PrmtMode, Tern32};

/// Bit field extract (PTX ISA §9.7.1.22).
pub(super) fn bfe64(a: u64, pos: u32, len: u32, signed: bool) -> u64 {
    bfe(a, pos & 0xff, len & 0xff, 64, signed)
}

fn bfe(a: u64, pos: u32, len: u32, width: u32, signed: bool) -> u64 {
    let msb = width - 1;
    let sign = if !signed || len == 0 {
        0
    } else {
        a >> (pos + len - 1).min(msb) & 1
    };
    let mask = if len >= 64 { u64::MAX } else { (1 << len) - 1 };
    let field = if pos > msb { 0 } else { a >> pos & mask };
    // Bits of the field above the operand's top take the sign.
    let present = if pos > msb { 0 } else { len.min(width - pos) };
    if sign == 1 && present < 64 {
        field | u64::MAX << present
    } else {
        field
    }
}

/// Bit field insert of `a` into `b` (PTX ISA §9.7.1.23).
pub(super) fn bfi(a: u64, b: u64, pos: u32, len: u32, width: u32) -> u64 {
    let (pos, len) = (pos & 0xff, len & 0xff);
    if pos >= width || len == 0 {
        return b;
    }
    let mask = if len >= 64 { u64::MAX } else { (1 << len) - 1 };
    b & !(mask << pos) | (a & mask) << pos
}

/// Byte permute (PTX ISA §9.7.9.7).
fn prmt(mode: PrmtMode, a: u32, b: u32, c: u32) -> u32 {
    let bytes: [u8; 8] = (u64::from(a) | u64::from(b) << 32).to_le_bytes();
    let c1 = c & 3;
    let pick = |i: u32| -> u8 {
        let index = match mode {
            PrmtMode::Default => {
                let selector = c >> (4 * i);
                let byte = bytes[(selector & 7) as usize];
                // Bit 3 replicates the sign of the chosen byte.
                return if selector & 8 != 0 {
                    ((byte as i8) >> 7) as u8
                } else {
                    byte
                };
            }
            PrmtMode::F4e => c1 + i,
            PrmtMode::B4e => c1.wrapping_sub(i) & 7,
            PrmtMode::Rc8 => c1,
            PrmtMode::Ecl => c1.max(i),
            PrmtMode::Ecr => c1.min(i),
            PrmtMode::Rc16 => (c1 & 1) * 2 + (i & 1),
        };
        bytes[index as usize]
    };
    u32::from_le_bytes([pick(0), pick(1), pick(2), pick(3)])
}

fn lop3(table: u8, a: u32, b: u32, c: u32) -> u32 {
    let mut result = 0;
    for row in 0..8u32 {
        if table >> row & 1 == 1 {
            let pick = |x: u32, bit: u32| if row >> bit & 1 == 1 { x } else { !x };
            result |= pick(a, 2) & pick(b, 1) & pick(c, 0);
        }
    }
    result
}

fn dp4a(a_signed: bool, b_signed: bool, a: u32, b: u32, c: u32) -> u32 {
    let byte = |x: u8, signed: bool| {
        if signed {
            i32::from(x as i8)
        } else {
            i32::from(x)
        }
    };
    a.to_le_bytes()
        .into_iter()
        .zip(b.to_le_bytes())
        .fold(c, |sum, (x, y)| {
            sum.wrapping_add((byte(x, a_signed) * byte(y, b_signed)) as u32)
        })
}

fn bmsk(pos: u32, len: u32) -> u32 {
    if pos > 31 || len == 0 {
        return 0;
    }
    let ones = if len > 31 { u32::MAX } else { (1 << len) - 1 };
    ones << pos
}

#[inline(always)]
pub(super) fn tern32(regs: &mut Regs, m: u32, f: Tern32, r: [u32; 4]) {
    let funnel = |lo: u32, hi: u32| u64::from(lo) | u64::from(hi) << 32;
    match f {
        Tern32::ShfLeftWrap => regs.tern32(m, r, |a, b, c| (funnel(a, b) << (c & 31) >> 32) as u32),
        Tern32::ShfLeftClamp => {
            regs.tern32(m, r, |a, b, c| (funnel(a, b) << c.min(32) >> 32) as u32)
        }
        Tern32::ShfRightWrap => regs.tern32(m, r, |a, b, c| (funnel(a, b) >> (c & 31)) as u32),
        Tern32::ShfRightClamp => regs.tern32(m, r, |a, b, c| (funnel(a, b) >> c.min(32)) as u32),
        Tern32::Lop3(table) => regs.tern32(m, r, |a, b, c| lop3(table, a, b, c)),
        Tern32::Prmt(mode) => regs.tern32(m, r, |a, b, c| prmt(mode, a, b, c)),
        Tern32::SadU => regs.tern32(m, r, |a, b, c| c.wrapping_add(a.abs_diff(b))),
        Tern32::SadS => regs.tern32(m, r, |a, b, c| {
            c.wrapping_add((a as i32).abs_diff(b as i32))
        }),
        Tern32::Dp4a { a_signed, b_signed } => {
            regs.tern32(m, r, |a, b, c| dp4a(a_signed, b_signed, a, b, c));
        }
        Tern32::BfeU => regs.tern32(m, r, |a, p, l| {
            bfe(a.into(), p & 0xff, l & 0xff, 32, false) as u32
        }),
        Tern32::BfeS => regs.tern32(m, r, |a, p, l| {
            bfe(a.into(), p & 0xff, l & 0xff, 32, true) as u32
        }),
        Tern32::Mul24Lo { signed, add } => regs.tern32(m, r, |a, b, c| {
            let cut = |x: u32| {
                if signed {
                    ((x << 8) as i32 >> 8) as u32
                } else {
                    x & 0xff_ffff
                }
            };
            let product = cut(a).wrapping_mul(cut(b));
            if add {
                product.wrapping_add(c)
            } else {
                product
            }
        }),
        Tern32::BmskClamp => regs.tern32(m, r, |a, b, _| bmsk(a, b.min(32))),
        Tern32::BmskWrap => regs.tern32(m, r, |a, b, _| bmsk(a & 31, b & 31)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bit_fields() {
        assert_eq!(bfe(0xabcd_1234, 8, 8, 32, false), 0x12);
        assert_eq!(bfe(0x8000_0000, 28, 8, 32, true) as u32, 0xffff_fff8);
        assert_eq!(bfe64(u64::MAX, 0, 64, false), u64::MAX);
        assert_eq!(bfi(0xf, 0, 4, 4, 32), 0xf0);
        assert_eq!(bmsk(4, 8), 0xff0);
    }

    #[test]
    fn permutes_and_tables() {
        assert_eq!(
            prmt(PrmtMode::Default, 0x3322_1100, 0x7766_5544, 0x7531),
            0x7755_3311
        );
        assert_eq!(prmt(PrmtMode::Default, 0x80, 0, 0x8888), 0xffff_ffff);
        assert_eq!(prmt(PrmtMode::Rc16, 0x3322_1100, 0, 1), 0x3322_3322);
        // 0xf0 & 0xcc is the table of a & b.
        assert_eq!(lop3(0xf0 & 0xcc, 12, 10, 7), 12 & 10);
        assert_eq!(lop3(0x96, 12, 10, 7), 12 ^ 10 ^ 7);
        assert_eq!(dp4a(true, true, 0xff01_0101, 0x0101_0101, 5), 7);
    }
}
