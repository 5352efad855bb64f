//! Rows of a sequence, from unchecked lengths.

use crate::abi::{AttentionParams, DeviceAddress, SequenceRows};

impl SequenceRows {
    /// The rows of sequence `batch`; `load` gives the i32 at a device address.
    ///
    /// The lengths may have any values. The rows returned lie inside the operands and are no more than the promised
    /// longest sequence has; a sequence that ends before it begins has none.
    #[inline(always)]
    pub fn read(params: &AttentionParams, batch: u32, load: impl Fn(u64) -> i32) -> Self {
        let lengths = &params.lengths;
        let (q_begin, seq_q, kv_begin, mut seq_kv) = if lengths.has_cu_seqlens() {
            let extent = |ends: Option<DeviceAddress>, total, longest| {
                let begin = element(ends, batch);
                let end = begin + size_of::<i32>() as u64;
                clamped((load(begin), load(end)), total, longest)
            };
            let q = extent(lengths.cu_seqlens_q, lengths.total_q, params.seq_q);
            let kv = kv_rows(params, batch, &load);
            (q.0, q.1, kv.0, kv.1)
        } else {
            (0, params.seq_q, 0, params.seq_kv)
        };
        if lengths.seqused_kv.is_some() {
            let used = load(used_address(params, batch)).max(0) as u32;
            seq_kv = seq_kv.min(used);
        }
        Self {
            q_begin,
            seq_q,
            kv_begin,
            seq_kv,
        }
    }
}

/// First row and number of rows of k and v of sequence `batch`, those included that `seqused_kv` leaves unused.
#[inline(always)]
pub fn kv_rows(params: &AttentionParams, batch: u32, load: impl Fn(u64) -> i32) -> (u32, u32) {
    let lengths = &params.lengths;
    if lengths.has_cu_seqlens() {
        let begin = element(lengths.cu_seqlens_kv, batch);
        let end = begin + size_of::<i32>() as u64;
        clamped((load(begin), load(end)), lengths.total_kv, params.seq_kv)
    } else {
        (0, params.seq_kv)
    }
}

/// Where a launch with such an array says how many rows of k and v sequence `batch` uses.
#[inline(always)]
pub fn used_address(params: &AttentionParams, batch: u32) -> u64 {
    element(params.lengths.seqused_kv, batch)
}

/// First row and number of rows of q of sequence `batch`.
#[inline(always)]
pub fn q_rows(params: &AttentionParams, batch: u32, load: impl Fn(u64) -> i32) -> (u32, u32) {
    let lengths = &params.lengths;
    if lengths.has_cu_seqlens() {
        let begin = element(lengths.cu_seqlens_q, batch);
        let end = begin + size_of::<i32>() as u64;
        clamped((load(begin), load(end)), lengths.total_q, params.seq_q)
    } else {
        (0, params.seq_q)
    }
}

/// Address of element `index` of an array of i32.
#[inline(always)]
fn element(array: Option<DeviceAddress>, index: u32) -> u64 {
    array.map_or(0, DeviceAddress::get) + index as u64 * size_of::<i32>() as u64
}

/// First row and number of rows of a sequence from `begin` to `end`, of at most `longest` rows, among `total`.
#[inline(always)]
fn clamped((begin, end): (i32, i32), total: u32, longest: u32) -> (u32, u32) {
    let total = total as i32;
    let begin = begin.max(0).min(total);
    let end = end.max(begin).min(total);
    (begin as u32, ((end - begin) as u32).min(longest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::LengthsParams;
    use bytemuck::Zeroable;

    /// Address of an array of the test.
    const BASE: u64 = 1 << 32;

    fn address(index: usize) -> Option<DeviceAddress> {
        DeviceAddress::new(BASE + (index * size_of::<i32>()) as u64)
    }

    fn read(params: &AttentionParams, memory: &[i32], batch: u32) -> [u32; 4] {
        let load = |address: u64| memory[(address - BASE) as usize / size_of::<i32>()];
        let rows = SequenceRows::read(params, batch, load);
        [rows.q_begin, rows.seq_q, rows.kv_begin, rows.seq_kv]
    }

    #[test]
    fn wrong_ends_stay_inside() {
        let good = [(0, 10), (3, 3), (5, 100)];
        for (begin, end) in good {
            let (first, rows) = clamped((begin, end), 100, 100);
            assert_eq!((first, rows), (begin as u32, (end - begin) as u32));
        }
        let ends = [i32::MIN, -1, 0, 1, 50, 99, 100, 101, i32::MAX];
        for (begin, end) in ends.into_iter().flat_map(|a| ends.map(|b| (a, b))) {
            for longest in [0, 7, 100] {
                let (first, rows) = clamped((begin, end), 100, longest);
                assert!(first <= 100 && rows <= 100 - first && rows <= longest);
            }
        }
        assert_eq!(clamped((60, 20), 100, 100), (60, 0));
        assert_eq!(clamped((-5, 20), 100, 100), (0, 20));
        assert_eq!(clamped((90, 120), 100, 100), (90, 10));
    }

    #[test]
    fn varlen_rows_are_cut_to_what_is_used() {
        let memory = [
            0, 4, 4, 9, /* kv */ 0, 6, 8, 20, /* used */ 3, 100, -1,
        ];
        let params = AttentionParams {
            seq_q: 5,
            seq_kv: 12,
            lengths: LengthsParams {
                total_q: 9,
                total_kv: 20,
                cu_seqlens_q: address(0),
                cu_seqlens_kv: address(4),
                seqused_kv: None,
            },
            ..AttentionParams::zeroed()
        };
        assert_eq!(read(&params, &memory, 0), [0, 4, 0, 6]);
        assert_eq!(read(&params, &memory, 1), [4, 0, 6, 2]);
        assert_eq!(read(&params, &memory, 2), [4, 5, 8, 12]);
        let mut used = params;
        used.lengths.seqused_kv = address(8);
        assert_eq!(read(&used, &memory, 0), [0, 4, 0, 3]);
        assert_eq!(read(&used, &memory, 1), [4, 0, 6, 2]);
        assert_eq!(read(&used, &memory, 2), [4, 5, 8, 0]);
    }

    #[test]
    fn batch_entries_begin_at_0() {
        let mut params = AttentionParams {
            seq_q: 5,
            seq_kv: 12,
            ..AttentionParams::zeroed()
        };
        assert_eq!(read(&params, &[], 1), [0, 5, 0, 12]);
        params.lengths.seqused_kv = address(0);
        for (used, expected) in [(7, 7), (13, 12), (0, 0), (i32::MIN, 0)] {
            assert_eq!(read(&params, &[99, used], 1), [0, 5, 0, expected]);
        }
    }
}
