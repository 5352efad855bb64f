//! The memory model behind the counts: 32-byte sectors and 32 four-byte banks.

use crate::exec::LANES;

/// Bytes of an L2 sector.
const SECTOR: u64 = 32;

/// Distinct 32-byte sectors that `bytes` at each active lane's address touch.
pub(crate) fn sectors(addresses: &[u64; LANES], mask: u32, bytes: u32) -> u64 {
    let mut touched = [0u64; LANES * 2];
    let mut n = 0;
    for (lane, address) in addresses.iter().enumerate() {
        if mask >> lane & 1 == 0 {
            continue;
        }
        let first = address / SECTOR;
        let last = address.saturating_add(u64::from(bytes) - 1) / SECTOR;
        for sector in first..=last {
            if n < touched.len() {
                touched[n] = sector;
                n += 1;
            }
        }
    }
    distinct(&mut touched[..n])
}

/// How many different values there are.
fn distinct(values: &mut [u64]) -> u64 {
    // Lanes mostly go upwards.
    if !values.is_sorted() {
        values.sort_unstable();
    }
    let steps = values.windows(2).filter(|pair| pair[0] != pair[1]);
    u64::from(!values.is_empty()) + steps.count() as u64
}

/// Distinct 32-byte sectors that ranges (address and bytes) touch.
pub(crate) fn sectors_of_ranges(ranges: impl Iterator<Item = (u64, u64)>) -> u64 {
    let mut touched: Vec<(u64, u64)> = ranges
        .filter(|&(_, bytes)| bytes > 0)
        .map(|(at, bytes)| (at / SECTOR, at.saturating_add(bytes - 1) / SECTOR))
        .collect();
    touched.sort_unstable();
    let mut distinct = 0;
    let mut next = 0;
    for (first, last) in touched {
        let first = first.max(next);
        if first <= last {
            distinct += last - first + 1;
            next = last + 1;
        }
    }
    distinct
}

/// Passes over the banks that a shared access takes, and the fewest possible for its lanes.
///
/// 8-byte accesses are served half a warp at a time, 16-byte ones a quarter; within a part, a pass
/// serves one word of each bank, and lanes that name the same word share it.
pub(crate) fn passes(addresses: &[u64; LANES], mask: u32, bytes: u32) -> (u64, u64) {
    let lanes_per_part = match bytes {
        0..=4 => 32,
        8 => 16,
        _ => 8,
    };
    let words = u64::from(bytes.div_ceil(4));
    let (mut total, mut ideal) = (0, 0);
    for part in 0..LANES / lanes_per_part {
        let lanes = part * lanes_per_part..(part + 1) * lanes_per_part;
        let mut wanted = [0u64; LANES * 4];
        let mut n = 0;
        for lane in lanes {
            if mask >> lane & 1 == 1 {
                for w in 0..words {
                    wanted[n] = addresses[lane] / 4 + w;
                    n += 1;
                }
            }
        }
        if n == 0 {
            continue;
        }
        total += passes_of_part(&mut wanted[..n]);
        ideal += 1;
    }
    (total, ideal)
}

/// Passes that serve the words of a part.
fn passes_of_part(wanted: &mut [u64]) -> u64 {
    let bank = |word: u64| (word % 32) as usize;
    // The word of each bank, and 1 more: most kernels ask each for one alone.
    let mut of_bank = [0; 32];
    let one_each = wanted.iter().all(|&word| {
        let known = &mut of_bank[bank(word)];
        let is_alone = *known == 0 || *known == word + 1;
        *known = word + 1;
        is_alone
    });
    if one_each {
        return 1;
    }
    wanted.sort_unstable();
    let mut per_bank = [0u64; 32];
    for i in 0..wanted.len() {
        if i == 0 || wanted[i] != wanted[i - 1] {
            per_bank[bank(wanted[i])] += 1;
        }
    }
    per_bank.iter().max().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coalesced_and_scattered_loads() {
        let dense = std::array::from_fn(|i| 4 * i as u64);
        assert_eq!(sectors(&dense, u32::MAX, 4), 4);
        let strided = std::array::from_fn(|i| 64 * i as u64);
        assert_eq!(sectors(&strided, u32::MAX, 4), 32);
        let wide = std::array::from_fn(|i| 16 * i as u64);
        assert_eq!(sectors(&wide, u32::MAX, 16), 16);
        assert_eq!(sectors(&[100; LANES], u32::MAX, 4), 1);
    }

    #[test]
    fn ranges_share_sectors() {
        let count = |ranges: &[(u64, u64)]| sectors_of_ranges(ranges.iter().copied());
        assert_eq!(count(&[]), 0);
        assert_eq!(count(&[(64, 0)]), 0);
        assert_eq!(count(&[(0, 128), (256, 128)]), 8);
        // Rows of 80 bytes: 400 bytes in a row, and the order does not matter.
        assert_eq!(count(&[(160, 80), (0, 80), (80, 80), (240, 160)]), 13);
        assert_eq!(count(&[(30, 4)]), 2);
        assert_eq!(count(&[(0, 320), (32, 32)]), 10);
    }

    #[test]
    fn bank_conflicts() {
        let dense = std::array::from_fn(|i| 4 * i as u64);
        assert_eq!(passes(&dense, u32::MAX, 4), (1, 1));
        assert_eq!(passes(&[64; LANES], u32::MAX, 4), (1, 1));
        let column = std::array::from_fn(|i| 128 * i as u64);
        assert_eq!(passes(&column, u32::MAX, 4), (32, 1));
        let padded = std::array::from_fn(|i| 132 * i as u64);
        assert_eq!(passes(&padded, u32::MAX, 4), (1, 1));
        let rows16 = std::array::from_fn(|i| 16 * i as u64);
        assert_eq!(passes(&rows16, u32::MAX, 16), (4, 4));
    }
}
