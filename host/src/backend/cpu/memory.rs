use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use crate::memory::{FOREIGN_BUFFER, check_owned};
use crate::sealed::Sealed;
use crate::{Error, Memory};

/// Alignment that the allocator guarantees anyway. For a larger one, `alloc_zeroed` writes every byte itself instead of
/// taking zeroed pages from the operating system.
const ALIGN_BYTES: usize = 16;

/// The host's heap as a backend's memory.
#[derive(Debug, Default)]
pub struct CpuMemory {
    /// Identifies this memory; its buffers hold a clone as `owner`.
    identity: Arc<()>,
}

/// An allocation on the host's heap.
#[derive(Debug)]
pub struct CpuBuffer {
    start: NonNull<u8>,
    layout: Layout,
    size_bytes: usize,
    owner: Arc<()>,
}

impl CpuBuffer {
    /// The size that was asked for, in bytes.
    #[cfg(feature = "cuda")] // for `Auto`
    pub(crate) fn size_bytes(&self) -> usize {
        self.size_bytes
    }
}

// SAFETY: a buffer owns its memory; writing through it takes `&mut`, or the promises of
// `Backend::launch`.
unsafe impl Send for CpuBuffer {}
// SAFETY: as above.
unsafe impl Sync for CpuBuffer {}

impl Drop for CpuBuffer {
    fn drop(&mut self) {
        // SAFETY: `start` came from `alloc_zeroed` with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

impl Sealed for CpuMemory {}

// SAFETY: an address is that of the allocation itself, exposed so that kernels may use it; work is
// done before `launch` returns, so a drop never outruns it.
unsafe impl Memory for CpuMemory {
    type Buffer = CpuBuffer;
    type Mark = Instant;

    fn is_queued(&self) -> bool {
        false
    }

    fn alloc(&mut self, bytes: usize) -> Result<CpuBuffer, Error> {
        let out_of_memory = || Error::OutOfMemory {
            device: "cpu".into(),
            requested_bytes: bytes as u64,
            free: "a size that the host's memory holds is needed".into(),
        };
        let layout = Layout::from_size_align(bytes.max(ALIGN_BYTES), ALIGN_BYTES)
            .map_err(|_| out_of_memory())?;
        // Zeroed, because reading bytes that nobody wrote is undefined on the host.
        // SAFETY: the layout's size is not 0.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(out_of_memory)?;
        Ok(CpuBuffer {
            start,
            layout,
            size_bytes: bytes,
            owner: Arc::clone(&self.identity),
        })
    }

    fn size_bytes(&self, buffer: &CpuBuffer) -> usize {
        buffer.size_bytes
    }

    /// `false` if another value of this type allocated it, although all lie on one heap: a mutable borrow of this
    /// memory then excludes every other access to the buffer.
    fn owns(&self, buffer: &CpuBuffer) -> bool {
        Arc::ptr_eq(&self.identity, &buffer.owner)
    }

    fn address(&self, buffer: &CpuBuffer) -> u64 {
        assert!(self.owns(buffer), "{FOREIGN_BUFFER}");
        buffer.start.as_ptr().expose_provenance() as u64
    }

    fn write(&mut self, buffer: &mut CpuBuffer, bytes: &[u8]) -> Result<(), Error> {
        check_owned(self, buffer)?;
        assert!(bytes.len() <= buffer.size_bytes);
        // SAFETY: the length was just checked, and `&mut` keeps every other access out.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.start.as_ptr(), bytes.len()) }
        Ok(())
    }

    fn read_at(
        &mut self,
        buffer: &CpuBuffer,
        offset: usize,
        bytes: &mut [u8],
    ) -> Result<(), Error> {
        check_owned(self, buffer)?;
        assert!(offset <= buffer.size_bytes && bytes.len() <= buffer.size_bytes - offset);
        // SAFETY: the length was just checked, and the buffer is initialised from its allocation on.
        unsafe {
            let from = buffer.start.as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len());
        }
        Ok(())
    }

    fn synchronize(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn mark(&mut self) -> Result<Instant, Error> {
        Ok(Instant::now())
    }

    fn elapsed_ms(&mut self, start: &Instant, stop: &Instant) -> Result<f64, Error> {
        Ok(stop.duration_since(*start).as_secs_f64() * 1e3)
    }
}
