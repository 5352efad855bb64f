//! Points in a stream, to measure between.

use super::queue::Queue;
use cuda_loader::{DriverError, sys};
use std::ptr;
use std::sync::Arc;

/// An event recorded in a stream.
///
/// `cust`'s own event records only in a stream that `cust` created.
pub struct CudaMark {
    event: sys::CUevent,
    queue: Arc<Queue>,
}

// SAFETY: the driver takes an event's handle from any thread.
unsafe impl Send for CudaMark {}
// SAFETY: as above; the driver locks for itself.
unsafe impl Sync for CudaMark {}

impl CudaMark {
    /// Records an event behind what is queued so far. The context is current.
    pub(super) fn record(queue: &Arc<Queue>) -> Result<Self, DriverError> {
        let mut event = ptr::null_mut();
        // SAFETY: `event` is writable; flags 0 is an event that keeps time.
        unsafe { sys::cuEventCreate(&mut event, 0) }.ok()?;
        let mark = Self {
            event,
            queue: Arc::clone(queue),
        };
        // SAFETY: both handles are live.
        unsafe { sys::cuEventRecord(mark.event, queue.stream()) }.ok()?;
        Ok(mark)
    }

    /// Waits for this mark and returns the milliseconds since `start`. The context is current.
    pub(super) fn since(&self, start: &Self) -> Result<f32, DriverError> {
        let mut milliseconds = 0.0;
        // SAFETY: both events are live and recorded, `start` at no later point of the stream.
        unsafe {
            sys::cuEventSynchronize(self.event).ok()?;
            sys::cuEventElapsedTime(&mut milliseconds, start.event, self.event).ok()?;
        }
        Ok(milliseconds)
    }
}

impl Drop for CudaMark {
    fn drop(&mut self) {
        if let Ok(_entered) = self.queue.enter() {
            // SAFETY: created by this mark; the driver keeps what pending work needs of it.
            let _ = unsafe { sys::cuEventDestroy_v2(self.event) };
        }
    }
}
