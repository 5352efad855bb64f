//! Tiles of 16-bit elements in shared memory, stored so that tensor-core loads touch every bank once.
//!
//! A row is cut into *vec16s* of 16 bytes, what a lane moves at once. Eight lanes that read the same vec16 of eight
//! consecutive rows would all hit one group of four banks if rows lay plainly one after the other; so vec16 `v` of
//! row `r` is stored in place `v xor mask(r)` of its row.
//!
//! ```text
//! head_dim 64: which vec16 lies in which place (4 banks each)      a tensor core reads vec16 2 of rows 0 .. 8:
//! place   0  1  2  3  4  5  6  7                                   places 2 3 0 1 6 7 4 5, every bank once
//! row 0   0  1  2  3  4  5  6  7
//! row 1   1  0  3  2  5  4  7  6
//! row 2   2  3  0  1  6  7  4  5
//! row 3   3  2  1  0  7  6  5  4
//! ...
//! row 7   7  6  5  4  3  2  1  0
//! ```

/// Elements in a vec16.
pub const VEC16_ELEMS: usize = 8;
/// Bytes in a vec16.
pub const VEC16_BYTES: u32 = 16;
/// Vec16s that span all 32 banks.
const BANK_VEC16S: usize = 8;

/// Vec16s in a row of `columns` elements of 16 bits.
pub const fn row_vec16s(columns: usize) -> usize {
    assert!(columns.is_multiple_of(VEC16_ELEMS * BANK_VEC16S / 2));
    columns / VEC16_ELEMS
}

/// Bytes from one row to the next.
pub const fn row_bytes(columns: usize) -> u32 {
    (row_vec16s(columns)) as u32 * VEC16_BYTES
}

/// Bytes within which vec16s of a row change places; rows are aligned to it.
pub const fn window_bytes(columns: usize) -> u32 {
    let vec16s = if row_vec16s(columns).is_multiple_of(BANK_VEC16S) {
        BANK_VEC16S
    } else {
        BANK_VEC16S / 2
    };
    vec16s as u32 * VEC16_BYTES
}

/// Mask that the vec16 index in row `row` is xored with.
///
/// Rows that are a multiple of 128 bytes all start in the same bank: eight rows take eight masks. Rows that are
/// an odd multiple of 64 bytes start in alternate halves of the banks: pairs of rows share one of four masks.
#[inline(always)]
pub const fn mask(columns: usize, row: u32) -> u32 {
    if row_vec16s(columns).is_multiple_of(BANK_VEC16S) {
        row % 8
    } else {
        row / 2 % 4
    }
}

/// Bytes from the start of the tile to vec16 `vec16` of row `row`.
#[inline(always)]
pub const fn offset(columns: usize, row: u32, vec16: u32) -> u32 {
    row * row_bytes(columns) + (vec16 ^ mask(columns, row)) * VEC16_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::mma::CONFIGS;
    use crate::layout::fragment::{a_row_vec16, k_row_vec16, v_row_vec16};

    #[test]
    fn every_vec16_has_one_place() {
        for config in CONFIGS {
            let columns = config.columns();
            const ROWS: u32 = 16;
            let bytes = ROWS * row_bytes(columns);
            let mut seen = [false; 16 * 32];
            for row in 0..ROWS {
                for vec16 in 0..row_vec16s(columns) as u32 {
                    let offset = offset(columns, row, vec16);
                    assert!(offset < bytes && offset.is_multiple_of(VEC16_BYTES));
                    let place = &mut seen[(offset / VEC16_BYTES) as usize];
                    assert!(!core::mem::replace(place, true));
                }
            }
        }
    }

    /// The groups of four banks that eight 16-byte accesses of one phase touch.
    fn assert_conflict_free(offsets: impl Iterator<Item = u32>) {
        let groups = offsets.fold(0u32, |groups, offset| {
            groups | 1 << (offset / VEC16_BYTES % BANK_VEC16S as u32)
        });
        assert_eq!(groups, 0xff);
    }

    #[test]
    fn ldmatrix_has_no_bank_conflicts() {
        for config in CONFIGS {
            let columns = config.columns();
            for lanes in row_vec16_maps() {
                for step in 0..columns as u32 / 16 {
                    for matrix in 0..4 {
                        assert_conflict_free((0..8).map(|i| {
                            let (row, vec16) = lanes(matrix * 8 + i);
                            offset(columns, row, 2 * step + vec16)
                        }));
                    }
                }
            }
        }
    }

    fn row_vec16_maps() -> [fn(u32) -> (u32, u32); 3] {
        [a_row_vec16, k_row_vec16, v_row_vec16]
    }

    /// The copy from global memory writes 8 (or 4) consecutive vec16s of consecutive rows with consecutive lanes.
    #[test]
    fn copies_have_no_bank_conflicts() {
        for config in CONFIGS {
            let columns = config.columns();
            let lanes = crate::config::mma::MmaConfig::copy_lanes(columns);
            for phase in 0..8u32 {
                for vec16_begin in (0..row_vec16s(columns) as u32).step_by(lanes as usize) {
                    assert_conflict_free((0..8).map(|i| {
                        let lane = phase * 8 + i;
                        offset(columns, lane / lanes, vec16_begin + lane % lanes)
                    }));
                }
            }
        }
    }

    /// The epilogue writes a 4-byte pair of columns per lane: row `lane / 4`, pair `lane % 4` of one vec16.
    #[test]
    fn accumulator_stores_have_no_bank_conflicts() {
        for config in CONFIGS {
            for vec16 in 0..row_vec16s(config.columns()) as u32 {
                let banks = (0..32u32).fold(0u32, |banks, lane| {
                    let bytes = offset(config.columns(), lane / 4, vec16) + lane % 4 * 4;
                    banks | 1 << (bytes / 4 % 32)
                });
                assert_eq!(banks, !0);
            }
        }
    }
}
