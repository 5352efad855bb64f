//! What a matrix instruction adds to one warp's accumulators, which stay as the fragment lays them out.
//!
//! With g = lane / 4 and t = lane mod 4, accumulator i (in f32's numbering) of a lane is of row g + 8 · (i / 2 mod 2) and column
//! 8 · (i / 4) + 2t + i mod 2 (PTX ISA §9.7.14.5.8). So a lane multiplies elements of two rows of A, and lanes of the same t the same
//! columns of B.

use super::element::{element, to_f16x2, to_f32};
use crate::exec::regs::{LANES, Regs, each_lane, each1};
use crate::exec::vector::MultiplyAdd;
use crate::ir::{MmaTy, Reg};

/// Largest k of an instruction.
pub(super) const MAX_K: usize = 16;

/// Lanes of one g, and the columns of one parity in eight.
const QUAD: usize = 4;

/// Accumulators of a lane in eight columns.
const PER_EIGHT: usize = 4;

/// Rows of a warp's part of A or D.
pub(super) const ROWS: usize = 16;

/// Sixteen rows of A: of each k, what lanes multiply for accumulators of row g and of row g + 8.
pub(super) struct Rows([[[f64; LANES]; 2]; MAX_K]);

impl Rows {
    pub(super) const ZERO: Self = Self([[[0.0; LANES]; 2]; MAX_K]);

    /// Enters the element at `row` and `k`.
    #[inline(always)]
    pub(super) fn set(&mut self, row: usize, k: usize, x: f64) {
        let (down, g) = (row / 8, row % 8);
        self.0[k][down][g * QUAD..(g + 1) * QUAD].fill(x);
    }

    /// The fragment in the registers `a`, which alternate between rows g and g + 8, then move on along k.
    #[inline(always)]
    pub(super) fn of_fragment(regs: &Regs, a: &[Reg], ty: MmaTy) -> Self {
        let mut rows = Self::ZERO;
        for (i, &reg) in a.iter().enumerate() {
            let (down, block) = (i % 2, i / 2);
            of_each_k(regs, reg, ty, block, |t, k, x| {
                for (lane, to) in rows.0[k][down].iter_mut().enumerate() {
                    *to = x[lane / QUAD * QUAD + t];
                }
            });
        }
        rows
    }

    pub(super) fn negate(&mut self) {
        let all = self.0.as_flattened_mut().as_flattened_mut();
        all.iter_mut().for_each(|x| *x = -*x);
    }
}

/// Columns of B: of each eight, of the even and the odd ones, of each k, what lanes of each t multiply.
pub(super) struct Columns(Vec<[f64; QUAD]>);

impl Columns {
    pub(super) fn new(columns: usize) -> Self {
        Self(vec![[0.0; QUAD]; columns / QUAD * MAX_K])
    }

    /// Enters the element at `k` and `column`.
    #[inline(always)]
    pub(super) fn set(&mut self, k: usize, column: usize, x: f64) {
        let (eight, t, odd) = (column / 8, column % 8 / 2, column % 2);
        self.0[(2 * eight + odd) * MAX_K + k][t] = x;
    }

    /// The fragment of eight columns in the registers `b`, in which g is the column.
    #[inline(always)]
    pub(super) fn of_fragment(regs: &Regs, b: &[Reg], ty: MmaTy) -> Self {
        let mut columns = Self::new(8);
        for (block, &reg) in b.iter().enumerate() {
            of_each_k(regs, reg, ty, block, |t, k, x| {
                for column in 0..8 {
                    columns.set(k, column, x[column * QUAD + t]);
                }
            });
        }
        columns
    }
}

/// Calls `f(t, k, elements)` for every k that the elements of a fragment's register are of: those of the lanes of that t.
#[inline(always)]
fn of_each_k(
    regs: &Regs,
    reg: Reg,
    ty: MmaTy,
    block: usize,
    mut f: impl FnMut(usize, usize, &[f64; LANES]),
) {
    let halves = if ty == MmaTy::Tf32 { 1 } else { 2 };
    for half in 0..halves {
        let x = each1(regs.get32(reg), |v| f64::from(element(ty, v, half)));
        for t in 0..QUAD {
            f(t, halves * t + QUAD * halves * block + half, &x);
        }
    }
}

/// The accumulators in the registers `c`.
#[inline(always)]
pub(super) fn load(regs: &Regs, c: &[Reg], ty: MmaTy, acc: &mut [[f64; LANES]]) {
    for (i, acc) in acc.iter_mut().enumerate() {
        *acc = if ty == MmaTy::F32 {
            each1(regs.get32(c[i]), |v| f32::from_bits(v).into())
        } else {
            each1(regs.get32(c[i / 2]), |v| {
                element(MmaTy::F16, v, i % 2).into()
            })
        };
    }
}

/// Rounds the accumulators to the registers `d`, in the lanes of `m`.
#[inline(always)]
pub(super) fn store(regs: &mut Regs, d: &[Reg], ty: MmaTy, acc: &[[f64; LANES]], m: u32) {
    for (i, &reg) in d.iter().enumerate() {
        let value = if ty == MmaTy::F32 {
            each1(&acc[i], to_f32)
        } else {
            each_lane(|lane| to_f16x2(acc[2 * i][lane], acc[2 * i + 1][lane]))
        };
        regs.put32(reg, &value, m);
    }
}

/// acc += rows · columns, in order of k.
#[inline(always)]
pub(super) fn add<A: MultiplyAdd>(
    acc: &mut [[f64; LANES]],
    rows: &Rows,
    columns: &Columns,
    k: usize,
) {
    for (i, acc) in acc.iter_mut().enumerate() {
        let (eight, down, odd) = (i / PER_EIGHT, i / 2 % 2, i % 2);
        let start = (2 * eight + odd) * MAX_K;
        let mut sums = *acc;
        for (rows, y) in rows.0.iter().zip(&columns.0[start..start + k]) {
            // Eight lanes at a time, which is what the widest vectors hold.
            let y: [f64; 2 * QUAD] = std::array::from_fn(|lane| y[lane % QUAD]);
            let x = rows[down].chunks_exact(2 * QUAD);
            for (sums, x) in sums.chunks_exact_mut(2 * QUAD).zip(x) {
                for lane in 0..2 * QUAD {
                    sums[lane] = A::of(x[lane], y[lane], sums[lane]);
                }
            }
        }
        *acc = sums;
    }
}
