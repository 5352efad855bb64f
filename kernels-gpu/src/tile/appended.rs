//! Which key of a sequence a new row becomes. Shared by the kernel and the CPU.

use crate::abi::CacheFault;

/// A slot that stands for none: the row is not appended.
pub const NO_SLOT: i32 = -1;

/// What becomes of a new row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// It is the key of this number.
    Key(u32),
    /// The sequence has fewer keys than new rows, and this is none of them.
    Padding,
    /// It cannot be appended.
    Bad(CacheFault),
}

/// What becomes of row `row` of a sequence's `seq` new ones, of which the last is key `kv_len − 1`. A negative length reads as a
/// large one. `positions` bounds the keys that there are angles for, if rows are rotated.
#[inline(always)]
pub const fn appended(
    kv_len: u32,
    capacity: u32,
    seq: u32,
    row: u32,
    positions: Option<u32>,
) -> Appended {
    if kv_len > capacity {
        return Appended::Bad(CacheFault::BadLength);
    }
    // No sum overflows: lengths are below `Band::OPEN`.
    let behind = seq - 1 - row;
    if kv_len <= behind {
        return Appended::Padding;
    }
    let key = kv_len - 1 - behind;
    match positions {
        Some(positions) if key >= positions => Appended::Bad(CacheFault::BadPosition),
        _ => Appended::Key(key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_row_is_the_last_key() {
        let of = |kv_len, row| appended(kv_len, 8, 3, row, Some(6));
        assert_eq!(
            [0, 1, 2].map(|row| of(5, row)),
            [2, 3, 4].map(Appended::Key)
        );
        assert_eq!(of(2, 0), Appended::Padding);
        assert_eq!(of(2, 1), Appended::Key(0));
        assert_eq!(of(0, 2), Appended::Padding);
        assert_eq!(of(7, 2), Appended::Bad(CacheFault::BadPosition));
        assert_eq!(of(7, 1), Appended::Key(5));
        for bad in [9, -1i32 as u32, i32::MIN as u32] {
            assert_eq!(of(bad, 0), Appended::Bad(CacheFault::BadLength));
        }
        assert_eq!(appended(7, 8, 3, 2, None), Appended::Key(6));
    }
}
