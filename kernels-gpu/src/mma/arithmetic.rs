//! What the forward kernels' element types differ in: how they lie in shared memory, and how they are multiplied.

use super::element::Element;
use super::gemm::{LaneAddress, Operand, multiply, pv};
use super::non_finite;
use crate::layout::fragment::{TILE_N, row_column};
use crate::layout::swizzle::offset;
use crate::units::HALF_BYTES;
use cuda_std::shared;

/// An element type of q, k, v and o in the forward kernels.
pub trait Arithmetic {
    /// Bytes of an element.
    const BYTES: u32;
    /// See [`Element`].
    const SHIFT: f32;
    const STALE_SUM_LIMIT: f32;
    /// Exponent of the largest number, where f32 has larger ones.
    const LARGEST_EXPONENT: Option<f32>;
    /// Whether the exact path multiplies by f32's FMA instructions ([`super::ieee`]), which takes V's elements as they are;
    /// otherwise it multiplies as the fast path does, and takes those that are not finite out of V.
    const IEEE_WHEN_EXACT: bool;
    /// Steps of Q Kᵀ that the tensor core adds up before f32 does.
    const CHAIN: usize;

    /// Fragments of operand A, ready to be multiplied.
    type Fragment<const ROWS: usize>;

    /// Makes the registers of operand A ready.
    fn fragment<const ROWS: usize>(operand: &Operand<ROWS>) -> Self::Fragment<ROWS>;

    /// Adds A·B to the two accumulator tiles of 8 columns that start at element `col` of a lane's rows.
    ///
    /// # Safety
    /// All 32 lanes must reach the same call.
    unsafe fn multiply<const ROWS: usize, const COLS: usize>(
        acc: &mut [[f32; COLS]; ROWS],
        col: usize,
        a: &Self::Fragment<ROWS>,
        b: [u32; 4],
    );

    /// Where a lane finds its part of a block of V.
    type V: Copy;

    /// That of lane `lane`, of the block at `v_smem`.
    fn v_place(v_smem: u32, columns: usize, lane: u32) -> Self::V;

    /// O += P V, where `finish` gets every element of P once before it is multiplied, with the numbers of its row and column.
    ///
    /// # Safety
    /// V is in shared memory and visible to the warp; all 32 lanes must reach the same call.
    unsafe fn pv<const ROWS: usize, const S_COLS: usize, const O_COLS: usize>(
        acc_o: &mut [[f32; O_COLS]; ROWS],
        p: &mut [[f32; S_COLS]; ROWS],
        v: Self::V,
        finish: impl FnMut(&mut f32, usize, usize),
    );

    /// Writes a lane's part of row `row` of the output to the tile at `o_smem`.
    ///
    /// # Safety
    /// The row is the warp's own.
    unsafe fn stage_row<const COLS: usize>(
        o_smem: u32,
        columns: usize,
        row: u32,
        lane: u32,
        values: &[f32; COLS],
    );

    /// A vec16 of V with elements that are not finite replaced by 0, and the record of what they were.
    fn take_non_finite(words: [u32; 4]) -> ([u32; 4], u32);

    /// A vec16 of the output once what its row sees is added, the record `kinds`.
    fn put_non_finite(words: [u32; 4], kinds: u32) -> [u32; 4];
}

impl<E: Element> Arithmetic for E {
    const BYTES: u32 = HALF_BYTES;
    const SHIFT: f32 = <E as Element>::SHIFT;
    const STALE_SUM_LIMIT: f32 = <E as Element>::STALE_SUM_LIMIT;
    const LARGEST_EXPONENT: Option<f32> = E::LARGEST_EXPONENT;
    const IEEE_WHEN_EXACT: bool = false;
    const CHAIN: usize = usize::MAX;

    type Fragment<const ROWS: usize> = Operand<ROWS>;
    type V = LaneAddress;

    #[inline(always)]
    fn fragment<const ROWS: usize>(operand: &Operand<ROWS>) -> Operand<ROWS> {
        *operand
    }

    #[inline(always)]
    unsafe fn multiply<const ROWS: usize, const COLS: usize>(
        acc: &mut [[f32; COLS]; ROWS],
        col: usize,
        a: &Operand<ROWS>,
        [b0, b1, b2, b3]: [u32; 4],
    ) {
        multiply::<E, ROWS, COLS>(acc, col, a, [b0, b1]);
        multiply::<E, ROWS, COLS>(acc, col + 2, a, [b2, b3]);
    }

    #[inline(always)]
    fn v_place(v_smem: u32, columns: usize, lane: u32) -> LaneAddress {
        LaneAddress::v(v_smem, columns, lane)
    }

    #[inline(always)]
    unsafe fn pv<const ROWS: usize, const S_COLS: usize, const O_COLS: usize>(
        acc_o: &mut [[f32; O_COLS]; ROWS],
        p: &mut [[f32; S_COLS]; ROWS],
        v: LaneAddress,
        finish: impl FnMut(&mut f32, usize, usize),
    ) {
        pv::<E, ROWS, S_COLS, O_COLS>(acc_o, p, v, finish);
    }

    #[inline(always)]
    unsafe fn stage_row<const COLS: usize>(
        o_smem: u32,
        columns: usize,
        row: u32,
        lane: u32,
        values: &[f32; COLS],
    ) {
        for col in (0..COLS).step_by(2) {
            let pair = E::cvt_pair(values[col], values[col + 1]);
            let column = row_column(lane, col as u32);
            let address = o_smem
                + offset(columns, row, column / TILE_N as u32)
                + column % TILE_N as u32 * HALF_BYTES;
            shared::store_bits(address, pair);
        }
    }

    #[inline(always)]
    fn take_non_finite(words: [u32; 4]) -> ([u32; 4], u32) {
        non_finite::split::<E>(words)
    }

    #[inline(always)]
    fn put_non_finite(words: [u32; 4], kinds: u32) -> [u32; 4] {
        non_finite::join::<E>(words, kinds)
    }
}
