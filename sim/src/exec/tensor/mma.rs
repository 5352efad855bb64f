//! `mma.sync.m16n8kK` (PTX ISA §9.7.14.5.8): fragments and the product.
//!
//! With g = lane / 4 and t = lane mod 4, and two 16-bit elements to a register:
//! A₀ = (g, 2t), A₁ = (g + 8, 2t), A₂ = (g, 2t + 8), A₃ = (g + 8, 2t + 8); B₀ = (2t, g),
//! B₁ = (2t + 8, g); C = (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1). For tf32, one element to a
//! register: A = (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4); B = (t, g), (t + 4, g).

use super::product::{self, Columns, Rows};
use crate::exec::regs::{LANES, Regs};
use crate::exec::vector::{MultiplyAdd, vectorised};
use crate::exec::{State, Warp};
use crate::fault::Exec;
use crate::ir::Mma;

/// Accumulators of a lane.
const ACCUMULATORS: usize = 4;

impl State<'_> {
    pub(in crate::exec) fn mma(&mut self, warp: &mut Warp, m: u32, op: &Mma) -> Exec<()> {
        multiply(&mut warp.regs, m, op);
        Ok(())
    }
}

vectorised! {
    fn multiply(regs: &mut Regs, m: u32, op: &Mma) = multiply_inline;
}

#[inline(always)]
fn multiply_inline<A: MultiplyAdd>(regs: &mut Regs, m: u32, op: &Mma) {
    let rows = Rows::of_fragment(regs, &op.a, op.ab);
    let columns = Columns::of_fragment(regs, &op.b, op.ab);
    let mut acc = [[0.0; LANES]; ACCUMULATORS];
    product::load(regs, &op.c, op.acc, &mut acc);
    product::add::<A>(&mut acc, &rows, &columns, op.k as usize);
    product::store(regs, &op.d, op.acc, &acc, m);
}

#[cfg(test)]
mod tests {
    use super::super::element::element;
    use super::*;
    use crate::ir::MmaTy;

    /// Matrix coordinates of a fragment's element: `half` of a register, in `lane`; first the row of A or the column of B, then k.
    fn place(ty: MmaTy, lane: usize, block: usize, half: usize) -> (usize, usize) {
        let (g, t) = (lane / 4, lane % 4);
        if ty == MmaTy::Tf32 {
            (g, t + 4 * block)
        } else {
            (g, 2 * t + 8 * block + half)
        }
    }

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

    #[test]
    fn every_vector_unit_computes_the_same_bits() {
        let op = Mma {
            k: 16,
            ab: MmaTy::F16,
            acc: MmaTy::F32,
            a: (1..5).collect(),
            b: (5..7).collect(),
            c: (7..11).collect(),
            d: (11..15).collect(),
        };
        let mut regs = Regs::new(15, 1, 2);
        for reg in 1..11 {
            // All bits, so that numbers of every kind and size meet.
            let v = std::array::from_fn(|lane| (reg * 32 + lane as u32).wrapping_mul(0x9e37_79b9));
            regs.put32(reg, &v, u32::MAX);
        }
        multiply(&mut regs, u32::MAX, &op);
        let by_best = [11, 12, 13, 14].map(|reg| *regs.get32(reg));
        multiply_inline::<crate::exec::vector::Apart>(&mut regs, u32::MAX, &op);
        assert_eq!(by_best, [11, 12, 13, 14].map(|reg| *regs.get32(reg)));
    }
}
