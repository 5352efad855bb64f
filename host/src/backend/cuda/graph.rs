//! CUDA graphs: work that one call queues again.

use std::ptr;
use std::sync::Arc;

use cuda_loader::{DriverError, sys};

use super::Cuda;
use super::device::CudaDevice;
use super::queue::Queue;
use crate::{Backend, Error};

/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`: what would break this capture is an error in this thread, and other threads may go on.
const CAPTURE_OF_THIS_THREAD: u32 = 1;

/// `CU_STREAM_CAPTURE_STATUS_NONE`. A capture that has failed, but not ended, is one still.
const NO_CAPTURE: u32 = 0;

/// Work that [`Cuda::capture`] has kept.
pub struct CudaGraph {
    executable: sys::CUgraphExec,
    queue: Arc<Queue>,
}

// SAFETY: the driver takes a graph's handle from any thread; it is launched through `&mut` of its queue's device alone.
unsafe impl Send for CudaGraph {}

impl Cuda {
    /// Keeps the launches that `work` queues in a graph, instead of running them.
    ///
    /// [`Backend::launch`](crate::Backend::launch) says what `work` must not need: run it once before.
    ///
    /// # Errors
    /// Those of `work`, and [`Error::Device`] if something in it cannot be captured.
    pub fn capture<E: From<Error>>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<(), E>,
    ) -> Result<CudaGraph, E> {
        self.memory().begin_capture()?;
        let worked = work(self);
        // The capture is ended whatever has happened.
        let graph = self.memory().end_capture();
        worked?;
        Ok(graph?)
    }

    /// Queues all of a graph's work.
    ///
    /// # Errors
    /// [`Error::Argument`] on `graph` if another device has captured it; [`Error::Device`].
    ///
    /// # Safety
    /// What [`Backend::launch`](crate::Backend::launch) asks of the operands of each captured launch holds again, and this backend
    /// has not allocated another workspace of its own since.
    pub unsafe fn replay(&mut self, graph: &CudaGraph) -> Result<(), Error> {
        // SAFETY: the caller vouches for what the graph accesses.
        unsafe { self.memory().launch_graph(graph) }
    }
}

impl CudaDevice {
    /// Whether what is queued on the stream is being captured into a graph (CUDA Driver API, `cuStreamIsCapturing`): such work must
    /// not use memory that is there for any call, as a backend's own workspace.
    ///
    /// # Errors
    /// [`Error::Device`] if the driver does not say: of the legacy default stream it does not while another is captured.
    pub fn is_capturing(&self) -> Result<bool, Error> {
        let queue = self.queue();
        let mut status = 0;
        queue.call("asking for a capture", || {
            // SAFETY: the stream is live, and the pointer is writable.
            unsafe { sys::cuStreamIsCapturing(queue.stream(), &mut status) }.ok()
        })?;
        Ok(status != NO_CAPTURE)
    }

    fn begin_capture(&mut self) -> Result<(), Error> {
        let stream = self.queue().stream();
        self.queue().call("beginning a graph", || {
            // SAFETY: the stream is live.
            unsafe { sys::cuStreamBeginCapture_v2(stream, CAPTURE_OF_THIS_THREAD) }.ok()
        })
    }

    fn end_capture(&mut self) -> Result<CudaGraph, Error> {
        let queue = self.queue();
        let executable = queue.call("ending a graph", || {
            let (mut graph, mut executable) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: the stream is live, and the pointers are writable.
            unsafe { sys::cuStreamEndCapture(queue.stream(), &mut graph) }.ok()?;
            // SAFETY: the graph is live until it is destroyed, by nobody else.
            let made = unsafe {
                let made = sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0);
                sys::cuGraphDestroy(graph).ok()?;
                made
            };
            made.ok().map(|()| executable)
        })?;
        Ok(CudaGraph {
            executable,
            queue: Arc::clone(queue),
        })
    }

    /// # Safety
    /// As [`Cuda::replay`].
    unsafe fn launch_graph(&mut self, graph: &CudaGraph) -> Result<(), Error> {
        let queue = self.queue();
        if !Arc::ptr_eq(queue, &graph.queue) {
            let wrong = "another device has captured it";
            let allowed = "it must be launched by the one that has";
            return Err(Error::argument("graph", wrong, allowed));
        }
        let launch = || -> Result<(), DriverError> {
            // SAFETY: both handles are live, and the caller vouches for what the work accesses.
            unsafe { sys::cuGraphLaunch(graph.executable, queue.stream()) }.ok()
        };
        queue.call("launching a graph", launch)
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        if let Ok(_entered) = self.queue.enter() {
            // SAFETY: made by `end_capture`; the driver keeps what pending work needs of it.
            let _ = unsafe { sys::cuGraphExecDestroy(self.executable) };
        }
    }
}
