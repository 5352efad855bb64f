//! Order in shared memory of terms that a block has one of for each column of its fragments: the four that a lane needs of
//! sixteen columns lie together, and the lanes of a quad read consecutive memory.
//!
//! ```text
//! index    0 1 2 3   4 5  6  7   8 9  10 11   12 13 14 15
//! column   0 1 8 9   2 3 10 11   4 5  12 13    6  7 14 15
//! lane     0         1           2             3           of the quad
//! ```

/// Terms of a lane in every [`GROUP`] columns.
pub const OF_LANE: u32 = 4;
/// Columns whose terms are read at once.
pub const GROUP: u32 = 16;

/// Where the term of `column` lies.
#[inline(always)]
pub const fn index(column: u32) -> u32 {
    let (group, column) = (column / GROUP, column % GROUP);
    let (eight, pair) = (column / 8, column % 8 / 2);
    group * GROUP + pair * OF_LANE + eight * 2 + column % 2
}

/// Where the terms of lane `lane` in group `group` begin.
#[inline(always)]
pub const fn of_lane(group: u32, lane: u32) -> u32 {
    group * GROUP + lane % 4 * OF_LANE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::fragment::row_column;

    /// Each lane finds the terms of the columns that its fragments hold.
    #[test]
    fn lanes_find_their_columns() {
        for lane in 0..32 {
            for i in 0..16 {
                let (group, within) = (i / OF_LANE, i % OF_LANE);
                let at = of_lane(group, lane) + within;
                assert_eq!(index(row_column(lane, i)), at, "lane {lane}, element {i}");
            }
        }
    }
}
