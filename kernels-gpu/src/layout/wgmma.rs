//! Which thread of a warpgroup holds which element of `wgmma.mma_async.m64nNk16`.
//!
//! PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16". Each warp holds 16 of the 64 rows, exactly as
//! `mma.m16n8k16` lays them out, so these maps are [`fragment`]'s, repeated.

use super::fragment::{self, TILE_M, TILE_N};

/// Rows of an instruction.
pub const TILE_ROWS: u32 = 4 * TILE_M as u32;
/// Threads that issue it together.
pub const THREADS: u32 = 128;
/// Lanes of a warp.
const WARP: u32 = 32;
/// Accumulator registers for each eight columns.
pub const REGISTERS_PER_TILE: u32 = 4;

/// Row and column of the 64 × N accumulator that register `register`, below N / 2, of thread `thread` holds.
#[inline(always)]
pub const fn accumulator(thread: u32, register: u32) -> (u32, u32) {
    let (row, column) = fragment::accumulator(thread % WARP, register % REGISTERS_PER_TILE);
    (
        thread / WARP * TILE_M as u32 + row,
        register / REGISTERS_PER_TILE * TILE_N as u32 + column,
    )
}

/// Row and column (contraction index) of the 64 × 16 operand A, taken from registers, that half `half` of register
/// `register` holds.
#[inline(always)]
pub const fn operand_a(thread: u32, register: u32, half: u32) -> (u32, u32) {
    let (row, column) = fragment::operand_a(thread % WARP, register, half);
    (thread / WARP * TILE_M as u32 + row, column)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accumulators_are_a_bijection() {
        const COLUMNS: usize = 256;
        let mut seen = [[false; COLUMNS]; TILE_ROWS as usize];
        for thread in 0..THREADS {
            for register in 0..COLUMNS as u32 / 2 {
                let (row, column) = accumulator(thread, register);
                let place = &mut seen[row as usize][column as usize];
                assert!(!core::mem::replace(place, true));
            }
        }
    }

    /// 16 score columns, packed two by two in the order of their registers, are operand A of the second product.
    #[test]
    fn scores_become_operand_a() {
        for thread in 0..THREADS {
            for k_step in 0..16 {
                for register in 0..4 {
                    for half in 0..2 {
                        let from = accumulator(thread, 8 * k_step + 2 * register + half);
                        let (row, column) = operand_a(thread, register, half);
                        assert_eq!(from, (row, 16 * k_step + column));
                    }
                }
            }
        }
    }

    /// The figure of the PTX ISA, at some places.
    #[test]
    fn places_of_the_manual() {
        assert_eq!(accumulator(0, 0), (0, 0));
        assert_eq!(accumulator(0, 3), (8, 1));
        assert_eq!(accumulator(5, 4), (1, 10));
        assert_eq!(accumulator(127, 127), (63, 255));
    }
}
