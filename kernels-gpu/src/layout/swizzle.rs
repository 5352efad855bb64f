//! Tiles of 16-bit elements in shared memory, stored so that tensor-core loads touch every bank once.
//!
//! A row is cut into *pieces* of 16 bytes, what a lane moves at once. Eight lanes that read the same piece of eight
//! consecutive rows would all hit one group of four banks if rows lay plainly one after the other; so piece `p` of
//! row `r` is stored in place `p xor mask(r)` of its row.

/// Elements in a piece.
pub const PIECE_ELEMS: usize = 8;
/// Bytes in a piece.
pub const PIECE_BYTES: u32 = 16;
/// Pieces that span all 32 banks.
const BANK_PIECES: usize = 8;

/// Pieces in a row of `HEAD_DIM` elements.
pub const fn row_pieces(head_dim: usize) -> usize {
    assert!(head_dim.is_multiple_of(PIECE_ELEMS * BANK_PIECES / 2));
    head_dim / PIECE_ELEMS
}

/// Bytes from one row to the next.
pub const fn row_bytes(head_dim: usize) -> u32 {
    (row_pieces(head_dim)) as u32 * PIECE_BYTES
}

/// Bytes within which pieces of a row change places; rows are aligned to it.
pub const fn window_bytes(head_dim: usize) -> u32 {
    let pieces = if row_pieces(head_dim).is_multiple_of(BANK_PIECES) {
        BANK_PIECES
    } else {
        BANK_PIECES / 2
    };
    pieces as u32 * PIECE_BYTES
}

/// What the piece index of row `row` is xored with.
///
/// Rows that are a multiple of 128 bytes all start in the same bank: eight rows take eight masks. Rows that are
/// an odd multiple of 64 bytes start in alternate halves of the banks: pairs of rows share one of four masks.
#[inline(always)]
pub const fn mask(head_dim: usize, row: u32) -> u32 {
    if row_pieces(head_dim).is_multiple_of(BANK_PIECES) {
        row % 8
    } else {
        row / 2 % 4
    }
}

/// Bytes from the start of the tile to piece `piece` of row `row`.
#[inline(always)]
pub const fn offset(head_dim: usize, row: u32, piece: u32) -> u32 {
    row * row_bytes(head_dim) + (piece ^ mask(head_dim, row)) * PIECE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::mma::TILES;
    use crate::layout::fragment::{a_row_piece, k_row_piece, v_row_piece};

    #[test]
    fn every_piece_has_one_place() {
        for tile in TILES {
            let head_dim = tile.head_dim;
            const ROWS: u32 = 16;
            let bytes = ROWS * row_bytes(head_dim);
            let mut seen = [false; 16 * 32];
            for row in 0..ROWS {
                for piece in 0..row_pieces(head_dim) as u32 {
                    let offset = offset(head_dim, row, piece);
                    assert!(offset < bytes && offset.is_multiple_of(PIECE_BYTES));
                    let place = &mut seen[(offset / PIECE_BYTES) as usize];
                    assert!(!core::mem::replace(place, true));
                }
            }
        }
    }

    /// The groups of four banks that eight 16-byte accesses of one phase touch.
    fn assert_conflict_free(offsets: impl Iterator<Item = u32>) {
        let groups = offsets.fold(0u32, |groups, offset| {
            groups | 1 << (offset / PIECE_BYTES % BANK_PIECES as u32)
        });
        assert_eq!(groups, 0xff);
    }

    #[test]
    fn ldmatrix_has_no_bank_conflicts() {
        for tile in TILES {
            let head_dim = tile.head_dim;
            for lanes in row_piece_maps() {
                for step in 0..head_dim as u32 / 16 {
                    for matrix in 0..4 {
                        assert_conflict_free((0..8).map(|i| {
                            let (row, piece) = lanes(matrix * 8 + i);
                            offset(head_dim, row, 2 * step + piece)
                        }));
                    }
                }
            }
        }
    }

    fn row_piece_maps() -> [fn(u32) -> (u32, u32); 3] {
        [a_row_piece, k_row_piece, v_row_piece]
    }

    /// The copy from global memory writes 8 (or 4) consecutive pieces of consecutive rows with consecutive lanes.
    #[test]
    fn copies_have_no_bank_conflicts() {
        for tile in TILES {
            let head_dim = tile.head_dim;
            let chunk = crate::config::mma::MmaTile::copy_chunk(head_dim);
            for phase in 0..8u32 {
                for chunk_begin in (0..row_pieces(head_dim) as u32).step_by(chunk as usize) {
                    assert_conflict_free((0..8).map(|i| {
                        let lane = phase * 8 + i;
                        offset(head_dim, lane / chunk, chunk_begin + lane % chunk)
                    }));
                }
            }
        }
    }

    /// The epilogue writes a 4-byte pair of columns per lane: row `lane / 4`, pair `lane % 4` of one piece.
    #[test]
    fn accumulator_stores_have_no_bank_conflicts() {
        for tile in TILES {
            for piece in 0..row_pieces(tile.head_dim) as u32 {
                let banks = (0..32u32).fold(0u32, |banks, lane| {
                    let bytes = offset(tile.head_dim, lane / 4, piece) + lane % 4 * 4;
                    banks | 1 << (bytes / 4 % 32)
                });
                assert_eq!(banks, !0);
            }
        }
    }
}
