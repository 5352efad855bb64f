//! Device memory whose loads and stores are counted.

use std::cell::Cell;
use std::ops::Range;

use serde::Serialize;

/// Bytes moved between device memory and the chip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    pub read_bytes: u64,
    pub written_bytes: u64,
}

impl std::iter::Sum for Traffic {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, traffic| Self {
            read_bytes: sum.read_bytes + traffic.read_bytes,
            written_bytes: sum.written_bytes + traffic.written_bytes,
        })
    }
}

/// A matrix in device memory, f32, row by row.
#[derive(Clone)]
pub struct Matrix {
    values: Vec<f32>,
    columns: usize,
    traffic: Cell<Traffic>,
}

impl Matrix {
    /// `values` as rows of `columns`, put there without being counted.
    pub fn new(values: Vec<f32>, columns: usize) -> Self {
        assert!(columns > 0 && values.len().is_multiple_of(columns));
        Self {
            values,
            columns,
            traffic: Cell::default(),
        }
    }

    /// `rows` × `columns` of a memory not written yet: NaN.
    pub fn uninitialised(rows: usize, columns: usize) -> Self {
        Self::new(vec![f32::NAN; rows * columns], columns)
    }

    /// Stores `value` everywhere.
    pub fn fill(&mut self, value: f32) {
        self.count_stored(self.values.len());
        self.values.fill(value);
    }

    /// Loads rows: `rows.len()` × columns.
    pub fn load(&self, rows: Range<usize>) -> Tile {
        let values = &self.values[rows.start * self.columns..rows.end * self.columns];
        let mut traffic = self.traffic.get();
        traffic.read_bytes += size_of_val(values) as u64;
        self.traffic.set(traffic);
        Tile {
            values: values.to_vec(),
            columns: self.columns,
        }
    }

    /// Stores `tile` from row `row` on.
    pub fn store(&mut self, row: usize, tile: &Tile) {
        assert_eq!(tile.columns, self.columns);
        self.count_stored(tile.values.len());
        self.values[row * self.columns..][..tile.values.len()].copy_from_slice(&tile.values);
    }

    fn count_stored(&mut self, elements: usize) {
        self.traffic.get_mut().written_bytes += (elements * size_of::<f32>()) as u64;
    }

    /// Bytes moved so far.
    pub fn traffic(&self) -> Traffic {
        self.traffic.get()
    }

    /// Transfers of the whole matrix, in either direction.
    pub fn passes(&self) -> f64 {
        let Traffic {
            read_bytes,
            written_bytes,
        } = self.traffic();
        (read_bytes + written_bytes) as f64 / size_of_val(self.values.as_slice()) as f64
    }

    /// The elements, for checks: not counted.
    pub fn into_values(self) -> Vec<f32> {
        self.values
    }
}

/// Rows on the chip: registers or shared memory.
#[derive(Clone, Debug)]
pub struct Tile {
    values: Vec<f32>,
    columns: usize,
}

impl Tile {
    /// `rows` × `columns` of `value`.
    pub fn filled(value: f32, rows: usize, columns: usize) -> Self {
        Self {
            values: vec![value; rows * columns],
            columns,
        }
    }

    /// One row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.columns..][..self.columns]
    }

    /// One row, to be changed.
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.values[row * self.columns..][..self.columns]
    }

    /// All rows, one after the other.
    pub fn values(&self) -> &[f32] {
        &self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_and_stores_are_counted() {
        let mut matrix = Matrix::uninitialised(4, 2);
        matrix.fill(1.0);
        let mut tile = matrix.load(1..3);
        tile.row_mut(1)[0] = 5.0;
        matrix.store(2, &tile);
        let traffic = matrix.traffic();
        assert_eq!((traffic.read_bytes, traffic.written_bytes), (16, 32 + 16));
        assert_eq!(matrix.passes(), 2.0);
        assert_eq!(
            matrix.into_values(),
            [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 5.0, 1.0]
        );
    }
}
