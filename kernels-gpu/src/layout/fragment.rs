//! Which lane holds which element of the operands of `mma.m16n8k16`, and which row of shared memory each lane
//! names so that one `ldmatrix.x4` fills those registers.
//!
//! PTX ISA, "Matrix Fragments for mma.m16n8k16" and "ldmatrix".

/// Rows of an accumulator tile; also keys or dimensions that one contraction step covers.
pub const TILE_M: usize = 16;
/// Columns of an accumulator tile.
pub const TILE_N: usize = 8;
/// Length of the contraction of one `mma`.
pub const TILE_K: usize = 16;

/// Rows from one of a lane's rows of an accumulator tile to the next.
pub const ROW_STEP: u32 = 8;

/// Row and column of the accumulator tile that register `register` of `lane` holds.
#[inline(always)]
pub const fn accumulator(lane: u32, register: u32) -> (u32, u32) {
    (
        lane / 4 + register / 2 * ROW_STEP,
        lane % 4 * 2 + register % 2,
    )
}

/// Row and column (contraction index) of operand A, 16 × 16, that half `half` of register `register` holds; the lower
/// half is 0.
#[inline(always)]
pub const fn operand_a(lane: u32, register: u32, half: u32) -> (u32, u32) {
    (
        lane / 4 + register % 2 * ROW_STEP,
        lane % 4 * 2 + half + register / 2 * 8,
    )
}

/// Row (contraction index) and column of operand B, 16 × 8, that half `half` of register `register` holds.
#[inline(always)]
pub const fn operand_b(lane: u32, register: u32, half: u32) -> (u32, u32) {
    (lane % 4 * 2 + half + register * 8, lane / 4)
}

/// Column of element `index` of the elements that a lane holds of one row of score or output tiles: two consecutive
/// columns of each 8-column tile. Lane 5's elements 0, 1, 2, 3 are columns 2, 3, 10, 11.
#[inline(always)]
pub const fn row_column(lane: u32, index: u32) -> u32 {
    index / 2 * TILE_N as u32 + lane % 4 * 2 + index % 2
}

/// Operand A, 16 rows × 2 vec16s (`ldmatrix.x4`): the row and vec16 whose address `lane` gives.
#[inline(always)]
pub const fn a_row_vec16(lane: u32) -> (u32, u32) {
    (lane % 16, lane / 16)
}

/// K as operand B, 16 keys × 2 vec16s of head dimensions (`ldmatrix.x4`): registers 0 and 1 are B of keys 0..8,
/// registers 2 and 3 of keys 8..16.
#[inline(always)]
pub const fn k_row_vec16(lane: u32) -> (u32, u32) {
    (lane % 8 + lane / 16 * 8, lane / 8 % 2)
}

/// V as operand B, 16 keys × 2 vec16s of head dimensions (`ldmatrix.x4.trans`): registers 0 and 1 are B of the first
/// vec16's dimensions, registers 2 and 3 of the second's.
#[inline(always)]
pub const fn v_row_vec16(lane: u32) -> (u32, u32) {
    (lane % 16, lane / 16)
}

#[cfg(test)]
mod tests {
    use super::{operand_a as a, operand_b as b, *};

    /// Memory row and element column that `ldmatrix.x4` puts in a half register, for lanes that give addresses by
    /// `map`.
    fn ldmatrix(
        map: fn(u32) -> (u32, u32),
        lane: u32,
        register: u32,
        half: u32,
        transposed: bool,
    ) -> (u32, u32) {
        let (row, column) = (lane / 4, lane % 4 * 2 + half);
        let (row, column) = if transposed {
            (column, row)
        } else {
            (row, column)
        };
        let (memory_row, vec16) = map(register * 8 + row);
        (memory_row, vec16 * 8 + column)
    }

    fn all() -> impl Iterator<Item = (u32, u32, u32)> {
        (0..32).flat_map(|lane| {
            (0..4).flat_map(move |register| (0..2).map(move |half| (lane, register, half)))
        })
    }

    #[test]
    fn loads_fill_the_operands() {
        for (lane, register, half) in all() {
            let loaded = ldmatrix(a_row_vec16, lane, register, half, false);
            assert_eq!(loaded, a(lane, register, half));

            let (step, key) = b(lane, register % 2, half);
            let loaded = ldmatrix(k_row_vec16, lane, register, half, false);
            assert_eq!(loaded, (key + register / 2 * 8, step));

            let (key, dim) = b(lane, register % 2, half);
            let loaded = ldmatrix(v_row_vec16, lane, register, half, true);
            assert_eq!(loaded, (key, dim + register / 2 * 8));
        }
    }

    #[test]
    fn accumulators_are_a_bijection() {
        let mut seen = [[false; TILE_N]; TILE_M];
        for lane in 0..32 {
            for register in 0..4 {
                let (row, column) = accumulator(lane, register);
                let place = &mut seen[row as usize][column as usize];
                assert!(!core::mem::replace(place, true));
                let index = register % 2;
                assert_eq!(column, row_column(lane, index));
            }
        }
    }

    /// Packing two neighbouring score tiles in pairs gives operand A of the second product.
    #[test]
    fn scores_become_operand_a() {
        for (lane, register, half) in all() {
            let (row, column) = accumulator(lane, register % 2 * 2 + half);
            assert_eq!(a(lane, register, half), (row, column + register / 2 * 8));
        }
    }
}
