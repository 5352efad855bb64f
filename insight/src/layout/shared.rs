//! Where the pieces of a tile lie in shared memory, and what an access of a warp to them costs.

use kernels_gpu::layout::fragment;
use kernels_gpu::layout::swizzle::{self, VEC16_BYTES, VEC16_ELEMS};
use kernels_gpu::layout::swizzle_mode::{LINE_BYTES, SwizzleMode};

use super::banks;
use super::grid::{Cell, Colour, Grid};
use ferroflash::Error;

/// How a tile of 16-bit elements is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// Row after row.
    Plain,
    /// As the `mma.sync` kernels store it.
    Swizzled,
}

/// Access of a warp to the tile by one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// `ldmatrix.x4` of Q.
    LdmatrixQ,
    /// `ldmatrix.x4` of K.
    LdmatrixK,
    /// `ldmatrix.x4.trans` of V.
    LdmatrixV,
    /// Storing a row-wise piece a lane, as `cp.async` does: a row, then the next.
    Copy,
    /// Storing accumulators: four bytes a lane.
    Accumulator,
}

/// Rows of the pictures: the rows that one access reaches.
const ROWS: u32 = 16;

impl Storage {
    fn offset(self, head_dim: usize, row: u32, piece: u32) -> u32 {
        match self {
            Self::Plain => row * swizzle::row_bytes(head_dim) + piece * VEC16_BYTES,
            Self::Swizzled => swizzle::offset(head_dim, row, piece),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain rows",
            Self::Swizzled => "the mma kernels' swizzle",
        }
    }
}

impl Access {
    const fn name(self) -> &'static str {
        match self {
            Self::LdmatrixQ => "ldmatrix.x4 of Q",
            Self::LdmatrixK => "ldmatrix.x4 of K",
            Self::LdmatrixV => "ldmatrix.x4.trans of V",
            Self::Copy => "a copy of rows",
            Self::Accumulator => "a store of accumulators",
        }
    }

    const fn bytes(self) -> u32 {
        match self {
            Self::Accumulator => 4,
            _ => VEC16_BYTES,
        }
    }

    /// Row, piece and byte in the piece that `lane` accesses.
    fn place(self, lane: u32, row_pieces: u32) -> (u32, u32, u32) {
        let whole = |(row, piece)| (row, piece, 0);
        match self {
            Self::LdmatrixQ => whole(fragment::a_row_vec16(lane)),
            Self::LdmatrixK => whole(fragment::k_row_vec16(lane)),
            Self::LdmatrixV => whole(fragment::v_row_vec16(lane)),
            Self::Copy => whole((lane / row_pieces, lane % row_pieces)),
            Self::Accumulator => {
                let (row, column) = fragment::accumulator(lane, 0);
                let piece_column = column % VEC16_ELEMS as u32;
                (row, column / VEC16_ELEMS as u32, piece_column * 2)
            }
        }
    }
}

/// A tile of rows of `head_dim` 16-bit elements in shared memory, line of 128 bytes by line, and one access to it.
///
/// A cell is 16 bytes wide, four banks; it names the row and piece that is stored there, and the lane that accesses it.
///
/// # Errors
/// [`Error::Argument`] for a head_dim whose rows do not fill half a line.
pub fn tile(head_dim: usize, storage: Storage, access: Access) -> Result<Grid, Error> {
    const STEP: usize = 32;
    if !(STEP..=256).contains(&head_dim) || !head_dim.is_multiple_of(STEP) {
        return Err(Error::argument(
            "head_dim",
            format!("{head_dim} elements do not fill whole halves of a 128-byte line"),
            format!("a multiple of {STEP}, from {STEP} to 256"),
        ));
    }
    let row_pieces = swizzle::row_vec16s(head_dim) as u32;
    let lines = ROWS * swizzle::row_bytes(head_dim) / LINE_BYTES;
    let pieces_per_line = LINE_BYTES / VEC16_BYTES;
    let nothing = Cell {
        text: String::new(),
        colour: Colour::None,
    };
    let mut rows = vec![vec![nothing; pieces_per_line as usize]; lines as usize];
    for row in 0..ROWS {
        for piece in 0..row_pieces {
            let place = storage.offset(head_dim, row, piece) / VEC16_BYTES;
            let cell =
                &mut rows[(place / pieces_per_line) as usize][(place % pieces_per_line) as usize];
            cell.text = format!("r{row} p{piece}");
        }
    }
    let offsets: Vec<u32> = (0..32)
        .map(|lane| {
            let (row, piece, byte) = access.place(lane, row_pieces);
            storage.offset(head_dim, row, piece) + byte
        })
        .collect();
    // Cells that the first phase reaches are coloured: conflicts are between lanes served together.
    let phase = banks::lanes_per_phase(access.bytes()).min(offsets.len());
    for (lane, offset) in offsets[..phase].iter().enumerate() {
        let place = offset / VEC16_BYTES;
        let column = place % pieces_per_line;
        let cell = &mut rows[(place / pieces_per_line) as usize][column as usize];
        cell.colour = Colour::BankGroup(column);
        cell.text += &format!(" T{lane}");
    }
    let passes = banks::passes(&offsets, access.bytes());
    let ideal = offsets.len().div_ceil(phase);
    Ok(Grid {
        title: format!(
            "{ROWS} rows of {head_dim} 16-bit elements, {}: r row, p piece of 8 elements",
            storage.name()
        ),
        axes: ("128-byte line".to_owned(), "group of four banks".to_owned()),
        rows,
        notes: vec![
            format!(
                "{}: lanes 0 to {} are served together (coloured)",
                access.name(),
                phase - 1
            ),
            format!("passes over shared memory: {passes}; without conflicts: {ideal}"),
        ],
    })
}

/// TMA's swizzle: which piece of which row lies where.
pub fn swizzle_mode(mode: SwizzleMode) -> Grid {
    let row_bytes = mode.row_bytes();
    let pieces = LINE_BYTES / VEC16_BYTES;
    let lines = 8;
    let cell = |line: u32, column: u32| {
        // The swizzle is its own inverse: the bytes stored here are those whose place would be swizzled to here.
        let plain = mode.apply(line * LINE_BYTES + column * VEC16_BYTES);
        let (row, piece) = (plain / row_bytes, plain % row_bytes / VEC16_BYTES);
        Cell {
            text: format!("r{row} p{piece}"),
            colour: Colour::BankGroup(piece),
        }
    };
    let rows = (0..lines).map(|line| (0..pieces).map(|column| cell(line, column)).collect());
    let offsets: Vec<u32> = (0..8).map(|row| mode.apply(row * row_bytes)).collect();
    Grid {
        title: match mode {
            SwizzleMode::None => {
                "no swizzle, rows of 16 bytes: r row, p piece of 16 bytes".to_owned()
            }
            _ => format!("{row_bytes}-byte swizzle of TMA and wgmma: r row, p piece of 16 bytes"),
        },
        axes: ("128-byte line".to_owned(), "group of four banks".to_owned()),
        rows: rows.collect(),
        notes: vec![format!(
            "reading piece 0 of eight rows, passes over shared memory: {}; of plain rows of {row_bytes} bytes: {}",
            banks::passes(&offsets, VEC16_BYTES),
            banks::passes(
                &(0..8).map(|row| row * row_bytes).collect::<Vec<_>>(),
                VEC16_BYTES
            ),
        )],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(head_dim: usize, storage: Storage, access: Access) -> String {
        tile(head_dim, storage, access).unwrap().notes[1].clone()
    }

    const LDMATRIX: [Access; 3] = [Access::LdmatrixQ, Access::LdmatrixK, Access::LdmatrixV];

    #[test]
    fn the_kernels_swizzle_has_no_conflicts() {
        for head_dim in [32, 64, 96, 128, 256] {
            for access in LDMATRIX {
                let note = passes(head_dim, Storage::Swizzled, access);
                assert!(
                    note.starts_with("passes over shared memory: 4; without conflicts: 4"),
                    "{note}"
                );
            }
            let note = passes(head_dim, Storage::Swizzled, Access::Accumulator);
            assert!(
                note.starts_with("passes over shared memory: 1; without conflicts: 1"),
                "{note}"
            );
        }
    }

    #[test]
    fn plain_rows_have_eightfold_conflicts() {
        for access in LDMATRIX {
            let note = passes(128, Storage::Plain, access);
            assert!(
                note.starts_with("passes over shared memory: 32; without conflicts: 4"),
                "{note}"
            );
        }
        let note = passes(128, Storage::Plain, Access::Accumulator);
        assert!(
            note.starts_with("passes over shared memory: 8; without conflicts: 1"),
            "{note}"
        );
        let note = passes(128, Storage::Plain, Access::Copy);
        assert!(
            note.starts_with("passes over shared memory: 4; without conflicts: 4"),
            "{note}"
        );
    }

    #[test]
    fn every_piece_is_in_the_picture() {
        let grid = tile(96, Storage::Swizzled, Access::LdmatrixK).unwrap();
        let cells = grid.rows.iter().flatten();
        let mut pieces: Vec<_> = cells
            .map(|cell| cell.text.split(" T").next().unwrap_or_default().to_owned())
            .collect();
        let count = pieces.len();
        pieces.sort_unstable();
        pieces.dedup();
        assert_eq!((count, pieces.len()), (16 * 12, 16 * 12));
        let coloured = grid
            .rows
            .iter()
            .flatten()
            .filter(|cell| cell.colour != Colour::None);
        assert_eq!(coloured.count(), 8);
    }

    #[test]
    fn modes() {
        let grid = swizzle_mode(SwizzleMode::B128);
        assert_eq!(grid.rows[5][2].text, "r5 p7");
        assert!(
            grid.notes[0].starts_with("reading piece 0 of eight rows, passes over shared memory: 1; of plain rows of 128 bytes: 8")
        );
        let grid = swizzle_mode(SwizzleMode::B64);
        assert_eq!(grid.rows[1][4].text, "r3 p1");
    }

    #[test]
    fn rows_that_do_not_fit_are_refused() {
        for head_dim in [0, 40, 288] {
            let error = tile(head_dim, Storage::Plain, Access::Copy).unwrap_err();
            assert!(
                error
                    .to_string()
                    .starts_with(&format!("head_dim: {head_dim} "))
            );
        }
    }
}
