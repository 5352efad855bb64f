//! Device memory.

use super::queue::Queue;
use cuda_loader::{DriverError, sys};
use std::sync::Arc;

/// An allocation of device memory, freed when dropped, behind the work queued by then.
///
/// Work on another stream must be ordered by the caller, against the first use and against the drop.
pub struct CudaBuffer {
    /// Zero for an empty buffer, which has no memory.
    address: u64,
    size_bytes: usize,
    queue: Arc<Queue>,
}

impl CudaBuffer {
    /// Allocates in stream order where the device can. The context is current.
    pub(super) fn new(queue: &Arc<Queue>, size_bytes: usize) -> Result<Self, DriverError> {
        let mut address = 0;
        if size_bytes > 0 {
            // SAFETY: `address` is writable, and the stream lives as long as its queue.
            let result = unsafe {
                match queue.primary.has_memory_pools {
                    true => sys::cuMemAllocAsync(&mut address, size_bytes, queue.stream()),
                    false => sys::cuMemAlloc_v2(&mut address, size_bytes),
                }
            };
            result.ok()?;
        }
        Ok(Self {
            address,
            size_bytes,
            queue: Arc::clone(queue),
        })
    }

    /// The address kernels see; 0 for an empty buffer. The driver aligns allocations to 256 bytes.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Whether this was allocated on `queue`.
    pub(super) fn is_of(&self, queue: &Arc<Queue>) -> bool {
        Arc::ptr_eq(&self.queue, queue)
    }

    /// The size that was asked for, in bytes.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }
}

impl Drop for CudaBuffer {
    fn drop(&mut self) {
        if self.address == 0 {
            return;
        }
        // A context that cannot be entered any more has taken its memory with it.
        if let Ok(_entered) = self.queue.enter() {
            // SAFETY: allocated in the same way, and used by nobody from here on. A failure here is that
            // of an earlier launch, which the next call reports too.
            let _ = unsafe {
                match self.queue.primary.has_memory_pools {
                    true => sys::cuMemFreeAsync(self.address, self.queue.stream()),
                    false => sys::cuMemFree_v2(self.address),
                }
            };
        }
    }
}
