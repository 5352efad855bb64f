//! Fragment maps: which lane holds which element, and in which register.

use kernels_gpu::layout::fragment::{self, TILE_K, TILE_M, TILE_N};
use kernels_gpu::layout::swizzle::VEC16_ELEMS;
use kernels_gpu::layout::wgmma;

use super::grid::{Cell, Colour, Grid};
use ferroflash::Error;

/// Operands of `mma.m16n8k16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MmaOperand {
    /// 16 × 16, 16-bit, two elements a register.
    A,
    /// 16 × 8, 16-bit, two elements a register.
    B,
    /// Accumulator, 16 × 8, f32.
    C,
}

/// Operand that one `ldmatrix.x4` of the kernels loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LdmatrixOperand {
    /// Q, to be operand A.
    Q,
    /// K, to be operand B of S = Q Kᵀ.
    K,
    /// V, to be operand B of O = P V: transposed on the way.
    V,
}

/// A grid of `rows` × `columns` labelled by holder: `place` gives the row and column of each value of each thread.
fn grid(
    (title, axes): (String, (&str, &str)),
    (rows, columns): (usize, usize),
    (threads, values): (u32, u32),
    place: impl Fn(u32, u32) -> (u32, u32),
    name: impl Fn(u32, u32) -> String,
) -> Grid {
    let nobody = Cell {
        text: String::new(),
        colour: Colour::None,
    };
    let mut cells = vec![vec![nobody; columns]; rows];
    for thread in 0..threads {
        for value in 0..values {
            let (row, column) = place(thread, value);
            cells[row as usize][column as usize] = Cell {
                text: name(thread, value),
                colour: Colour::Lane(thread % 32),
            };
        }
    }
    Grid {
        title,
        axes: (axes.0.to_owned(), axes.1.to_owned()),
        rows: cells,
        notes: vec![],
    }
}

fn thread_value(thread: u32, value: u32) -> String {
    format!("T{thread} V{value}")
}

/// The map of `mma.m16n8k16`: `T` the lane, `V` the element among those it holds.
pub fn mma(operand: MmaOperand) -> Grid {
    let title = |what| format!("mma.m16n8k16, {what}: T lane, V element of the lane");
    // Element v of an operand is half v % 2 of register v / 2.
    match operand {
        MmaOperand::A => grid(
            (title("operand A"), ("m", "k")),
            (TILE_M, TILE_K),
            (32, 8),
            |lane, v| fragment::operand_a(lane, v / 2, v % 2),
            thread_value,
        ),
        MmaOperand::B => grid(
            (title("operand B"), ("k", "n")),
            (TILE_K, TILE_N),
            (32, 4),
            |lane, v| fragment::operand_b(lane, v / 2, v % 2),
            thread_value,
        ),
        MmaOperand::C => grid(
            (title("accumulator"), ("m", "n")),
            (TILE_M, TILE_N),
            (32, 4),
            fragment::accumulator,
            thread_value,
        ),
    }
}

/// Why P needs no detour through shared memory: two neighbouring accumulator tiles of S, packed pairwise, are operand A
/// of O = P V, lane by lane.
///
/// Each cell names lane and element of A, and the element of tile `S0` or `S1` with the same place; its lane too, if
/// that were another.
pub fn identity() -> Grid {
    let elements = 8;
    let place = |lane, v| fragment::operand_a(lane, v / 2, v % 2);
    let from = |lane: u32, v: u32| {
        let (row, column) = place(lane, v);
        let tile = column / TILE_N as u32;
        let holder = (0..32).flat_map(|holder| (0..4).map(move |register| (holder, register)));
        let mut same = holder.filter(|(holder, register)| {
            fragment::accumulator(*holder, *register) == (row, column % TILE_N as u32)
        });
        let (holder, register) = same.next().expect("the accumulator has every place");
        (tile, holder, register, holder == lane)
    };
    let mut grid = grid(
        (
            "operand A of O = P V, and the score each element comes from: S tile . element"
                .to_owned(),
            ("m", "k"),
        ),
        (TILE_M, TILE_K),
        (32, elements),
        place,
        |lane, v| match from(lane, v) {
            (tile, _, register, true) => format!("T{lane} V{v}=S{tile}.{register}"),
            (tile, holder, register, false) => {
                format!("T{lane} V{v}=T{holder} S{tile}.{register}")
            }
        },
    );
    let pairs = (0..32).flat_map(|lane| (0..elements).map(move |v| (lane, v)));
    let moved = pairs.filter(|(lane, v)| !from(*lane, *v).3).count();
    grid.notes.push(format!(
        "{moved} of {} elements would have to change their lane",
        32 * elements
    ));
    grid
}

/// The memory that one `ldmatrix.x4` reads: rows of 8 elements, each at the address one lane gives, and the register
/// whose 8 × 8 matrix they fill.
pub fn ldmatrix(operand: LdmatrixOperand) -> Grid {
    let row_piece = match operand {
        LdmatrixOperand::Q => fragment::a_row_vec16,
        LdmatrixOperand::K => fragment::k_row_vec16,
        LdmatrixOperand::V => fragment::v_row_vec16,
    };
    let what = match operand {
        LdmatrixOperand::Q => "ldmatrix.x4 of Q as operand A",
        LdmatrixOperand::K => "ldmatrix.x4 of K as operand B",
        LdmatrixOperand::V => "ldmatrix.x4.trans of V as operand B",
    };
    let mut grid = grid(
        (
            format!("{what}: T lane that gives the row's address, R register it fills"),
            ("row of the tile", "element"),
        ),
        (16, 16),
        (32, VEC16_ELEMS as u32),
        |lane, element| {
            let (row, piece) = row_piece(lane);
            (row, piece * VEC16_ELEMS as u32 + element)
        },
        |lane, _| format!("T{lane} R{}", lane / 8),
    );
    grid.notes.push(
        match operand {
            LdmatrixOperand::V => {
                "transposed: lane l gets elements 2(l % 4) and 2(l % 4) + 1 of column l / 4 of each 8 × 8 matrix"
            }
            _ => "lane l gets elements 2(l % 4) and 2(l % 4) + 1 of row l / 4 of each 8 × 8 matrix",
        }
        .to_owned(),
    );
    grid
}

/// Columns of `wgmma`, a multiple of 8 up to 256 (PTX ISA, "wgmma.mma_async").
fn check_columns(n: u32) -> Result<(), Error> {
    const STEP: u32 = TILE_N as u32;
    if n == 0 || n > 256 || !n.is_multiple_of(STEP) {
        return Err(Error::argument(
            "n",
            format!("wgmma has no {n} columns"),
            format!("a multiple of {STEP}, from {STEP} to 256"),
        ));
    }
    Ok(())
}

/// The accumulator of `wgmma.m64nNk16`: threads of the warpgroup, and their registers.
///
/// # Errors
/// [`Error::Argument`] if there is no such instruction.
pub fn wgmma(n: u32) -> Result<Grid, Error> {
    check_columns(n)?;
    let mut grid = grid(
        (
            format!("wgmma.m64n{n}k16, accumulator: T thread of the warpgroup, V register"),
            ("m", "n"),
        ),
        (wgmma::TILE_ROWS as usize, n as usize),
        (wgmma::THREADS, n / 2),
        wgmma::accumulator,
        thread_value,
    );
    grid.notes.push(
        "each warp holds 16 rows as mma.m16n8k16 does, so P stays in registers here too".to_owned(),
    );
    Ok(grid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(grid: &Grid) -> Vec<&str> {
        let cells = grid.rows.iter().flatten();
        cells.map(|cell| cell.text.as_str()).collect()
    }

    #[test]
    fn every_cell_is_somebodys_and_nobodys_twice() {
        let wgmma = wgmma(24).unwrap();
        let grids = [MmaOperand::A, MmaOperand::B, MmaOperand::C].map(mma);
        for grid in grids.iter().chain([&wgmma]) {
            let mut texts = texts(grid);
            let count = texts.len();
            assert!(
                texts.iter().all(|text| text.starts_with('T')),
                "{}",
                grid.title
            );
            texts.sort_unstable();
            texts.dedup();
            assert_eq!(texts.len(), count, "{}", grid.title);
        }
    }

    /// That the maps are the hardware's is shown by the kernels that load and store by them: [`probe`](crate::probe).
    #[test]
    fn cells_of_the_manual() {
        let accumulator = mma(MmaOperand::C);
        assert_eq!(accumulator.rows[0][0].text, "T0 V0");
        assert_eq!(accumulator.rows[0][1].text, "T0 V1");
        assert_eq!(accumulator.rows[8][0].text, "T0 V2");
        assert_eq!(accumulator.rows[8][7].text, "T3 V3");
        let a = mma(MmaOperand::A);
        assert_eq!(a.rows[8][0].text, "T0 V2");
        assert_eq!(a.rows[0][8].text, "T0 V4");
        assert_eq!(a.rows[15][15].text, "T31 V7");
        let b = mma(MmaOperand::B);
        assert_eq!(b.rows[8][0].text, "T0 V2");
        assert_eq!(b.rows[9][1].text, "T4 V3");
        let warpgroup = wgmma(16).unwrap();
        assert_eq!(warpgroup.rows[8][0].text, "T0 V2");
        assert_eq!(warpgroup.rows[16][8].text, "T32 V4");
        assert_eq!(warpgroup.rows[63][15].text, "T127 V7");
    }

    #[test]
    fn p_stays_where_it_is() {
        let grid = identity();
        assert_eq!(
            grid.notes,
            ["0 of 256 elements would have to change their lane"]
        );
        assert_eq!(grid.rows[8][9].text, "T0 V7=S1.3");
    }

    #[test]
    fn ldmatrix_reads_every_element_of_16_by_16() {
        for operand in [LdmatrixOperand::Q, LdmatrixOperand::K, LdmatrixOperand::V] {
            let grid = ldmatrix(operand);
            assert!(texts(&grid).iter().all(|text| !text.is_empty()));
        }
        assert_eq!(ldmatrix(LdmatrixOperand::K).rows[0][8].text, "T8 R1");
        assert_eq!(ldmatrix(LdmatrixOperand::V).rows[0][8].text, "T16 R2");
    }

    #[test]
    fn columns_that_no_instruction_has_are_refused() {
        for n in [0, 4, 12, 264] {
            let message = wgmma(n).unwrap_err().to_string();
            assert!(message.starts_with(&format!("n: wgmma has no {n} columns; ")));
        }
    }
}
