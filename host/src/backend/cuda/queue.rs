//! A stream of a device.

use super::failure::{failure, of_cust};
use super::kernel::{Geometry, Kernel};
use super::primary::{Entered, Primary};
use crate::Error;
use cuda_loader::{DriverError, sys};
use cust::stream::{Stream, StreamFlags};
use std::sync::Arc;

/// A stream in a device's primary context; what is queued on it runs in order.
pub(super) struct Queue {
    stream: sys::CUstream,
    /// The stream, where it is this queue's own. Taken only when dropped.
    own: Option<Stream>,
    pub(super) primary: Arc<Primary>,
}

// SAFETY: the driver takes a stream's handle from any thread.
unsafe impl Send for Queue {}
// SAFETY: as above; the driver locks for itself.
unsafe impl Sync for Queue {}

impl Queue {
    /// A stream of its own. It waits for work on the legacy default stream, and that for it.
    pub(super) fn new(primary: Arc<Primary>) -> Result<Self, Error> {
        let entered = primary.enter()?;
        let own = Stream::new(StreamFlags::DEFAULT, None).map_err(|error| {
            failure(
                &primary.info.device.name,
                "creating a stream",
                of_cust(error),
            )
        })?;
        drop(entered);
        Ok(Self {
            stream: own.as_inner(),
            own: Some(own),
            primary,
        })
    }

    /// The caller's stream, which may be null for the legacy default one.
    ///
    /// # Safety
    /// `stream` belongs to the primary context and outlives the queue.
    pub(super) unsafe fn borrow(primary: Arc<Primary>, stream: sys::CUstream) -> Self {
        Self {
            stream,
            own: None,
            primary,
        }
    }

    pub(super) fn stream(&self) -> sys::CUstream {
        self.stream
    }

    /// The device's name.
    pub(super) fn device(&self) -> &str {
        &self.primary.info.device.name
    }

    /// Runs driver calls with the context current.
    pub(super) fn call<T>(
        &self,
        operation: &str,
        calls: impl FnOnce() -> Result<T, DriverError>,
    ) -> Result<T, Error> {
        let _entered = self.enter()?;
        calls().map_err(|error| failure(self.device(), operation, error))
    }

    /// Makes the context current to this thread until the guard is dropped.
    ///
    /// # Errors
    /// As for [`Primary::enter`].
    pub(super) fn enter(&self) -> Result<Entered<'_>, Error> {
        self.primary.enter()
    }

    /// Queues a launch of `kernel`, called `name`, and returns without waiting for it.
    ///
    /// # Safety
    /// As for [`CudaDevice::launch_kernel`](super::CudaDevice::launch_kernel).
    pub(super) unsafe fn launch(
        &self,
        kernel: &Kernel,
        name: &str,
        geometry: Geometry,
        params: &[&[u8]],
    ) -> Result<(), Error> {
        let _entered = self.enter()?;
        // SAFETY: forwarded to the caller.
        unsafe { kernel.launch(self.device(), self.stream, name, geometry, params) }
    }

    /// Waits for everything queued so far.
    pub(super) fn synchronize(&self) -> Result<(), DriverError> {
        // SAFETY: the stream lives as long as `self`.
        unsafe { sys::cuStreamSynchronize(self.stream) }.ok()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // `cust` destroys the stream in the current context. One that cannot be entered is gone already.
        let own = self.own.take();
        match self.primary.enter() {
            Ok(_entered) => drop(own),
            Err(_) => std::mem::forget(own),
        }
    }
}
