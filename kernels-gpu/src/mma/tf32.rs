//! f32 on tensor cores, each product as three of tf32 (Ootomo and Yokota 2022, "Recovering single precision accuracy from
//! Tensor Cores while surpassing the FP32 theoretical peak performance").
//!
//! tf32 has f32's exponents and 11 bits of fraction, the leading one included. An f32 number is a `large` part of so many bits and
//! a `small` one of 12 more and a sign: `a · b` is `large · large`, plus the two mixed products, plus `small · small`, which is
//! below 2⁻²² of the product and left out. The tensor core cuts off what it adds up, which over hundreds of steps would be the
//! larger error: so it adds up a few steps from 0 on, and f32 their sums, rounded to nearest.
//!
//! A lane takes the keys of operand A as they lie in its accumulators: the contraction's element `t` is key `2t` of eight, and
//! element `t + 4` key `2t + 1`. Of V it loads 8 bytes at once, of which each element is for another tile of eight columns: column `g`
//! of tile `j` is dimension `2g + j` of 16. So the accumulators of two tiles hold four consecutive dimensions of a row.

use cuda_std::math::fma;
use cuda_std::mma_sync::multiply_add_tf32;
use cuda_std::shared;

use super::arithmetic::Arithmetic;
use super::gemm::{LaneAddress, Operand, Registers};
use crate::layout::swizzle::{VEC16_BYTES, offset};
use crate::tile::element::F32;
use crate::units::{F32_BYTES, pow2};

/// Tiles of eight output columns that a load of V is for.
const TILES: usize = 2;

/// Numbers as the sums of two parts that tf32 holds.
#[derive(Clone, Copy)]
pub struct Split<const ROWS: usize> {
    large: [Registers; ROWS],
    small: [Registers; ROWS],
}

impl<const ROWS: usize> Split<ROWS> {
    const ZERO: Self = Self {
        large: [[0; 2]; ROWS],
        small: [[0; 2]; ROWS],
    };

    /// Splits numbers by rounding to nearest (Dekker 1971). Of one that is not finite or above 2¹¹⁵ the parts are ∞ or NaN, and so
    /// that their products add up to NaN.
    #[inline(always)]
    fn new(registers: &[Registers; ROWS]) -> Self {
        /// Bits of an f32's fraction below tf32's.
        const BITS: i32 = 13;
        let mut split = Self::ZERO;
        for i in 0..ROWS {
            for half in 0..2 {
                let number = f32::from_bits(registers[i][half]);
                let raised = number * (pow2(BITS) + 1.0);
                let large = fma(number, -pow2(BITS), raised);
                split.large[i][half] = large.to_bits();
                split.small[i][half] = (number - large).to_bits();
            }
        }
        split
    }
}

/// Adds the products of A and the tiles of B to the accumulator tiles that start at element `col` of a lane's rows. Products of one
/// kind come together: they do not wait for one another.
///
/// # Safety
/// All 32 lanes must reach the same call.
#[inline(always)]
unsafe fn multiply<const ROWS: usize, const COLS: usize, const TILES: usize>(
    acc: &mut [[f32; COLS]; ROWS],
    col: usize,
    a: &Split<ROWS>,
    b: &Split<TILES>,
) {
    add_products(acc, col, &a.small, &b.large);
    add_products(acc, col, &a.large, &b.small);
    add_products(acc, col, &a.large, &b.large);
}

/// As [`multiply`], of one part of each.
///
/// # Safety
/// As [`multiply`].
#[inline(always)]
unsafe fn add_products<const ROWS: usize, const COLS: usize, const TILES: usize>(
    acc: &mut [[f32; COLS]; ROWS],
    col: usize,
    a: &[Registers; ROWS],
    b: &[Registers; TILES],
) {
    for tile in 0..TILES {
        let col = col + 2 * tile;
        for upper in 0..ROWS / 2 {
            let (upper, lower) = (2 * upper, 2 * upper + 1);
            let a = [a[upper][0], a[lower][0], a[upper][1], a[lower][1]];
            let c = [
                acc[upper][col],
                acc[upper][col + 1],
                acc[lower][col],
                acc[lower][col + 1],
            ];
            let c = multiply_add_tf32(a, b[tile], c);
            acc[upper][col] = c[0];
            acc[upper][col + 1] = c[1];
            acc[lower][col] = c[2];
            acc[lower][col + 1] = c[3];
        }
    }
}

/// Finishes the probabilities of step `step`, and makes them ready as operand A: the layout of accumulators is the one it needs.
#[inline(always)]
fn p_fragment<const ROWS: usize, const COLS: usize>(
    p: &mut [[f32; COLS]; ROWS],
    step: usize,
    finish: &mut impl FnMut(&mut f32, usize, usize),
) -> Split<ROWS> {
    let mut operand = [[0; 2]; ROWS];
    for i in 0..ROWS {
        for half in 0..STEP_COLS {
            let j = step * STEP_COLS + half;
            finish(&mut p[i][j], i, j);
            operand[i][half] = p[i][j].to_bits();
        }
    }
    Split::new(&operand)
}

/// Score columns of a lane that a step of O += P V takes: of eight keys.
const STEP_COLS: usize = 2;
/// Steps of O += P V that the tensor core adds up before f32 does.
const PV_CHAIN: usize = 4;

/// Output columns of a lane that one load of V is for.
pub const PART_COLS: usize = 2 * TILES;

/// Output column of a lane's row that is dimension `dim` of the four that a lane has of 16.
#[inline(always)]
pub const fn column(dim: usize) -> usize {
    dim % TILES * 2 + dim / TILES
}

/// A lane's part of a block of V, whose address is computed when the block is there: earlier it would take registers from Q Kᵀ.
#[derive(Clone, Copy)]
pub struct VPlace {
    smem: u32,
    columns: usize,
    lane: u32,
}

impl VPlace {
    /// Of key `2t`, dimensions `2g ..`.
    #[inline(always)]
    fn address(self) -> LaneAddress {
        let (t, g) = (self.lane % 4, self.lane / 4);
        let address = LaneAddress::new(self.smem, self.columns, (2 * t, g / 2));
        address.plus(g % 2 * 2 * F32_BYTES)
    }
}

impl Arithmetic for F32 {
    const BYTES: u32 = F32_BYTES;
    /// Exponents need their last bits.
    const SHIFT: f32 = 0.0;
    const STALE_SUM_LIMIT: f32 = pow2(40);
    const LARGEST_EXPONENT: Option<f32> = None;
    const IEEE_WHEN_EXACT: bool = true;
    const CHAIN: usize = 4;

    type Fragment<const ROWS: usize> = Split<ROWS>;
    type V = VPlace;

    #[inline(always)]
    fn fragment<const ROWS: usize>(operand: &Operand<ROWS>) -> Split<ROWS> {
        Split::new(operand)
    }

    #[inline(always)]
    unsafe fn multiply<const ROWS: usize, const COLS: usize>(
        acc: &mut [[f32; COLS]; ROWS],
        col: usize,
        a: &Split<ROWS>,
        [b0, b1, b2, b3]: [u32; 4],
    ) {
        multiply(acc, col, a, &Split::new(&[[b0, b1], [b2, b3]]));
    }

    #[inline(always)]
    fn v_place(smem: u32, columns: usize, lane: u32) -> VPlace {
        VPlace {
            smem,
            columns,
            lane,
        }
    }

    #[inline(always)]
    unsafe fn pv<const ROWS: usize, const S_COLS: usize, const O_COLS: usize>(
        acc_o: &mut [[f32; O_COLS]; ROWS],
        p: &mut [[f32; S_COLS]; ROWS],
        v: VPlace,
        mut finish: impl FnMut(&mut f32, usize, usize),
    ) {
        let v = v.address();
        for begin in (0..S_COLS / STEP_COLS).step_by(PV_CHAIN) {
            let mut fragments = [Split::<ROWS>::ZERO; PV_CHAIN];
            for step in 0..PV_CHAIN {
                fragments[step] = p_fragment(p, begin + step, &mut finish);
            }
            for part in 0..O_COLS / PART_COLS {
                let mut sums = [[0.0; PART_COLS]; ROWS];
                for step in 0..PV_CHAIN {
                    let addresses = v.rows_of_eight(begin + step, part);
                    let [even, odd] = addresses.map(|at| shared::load2(at).map(f32::to_bits));
                    let mut v = [[0; 2]; TILES];
                    for tile in 0..TILES {
                        v[tile] = [even[tile], odd[tile]];
                    }
                    multiply(&mut sums, 0, &fragments[step], &Split::new(&v));
                }
                for i in 0..ROWS {
                    for j in 0..PART_COLS {
                        acc_o[i][part * PART_COLS + j] += sums[i][j];
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn stage_row<const COLS: usize>(
        o_smem: u32,
        columns: usize,
        row: u32,
        lane: u32,
        values: &[f32; COLS],
    ) {
        // Odd rows write the other part of two, which lies in the other half of the banks.
        let swaps = row % 2;
        for part in 0..COLS / PART_COLS {
            let mut words = [0; PART_COLS];
            for dim in 0..PART_COLS {
                let value = |part: usize| values[part * PART_COLS + column(dim)];
                let value = if swaps == 0 {
                    value(part)
                } else {
                    value(part ^ 1)
                };
                words[dim] = value.to_bits();
            }
            let vec16 = (part as u32 ^ swaps) * PART_COLS as u32 + lane % 4;
            shared::store4_bits(o_smem + offset(columns, row, vec16), words);
        }
    }

    /// The exact path takes none.
    #[inline(always)]
    fn take_non_finite(words: [u32; 4]) -> ([u32; 4], u32) {
        (words, 0)
    }

    #[inline(always)]
    fn put_non_finite(words: [u32; 4], _: u32) -> [u32; 4] {
        words
    }
}
