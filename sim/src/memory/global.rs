//! Device (global) memory: allocations that know their bounds and which bytes were written.
//!
//! Kernels of one launch run on several CPU threads, so words are atomics with relaxed order: a racy
//! kernel is a finding of the race check, never undefined behaviour here.

use std::alloc::{Layout, alloc_zeroed};
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, RwLock};

use crate::error::MemoryError;

/// Bits of an address that select a byte of one allocation. Allocation `i` starts at `(i + 1) << 37`,
/// so a stray pointer never reaches the next one and a freed address is never reused.
const OFFSET_BITS: u32 = 37;

/// Most bytes of one allocation: half of its slot, so overruns of either sign miss everything.
const MAX_BYTES: u64 = 1 << (OFFSET_BITS - 1);

/// Words of 0, which the allocator maps lazily; `None` if there is no room.
fn zeroed(words: usize) -> Option<Box<[AtomicU32]>> {
    if words == 0 {
        return Some(Box::new([]));
    }
    let layout = Layout::array::<AtomicU32>(words).ok()?;
    // SAFETY: the layout's size is not 0.
    let start = NonNull::new(unsafe { alloc_zeroed(layout) })?.cast::<AtomicU32>();
    let words = NonNull::slice_from_raw_parts(start, words);
    // SAFETY: the memory has the layout of so many atomics, for which bytes of 0 are valid, and nobody else has it.
    Some(unsafe { Box::from_raw(words.as_ptr()) })
}

/// One allocation.
pub(crate) struct Allocation {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    data: Box<[AtomicU32]>,
    /// One bit a byte.
    written: Box<[AtomicU32]>,
}

impl Allocation {
    fn new(base: u64, bytes: u64) -> Result<Self, MemoryError> {
        let words = bytes.div_ceil(4) as usize;
        let zeroed = |words| zeroed(words).ok_or(MemoryError::OutOfMemory { bytes });
        Ok(Self {
            base,
            bytes,
            data: zeroed(words)?,
            written: zeroed(words.div_ceil(8))?,
        })
    }

    /// Element of 1, 2, 4 or 8 bytes at `offset` (in bounds, aligned to `size`).
    #[inline(always)]
    pub(crate) fn load(&self, offset: u64, size: u32) -> u64 {
        let word = (offset / 4) as usize;
        let low = u64::from(self.data[word].load(Relaxed));
        match size {
            4 => low,
            8 => low | u64::from(self.data[word + 1].load(Relaxed)) << 32,
            _ => low >> (8 * (offset % 4)) & ((1 << (8 * size)) - 1),
        }
    }

    #[inline(always)]
    pub(crate) fn store(&self, offset: u64, size: u32, value: u64) {
        let word = (offset / 4) as usize;
        match size {
            4 => self.data[word].store(value as u32, Relaxed),
            8 => {
                self.data[word].store(value as u32, Relaxed);
                self.data[word + 1].store((value >> 32) as u32, Relaxed);
            }
            _ => {
                // Neighbouring bytes may be written by another CPU thread at the same time.
                let shift = 8 * (offset % 4) as u32;
                let mask = ((1u32 << (8 * size)) - 1) << shift;
                let bits = (value as u32) << shift & mask;
                let _ = self.data[word].fetch_update(Relaxed, Relaxed, |w| Some(w & !mask | bits));
            }
        }
        self.mark(offset, size);
    }

    /// Were all bytes written? `size` is a power of two up to 32 and `offset` aligned to it.
    #[inline(always)]
    pub(crate) fn is_written(&self, offset: u64, size: u32) -> bool {
        let mask = (u32::MAX >> (32 - size)) << (offset % 32);
        self.written[(offset / 32) as usize].load(Relaxed) & mask == mask
    }

    #[inline(always)]
    fn mark(&self, offset: u64, size: u32) {
        let mask = (u32::MAX >> (32 - size)) << (offset % 32);
        let word = &self.written[(offset / 32) as usize];
        if word.load(Relaxed) & mask != mask {
            word.fetch_or(mask, Relaxed);
        }
    }

    /// Atomically replaces an element of 4 or 8 bytes by `f` of it; returns the old one.
    pub(crate) fn update(&self, offset: u64, size: u32, f: impl Fn(u64) -> u64) -> u64 {
        let word = (offset / 4) as usize;
        self.mark(offset, size);
        if size == 8 {
            // Two words: atomics of one launch on the same address take turns by a lock.
            let _turn = WIDE_ATOMICS.lock();
            let old = self.load(offset, 8);
            self.store(offset, 8, f(old));
            return old;
        }
        let shift = 8 * (offset % 4) as u32;
        let field = if size == 4 { u32::MAX } else { 0xffff << shift };
        let old = self.data[word]
            .fetch_update(Relaxed, Relaxed, |w| {
                let new = (f(u64::from((w & field) >> shift)) as u32) << shift & field;
                Some(w & !field | new)
            })
            .unwrap_or_default();
        u64::from((old & field) >> shift)
    }

    fn read_bytes(&self, offset: u64, out: &mut [u8]) -> Result<(), u64> {
        let mut unwritten = 0;
        for (i, byte) in out.iter_mut().enumerate() {
            let at = offset + i as u64;
            unwritten += u64::from(!self.is_written(at, 1));
            *byte = (self.data[(at / 4) as usize].load(Relaxed) >> (8 * (at % 4))) as u8;
        }
        if unwritten == 0 {
            Ok(())
        } else {
            Err(unwritten)
        }
    }

    fn first_unwritten(&self, offset: u64, size: u64) -> u64 {
        (offset..offset + size)
            .find(|&at| !self.is_written(at, 1))
            .unwrap_or(offset)
    }

    pub(crate) fn write_bytes(&self, offset: u64, bytes: &[u8]) {
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            if at.is_multiple_of(4) && rest.len() >= 4 {
                let word = u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]);
                self.store(at, 4, word.into());
                at += 4;
                rest = &rest[4..];
            } else {
                self.store(at, 1, rest[0].into());
                at += 1;
                rest = &rest[1..];
            }
        }
    }
}

static WIDE_ATOMICS: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Device memory shared by launches, as one context of a driver.
#[derive(Default)]
pub struct Memory {
    /// Index `i` is the allocation at `(i + 1) << 37`; freed ones are `None`.
    slots: RwLock<Vec<Option<Arc<Allocation>>>>,
    /// Addresses of the module-scope variables of each module that was launched.
    modules: RwLock<HashMap<u64, Arc<[u64]>>>,
}

impl Memory {
    /// An empty device memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Allocates `bytes` (0 is allowed) of memory nothing has written; returns its address, aligned
    /// to 256 bytes and far from every other allocation.
    ///
    /// # Errors
    /// [`MemoryError::TooLarge`] above 64 GiB, [`MemoryError::OutOfMemory`] if the host has no room.
    pub fn alloc(&self, bytes: u64) -> Result<u64, MemoryError> {
        if bytes > MAX_BYTES {
            return Err(MemoryError::TooLarge {
                bytes,
                limit: MAX_BYTES,
            });
        }
        let mut slots = self.slots.write().unwrap_or_else(|e| e.into_inner());
        let base = (slots.len() as u64 + 1) << OFFSET_BITS;
        slots.push(Some(Arc::new(Allocation::new(base, bytes)?)));
        Ok(base)
    }

    /// Frees an allocation; later accesses to it are out of bounds.
    ///
    /// # Errors
    /// [`MemoryError::NotAllocated`] if `address` is not what [`Self::alloc`] returned, or was freed.
    pub fn free(&self, address: u64) -> Result<(), MemoryError> {
        let mut slots = self.slots.write().unwrap_or_else(|e| e.into_inner());
        let slot = (address >> OFFSET_BITS)
            .checked_sub(1)
            .and_then(|i| slots.get_mut(i as usize));
        match slot {
            Some(slot @ Some(_)) if address.trailing_zeros() >= OFFSET_BITS => {
                *slot = None;
                Ok(())
            }
            _ => Err(MemoryError::NotAllocated { address }),
        }
    }

    fn locate(&self, address: u64, size: u64) -> Result<(Arc<Allocation>, u64), MemoryError> {
        self.view(Histories::new())
            .locate(address, size)
            .map_err(|nearest| {
                let (nearest_start, nearest_bytes) = nearest.unwrap_or((0, 0));
                MemoryError::OutOfBounds {
                    address,
                    size,
                    nearest_start,
                    nearest_bytes,
                }
            })
    }

    /// Writes host bytes.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`] unless the range lies in one live allocation.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        let (allocation, offset) = self.locate(address, bytes.len() as u64)?;
        allocation.write_bytes(offset, bytes);
        Ok(())
    }

    /// Reads bytes back.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], or [`MemoryError::Uninitialised`] if nothing wrote some of them.
    pub fn read(&self, address: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        let size = out.len() as u64;
        let (allocation, offset) = self.locate(address, size)?;
        allocation
            .read_bytes(offset, out)
            .map_err(|unwritten| MemoryError::Uninitialised {
                address: allocation.base + allocation.first_unwritten(offset, size),
                unwritten,
                size,
            })
    }

    /// The allocations as they are now, for lock-free use by a launch that goes on with `histories`.
    pub(crate) fn view(&self, mut histories: Histories) -> View {
        let slots = self.slots.read().unwrap_or_else(|e| e.into_inner()).clone();
        histories.resize_with(slots.len(), OnceLock::new);
        View { histories, slots }
    }

    /// The variables' addresses of module `id`, made by `load` on its first launch.
    pub(crate) fn module(
        &self,
        id: u64,
        load: impl FnOnce() -> Result<Vec<u64>, MemoryError>,
    ) -> Result<Arc<[u64]>, MemoryError> {
        let mut modules = self.modules.write().unwrap_or_else(|e| e.into_inner());
        if let Some(known) = modules.get(&id) {
            return Ok(known.clone());
        }
        let addresses: Arc<[u64]> = load()?.into();
        modules.insert(id, addresses.clone());
        Ok(addresses)
    }
}

/// Start and size of the allocation nearest to a bad address.
type Nearest = Option<(u64, u64)>;

/// Access history of each allocation.
pub(crate) type Histories = Vec<OnceLock<Box<[AtomicU64]>>>;

/// A snapshot of the allocations.
pub(crate) struct View {
    slots: Vec<Option<Arc<Allocation>>>,
    histories: Histories,
}

impl View {
    /// The histories, for a launch that follows.
    pub(crate) fn into_histories(self) -> Histories {
        self.histories
    }

    /// The live allocation an address belongs to, in bounds or not.
    #[inline(always)]
    pub(crate) fn owner(&self, address: u64) -> Option<&Arc<Allocation>> {
        let index = (address >> OFFSET_BITS).wrapping_sub(1) as usize;
        self.slots.get(index)?.as_ref()
    }

    /// The access history of an allocation: `words` a granule of `granule` bytes.
    pub(crate) fn history(
        &self,
        allocation: &Allocation,
        granule: u64,
        words: usize,
    ) -> &[AtomicU64] {
        let index = (allocation.base >> OFFSET_BITS) as usize - 1;
        self.histories[index].get_or_init(|| {
            let entries = allocation.bytes.div_ceil(granule) as usize * words;
            let plain: Box<[u64]> = vec![0u64; entries].into();
            // SAFETY: `AtomicU64` has the size, alignment and bit validity of `u64`, and the box is
            // owned.
            unsafe { Box::from_raw(Box::into_raw(plain) as *mut [AtomicU64]) }
        })
    }

    /// The allocation holding `size` bytes at `address`, or the start and size of the one nearby.
    fn locate(&self, address: u64, size: u64) -> Result<(Arc<Allocation>, u64), Nearest> {
        let Some(owner) = self.owner(address) else {
            // Just below an allocation is still about that allocation.
            let next = self.owner(address.wrapping_add(MAX_BYTES));
            return Err(next.map(|a| (a.base, a.bytes)));
        };
        let offset = address - owner.base;
        if offset <= owner.bytes && size <= owner.bytes - offset {
            Ok((owner.clone(), offset))
        } else {
            Err(Some((owner.base, owner.bytes)))
        }
    }

    /// Describes the surroundings of a bad address, for its error.
    pub(crate) fn describe(&self, address: u64) -> String {
        match self.locate(address, 1) {
            Ok((a, offset)) => format!(
                "offset {offset} of the {}-byte allocation at {:#x}",
                a.bytes, a.base
            ),
            Err(Some((base, bytes))) => {
                let offset = address.wrapping_sub(base) as i64;
                format!("offset {offset} of the {bytes}-byte allocation at {base:#x}")
            }
            Err(None) => "no allocation is near".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_need_writes() {
        let memory = Memory::new();
        let a = memory.alloc(10).unwrap();
        let mut out = [0u8; 4];
        assert_eq!(
            memory.read(a + 2, &mut out),
            Err(MemoryError::Uninitialised {
                address: a + 2,
                unwritten: 4,
                size: 4
            })
        );
        memory.write(a + 1, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        memory.read(a + 2, &mut out).unwrap();
        assert_eq!(out, [2, 3, 4, 5]);
    }

    #[test]
    fn bounds_and_lifetimes() {
        let memory = Memory::new();
        let a = memory.alloc(10).unwrap();
        let b = memory.alloc(10).unwrap();
        assert!(memory.write(a + 8, &[0; 3]).is_err());
        assert!(memory.write(b - 1, &[0]).is_err());
        memory.write(a + 10, &[]).unwrap();
        memory.free(a).unwrap();
        assert!(memory.write(a, &[0]).is_err());
        assert!(memory.free(a).is_err() && memory.free(b + 256).is_err());
        assert!(memory.alloc(MAX_BYTES + 1).is_err());
    }

    #[test]
    fn sub_word_updates_keep_their_neighbours() {
        let memory = Memory::new();
        let a = memory.alloc(8).unwrap();
        memory.write(a, &[0x11; 8]).unwrap();
        let (owner, _) = memory.locate(a, 8).unwrap();
        owner.store(2, 2, 0xabcd);
        assert_eq!(owner.load(0, 4), 0xabcd_1111);
        assert_eq!(owner.update(2, 2, |x| x + 1), 0xabcd);
        assert_eq!(owner.load(2, 2), 0xabce);
    }
}
