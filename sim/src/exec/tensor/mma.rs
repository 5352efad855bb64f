//! `mma.sync.m16n8kK` (PTX ISA §9.7.14.5.8): fragments and the product.
//!
//! With g = lane / 4 and t = lane mod 4, and two 16-bit elements to a register:
//! A₀ = (g, 2t), A₁ = (g + 8, 2t), A₂ = (g, 2t + 8), A₃ = (g + 8, 2t + 8); B₀ = (2t, g),
//! B₁ = (2t + 8, g); C = (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1). For tf32, one element to a
//! register: A = (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4); B = (t, g), (t + 4, g).

use super::element::{element, to_f16x2, to_f32};
use crate::exec::regs::{LANES, Regs, each_lane};
use crate::exec::{State, Warp};
use crate::fault::Exec;
use crate::ir::{Mma, MmaTy};

const M: usize = 16;
const N: usize = 8;
const MAX_K: usize = 16;

impl State<'_> {
    pub(in crate::exec) fn mma(&mut self, warp: &mut Warp, m: u32, op: &Mma) -> Exec<()> {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: this CPU has AVX2.
            unsafe { multiply_avx2(&mut warp.regs, m, op) };
            return Ok(());
        }
        multiply(&mut warp.regs, m, op);
        Ok(())
    }
}

/// # Safety
/// The CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn multiply_avx2(regs: &mut Regs, m: u32, op: &Mma) {
    multiply(regs, m, op);
}

/// Matrix coordinates of a fragment's element: `register`, `half` of it, in `lane`; `outer` is the row
/// of A or the column of B, the result `(outer, k)`.
#[inline(always)]
fn place(ty: MmaTy, lane: usize, block: usize, half: usize) -> (usize, usize) {
    let (g, t) = (lane / 4, lane % 4);
    if ty == MmaTy::Tf32 {
        (g, t + 4 * block)
    } else {
        (g, 2 * t + 8 * block + half)
    }
}

#[inline(always)]
fn multiply(regs: &mut Regs, m: u32, op: &Mma) {
    let halves = if op.ab == MmaTy::Tf32 { 1 } else { 2 };
    let k = op.k as usize;
    let mut a = [[0f64; MAX_K]; M];
    for (i, &reg) in op.a.iter().enumerate() {
        // Registers alternate between rows g and g + 8, then move on along k.
        let (down, block) = (8 * (i % 2), i / 2);
        for (lane, &v) in regs.get32(reg).iter().enumerate() {
            for half in 0..halves {
                let (row, col) = place(op.ab, lane, block, half);
                a[row + down][col] = element(op.ab, v, half).into();
            }
        }
    }
    let mut b = [[0f64; N]; MAX_K];
    for (block, &reg) in op.b.iter().enumerate() {
        for (lane, &v) in regs.get32(reg).iter().enumerate() {
            for half in 0..halves {
                let (col, row) = place(op.ab, lane, block, half);
                b[row][col] = element(op.ab, v, half).into();
            }
        }
    }
    let mut acc = [[0f64; N]; M];
    for lane in 0..LANES {
        let (g, t) = (lane / 4, 2 * (lane % 4));
        for i in 0..4 {
            let (row, col) = (g + 8 * (i / 2), t + i % 2);
            acc[row][col] = if op.acc == MmaTy::F32 {
                f32::from_bits(regs.get32(op.c[i])[lane])
            } else {
                element(MmaTy::F16, regs.get32(op.c[i / 2])[lane], i % 2)
            }
            .into();
        }
    }
    for (row, acc) in acc.iter_mut().enumerate() {
        for (kk, b) in b.iter().enumerate().take(k) {
            let x = a[row][kk];
            for (sum, y) in acc.iter_mut().zip(b) {
                *sum += x * y;
            }
        }
    }
    let at = |lane: usize, i: usize| acc[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2];
    for (i, &reg) in op.d.iter().enumerate() {
        let value = if op.acc == MmaTy::F32 {
            each_lane(|lane| to_f32(at(lane, i)))
        } else {
            each_lane(|lane| to_f16x2(at(lane, 2 * i), at(lane, 2 * i + 1)))
        };
        regs.put32(reg, &value, m);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A·B + C for A = row index + 1 at k = 3 only, B = column index + 1 at k = 3 only.
    fn run(ab: MmaTy, acc: MmaTy, k: u32) -> Regs {
        let one = |x: f32| match ab {
            MmaTy::F16 => u32::from(half::f16::from_f32(x).to_bits()),
            MmaTy::Bf16 => u32::from(half::bf16::from_f32(x).to_bits()),
            _ => x.to_bits(),
        };
        let halves = if ab == MmaTy::Tf32 { 1 } else { 2 };
        let na = 16 * k as usize / 32 / halves;
        let nb = (8 * k as usize / 32 / halves).max(1);
        let mut regs = Regs::new(32, 1, 2);
        let mut fill = |reg: u32, f: &dyn Fn(usize, usize) -> f32| {
            let v = std::array::from_fn(|lane| {
                (0..halves).fold(0, |bits, half| bits | one(f(lane, half)) << (16 * half))
            });
            regs.put32(reg, &v, u32::MAX);
        };
        for i in 0..na {
            fill(1 + i as u32, &|lane, half| {
                let (row, col) = place(ab, lane, i / 2, half);
                if col == 3 {
                    (row + 8 * (i % 2) + 1) as f32
                } else {
                    0.0
                }
            });
        }
        for i in 0..nb {
            fill(8 + i as u32, &|lane, half| {
                let (col, row) = place(ab, lane, i, half);
                if row == 3 { (col + 1) as f32 } else { 0.0 }
            });
        }
        let nd = if acc == MmaTy::F32 { 4 } else { 2 };
        let op = Mma {
            k,
            ab,
            acc,
            a: (1..1 + na as u32).collect(),
            b: (8..8 + nb as u32).collect(),
            c: (12..12 + nd).collect(),
            d: (16..16 + nd).collect(),
        };
        multiply(&mut regs, u32::MAX, &op);
        regs
    }

    #[test]
    fn an_outer_product_lands_where_the_layout_says() {
        for (ab, k) in [
            (MmaTy::F16, 16),
            (MmaTy::Bf16, 16),
            (MmaTy::Bf16, 8),
            (MmaTy::Tf32, 8),
            (MmaTy::Tf32, 4),
        ] {
            let regs = run(ab, MmaTy::F32, k);
            for lane in 0..LANES {
                for i in 0..4 {
                    let (row, col) = (lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2);
                    let got = f32::from_bits(regs.get32(16 + i as u32)[lane]);
                    assert_eq!(got, ((row + 1) * (col + 1)) as f32, "{ab:?} k{k}");
                }
            }
        }
    }

    #[test]
    fn f16_accumulators_are_packed() {
        let regs = run(MmaTy::F16, MmaTy::F16, 16);
        let v = regs.get32(17)[5];
        assert_eq!(element(MmaTy::F16, v, 0), 10.0 * 3.0);
        assert_eq!(element(MmaTy::F16, v, 1), 10.0 * 4.0);
    }
}
