use std::fmt;

/// The place of one value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct At {
    /// Batch entry, or number of a packed sequence.
    pub batch: usize,
    /// Head: a query head; for dk and dv a head of k and v.
    pub head: usize,
    /// Row, counted in its sequence: a query; for dk and dv a key.
    pub row: usize,
    /// Component; 0 for lse.
    pub dim: usize,
}

/// The value that used up most of its allowed error.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Worst {
    /// Error over allowed error; above 1 is wrong.
    pub ratio: f64,
    /// Place of the value.
    pub at: At,
    /// The backend's value.
    pub got: f64,
    /// The exact value.
    pub exact: f64,
}

impl Worst {
    pub(super) fn larger(self, other: Self) -> Self {
        if other.ratio > self.ratio {
            other
        } else {
            self
        }
    }
}

impl fmt::Display for Worst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let At {
            batch,
            head,
            row,
            dim,
        } = self.at;
        write!(
            f,
            "{:.3} of the allowed error at batch {batch}, head {head}, row {row}, dim {dim}: {} for {}",
            self.ratio, self.got, self.exact
        )
    }
}
