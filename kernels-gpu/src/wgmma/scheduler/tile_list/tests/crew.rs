//! Threads of the processor as a team.

use core::array;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::vec::Vec;

use crate::config::tile_list::BUCKETS;
use crate::wgmma::scheduler::tile_list::{ListHeader, ListedTile, Team, TileListParams, build};

/// Address of the first word of the device's memory.
pub const BASE: u64 = 1 << 32;

/// The list as it was made.
pub struct Made {
    pub header: ListHeader,
    /// By index.
    pub entries: Vec<ListedTile>,
}

/// State shared by the threads of a crew.
struct Shared<'a> {
    size: u32,
    /// Device memory from [`BASE`] on.
    lengths: &'a [i32],
    capacity: u32,
    barrier: Barrier,
    sums: [AtomicU64; 2],
    buckets: Vec<AtomicU32>,
    before: Vec<AtomicU32>,
    notes: Vec<AtomicU32>,
    header: Mutex<Option<ListHeader>>,
    entries: Mutex<BTreeMap<u32, ListedTile>>,
}

/// A thread of a crew.
struct Member<'a> {
    rank: u32,
    shared: &'a Shared<'a>,
}

/// Has a crew of `size` threads list tiles, of lengths in device memory.
///
/// # Panics
/// If an entry is written twice, beyond the list's capacity, or missing.
pub fn list(params: &TileListParams, lengths: &[i32], size: u32) -> Made {
    let words = |count: u32| (0..count).map(|_| AtomicU32::new(!0)).collect::<Vec<_>>();
    let shared = Shared {
        size,
        lengths,
        capacity: params.capacity,
        barrier: Barrier::new(size as usize),
        sums: [const { AtomicU64::new(0) }; 2],
        buckets: words(BUCKETS),
        before: words(size),
        notes: words(params.attention.batch),
        header: Mutex::new(None),
        entries: Mutex::new(BTreeMap::new()),
    };
    thread::scope(|scope| {
        for rank in 1..size {
            let member = Member {
                rank,
                shared: &shared,
            };
            // SAFETY: all members call it.
            scope.spawn(move || unsafe { build(&member, params) });
        }
        let first = Member {
            rank: 0,
            shared: &shared,
        };
        // SAFETY: as above.
        unsafe { build(&first, params) };
    });
    let header = shared.header.into_inner().unwrap().expect("it is written");
    let entries = shared.entries.into_inner().unwrap();
    let indices: Vec<_> = entries.keys().copied().collect();
    let packs = params.attention.heads_kv * params.pack_gqa.packs();
    assert!(
        indices.iter().copied().eq(0..header.tiles / packs),
        "{header:?}: {indices:?}"
    );
    Made {
        header,
        entries: entries.into_values().collect(),
    }
}

impl Team for Member<'_> {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.shared.size
    }

    unsafe fn barrier(&self) {
        self.shared.barrier.wait();
    }

    unsafe fn any(&self, condition: bool) -> bool {
        // SAFETY: the caller's contract is this function's.
        unsafe { self.sums([condition.into()])[0] > 0 }
    }

    unsafe fn sums<const N: usize>(&self, values: [u32; N]) -> [u32; N] {
        let Shared { sums, barrier, .. } = self.shared;
        for (sum, value) in sums.iter().zip(values) {
            sum.fetch_add(value.into(), SeqCst);
        }
        barrier.wait();
        let total = |which: usize| sums[which].load(SeqCst).min(u32::MAX.into()) as u32;
        let totals = std::array::from_fn(total);
        if barrier.wait().is_leader() {
            sums.iter().for_each(|sum| sum.store(0, SeqCst));
        }
        barrier.wait();
        totals
    }

    unsafe fn sum_before(&self, value: u32) -> u32 {
        let Shared {
            before, barrier, ..
        } = self.shared;
        before[self.rank as usize].store(value, SeqCst);
        barrier.wait();
        let others = before[..self.rank as usize].iter();
        others.fold(0, |sum, value| sum.wrapping_add(value.load(SeqCst)))
    }

    fn buckets(&self, index: u32) -> [u32; 4] {
        array::from_fn(|i| self.shared.buckets[index as usize + i].load(SeqCst))
    }

    fn set_buckets(&self, index: u32, values: [u32; 4]) {
        for (i, value) in values.into_iter().enumerate() {
            self.shared.buckets[index as usize + i].store(value, SeqCst);
        }
    }

    fn add_to_bucket(&self, index: u32, value: u32) -> u32 {
        self.shared.buckets[index as usize].fetch_add(value, SeqCst)
    }

    fn length(&self, address: u64) -> i32 {
        self.shared.lengths[((address - BASE) / 4) as usize]
    }

    fn note(&self, sequence: u32) -> u32 {
        self.shared.notes[sequence as usize].load(SeqCst)
    }

    fn set_note(&self, sequence: u32, value: u32) {
        self.shared.notes[sequence as usize].store(value, SeqCst);
    }

    fn put_header(&self, header: ListHeader) {
        let before = self.shared.header.lock().unwrap().replace(header);
        assert!(before.is_none(), "one member writes it");
    }

    fn put_entry(&self, index: u32, entry: ListedTile) {
        assert!(
            index < self.shared.capacity,
            "entry {index} of {}",
            self.shared.capacity
        );
        let before = self.shared.entries.lock().unwrap().insert(index, entry);
        assert!(before.is_none(), "entry {index} twice");
    }
}
