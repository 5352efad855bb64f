//! Row-major matrices of f64, and the three products that a layer and its gradients need.

/// A row-major matrix, `rows × cols`.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub cols: usize,
    /// `rows · cols` elements.
    pub values: Vec<f64>,
}

impl Matrix {
    /// One whose elements are all 0.
    pub fn zeros(rows: usize, cols: usize) -> Self {
        let values = vec![0.0; rows * cols];
        Self { rows, cols, values }
    }

    /// The elements of a row.
    pub fn row(&self, row: usize) -> &[f64] {
        &self.values[row * self.cols..][..self.cols]
    }

    /// The elements of a row, to be changed.
    pub fn row_mut(&mut self, row: usize) -> &mut [f64] {
        &mut self.values[row * self.cols..][..self.cols]
    }

    /// `self += other`.
    pub fn add(&mut self, other: &Self) {
        assert_eq!((self.rows, self.cols), (other.rows, other.cols));
        for (value, other) in self.values.iter_mut().zip(&other.values) {
            *value += other;
        }
    }

    /// `self · b`.
    pub fn times(&self, b: &Self) -> Self {
        assert_eq!(self.cols, b.rows);
        let mut product = Self::zeros(self.rows, b.cols);
        for row in 0..self.rows {
            for (inner, &factor) in self.row(row).iter().enumerate() {
                add_scaled(product.row_mut(row), factor, b.row(inner));
            }
        }
        product
    }

    /// `selfᵀ · b`.
    pub fn transposed_times(&self, b: &Self) -> Self {
        assert_eq!(self.rows, b.rows);
        let mut product = Self::zeros(self.cols, b.cols);
        for inner in 0..self.rows {
            for (row, &factor) in self.row(inner).iter().enumerate() {
                add_scaled(product.row_mut(row), factor, b.row(inner));
            }
        }
        product
    }

    /// `self · bᵀ`.
    pub fn times_transposed(&self, b: &Self) -> Self {
        assert_eq!(self.cols, b.cols);
        let mut product = Self::zeros(self.rows, b.rows);
        for row in 0..self.rows {
            for col in 0..b.rows {
                product.row_mut(row)[col] = dot(self.row(row), b.row(col));
            }
        }
        product
    }
}

/// `sum += factor · values`.
pub fn add_scaled(sum: &mut [f64], factor: f64, values: &[f64]) {
    for (sum, value) in sum.iter_mut().zip(values) {
        *sum += factor * value;
    }
}

/// The sum of the products of two rows' elements.
pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
