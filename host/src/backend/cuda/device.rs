//! The device as this crate uses it.

use super::failure::failure;
use super::kernel::{Geometry, Kernel};
use super::primary::{Primary, device_count};
use super::queue::Queue;
use super::{CudaBuffer, CudaInfo, CudaMark, KernelLaunch, tensor_map};
use crate::backend::{Device, DeviceInfo, Launch};
use crate::memory::{FOREIGN_BUFFER, check_owned};
use crate::sealed::Sealed;
use crate::{Error, Memory};
use cuda_loader::{CuResult, sys};
use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use foldhash::fast::FixedState;
use kernels_gpu::dtype::DType;
use kernels_gpu::wgmma::tensor_map::{TensorMap, TensorMapSpec};

/// One GPU and one stream of it.
///
/// Works in the device's primary context, so that addresses and streams can be shared with whatever else
/// in the process uses the GPU, and leaves the calling thread's current context as it was. Several devices
/// of this type may use one GPU; each has its stream, and all share the compiled kernels.
pub struct CudaDevice {
    /// Kernels used before, so that a launch takes no lock.
    kernels: HashMap<Box<str>, Arc<Kernel>>,
    /// The kernels among them that are instances, by address and length of their names, which are faster to look up
    /// than the names.
    instances: HashMap<(usize, usize), Arc<Kernel>, FixedState>,
    queue: Arc<Queue>,
}

impl CudaDevice {
    /// The number of GPUs the driver has.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if there is no driver or it does not start.
    pub fn count() -> Result<u32, Error> {
        device_count()
    }

    /// GPU number `ordinal`, with a stream of its own.
    ///
    /// The stream waits for work on the legacy default stream, and that for it.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if there is no driver or no such device; [`Error::Device`] if it cannot be used.
    pub fn new(ordinal: u32) -> Result<Self, Error> {
        Ok(Self::on(Queue::new(Primary::retain(ordinal)?)?))
    }

    /// GPU number `ordinal`, with the caller's stream.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    ///
    /// # Safety
    /// `stream` is a `CUstream` of the driver, or the `cudaStream_t` that the runtime calls the same thing by: null (the
    /// legacy default stream) or a live stream of that device's primary context.
    /// It stays alive until this value and every buffer and mark made from it are dropped.
    ///
    /// # Threads
    /// A backend may move to another thread, and several backends, in one thread or in many, may be made for one stream:
    /// the stream orders their work, and each has a workspace and copies of its own. One handle, `CU_STREAM_PER_THREAD`
    /// (0x2), names a different stream in each thread. A backend made with it must stay in the thread that made it, since
    /// nothing orders its copies and workspace among streams: keep one a thread (`thread_local!`).
    pub unsafe fn with_stream(ordinal: u32, stream: *mut c_void) -> Result<Self, Error> {
        let primary = Primary::retain(ordinal)?;
        let stream: sys::CUstream = stream.cast();
        // SAFETY: the caller vouches for the stream.
        Ok(Self::on(unsafe { Queue::borrow(primary, stream) }))
    }

    fn on(queue: Queue) -> Self {
        Self {
            kernels: HashMap::new(),
            instances: HashMap::default(),
            queue: Arc::new(queue),
        }
    }

    /// Facts about this device, including those that [`Device::info`] lacks.
    pub fn cuda_info(&self) -> &CudaInfo {
        &self.queue.primary.info
    }

    /// The stream that work is queued on, a `CUstream`, for other libraries; valid as long as this value.
    pub fn stream(&self) -> *mut c_void {
        self.raw_stream().cast()
    }

    pub(super) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    fn raw_stream(&self) -> sys::CUstream {
        self.queue.stream()
    }

    /// Queues a kernel and returns without waiting for it.
    ///
    /// The first launch of a kernel on a GPU compiles it, even one of no blocks; later ones allocate nothing.
    ///
    /// # Errors
    /// [`Error::Device`] if the kernel does not compile or the driver refuses the launch. A fault while
    /// the kernel runs is reported by a later call.
    ///
    /// # Safety
    /// `params` has one entry a parameter of the kernel, each of that parameter's size. Until the queued
    /// work is done, whatever the kernel reads or writes through them must be live memory of this device
    /// that nobody writes, or accesses, meanwhile. `grid`, `block` and `shared_bytes` are what
    /// the kernel was written for. All devices of a GPU share its kernels by name: whoever launches
    /// `name`, this library with one of its own included, must mean the kernel of this `ptx`.
    pub unsafe fn launch_kernel(&mut self, launch: &KernelLaunch<'_>) -> Result<(), Error> {
        let kernel = self.kernel(launch.name, launch.ptx)?;
        let KernelLaunch {
            grid,
            block,
            shared_bytes,
            ..
        } = *launch;
        let geometry = Geometry {
            grid,
            block,
            shared_bytes,
            begins_early: false,
        };
        // SAFETY: the caller vouches for the parameters and the geometry.
        unsafe {
            self.queue
                .launch(&kernel, launch.name, geometry, launch.params)
        }
    }

    fn kernel(&mut self, name: &str, ptx: &str) -> Result<Arc<Kernel>, Error> {
        if let Some(kernel) = self.kernels.get(name) {
            return Ok(Arc::clone(kernel));
        }
        let kernel = self.queue.primary.kernel(name, ptx)?;
        self.kernels.insert(name.into(), Arc::clone(&kernel));
        Ok(kernel)
    }

    /// Milliseconds of device time that the work queued by `work` takes. Waits for it.
    ///
    /// # Errors
    /// Those of `work`, and [`Error::Device`].
    pub fn time<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<(T, f64), Error> {
        let start = self.mark()?;
        let result = work(self)?;
        let stop = self.mark()?;
        let milliseconds = self.elapsed_ms(&start, &stop)?;
        Ok((result, milliseconds))
    }

    /// The driver's report of free memory, for a message; the context is current.
    fn free_memory(&self) -> String {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are writable.
        match unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) }.ok() {
            Ok(()) => format!("{free} of {total} bytes are free"),
            Err(error) => format!("how much is free is unknown ({error})"),
        }
    }
}

impl Sealed for CudaDevice {}

// SAFETY: the driver's allocations are disjoint and writable by kernels, and a drop frees behind what the
// buffer's stream has queued. Addresses are only handed out to launches on that same stream.
unsafe impl Memory for CudaDevice {
    type Buffer = CudaBuffer;
    type Mark = CudaMark;

    fn is_queued(&self) -> bool {
        true
    }

    fn alloc(&mut self, bytes: usize) -> Result<CudaBuffer, Error> {
        let queue = &self.queue;
        let _entered = queue.enter()?;
        let out_of_memory = || Error::OutOfMemory {
            device: queue.device().to_owned(),
            requested_bytes: bytes as u64,
            free: self.free_memory(),
        };
        // Beyond all memory, a driver may speak of an invalid value instead.
        let memory_bytes = self.info().memory_bytes;
        if memory_bytes.is_some_and(|all| bytes as u64 > all) {
            return Err(out_of_memory());
        }
        CudaBuffer::new(queue, bytes).map_err(|error| match error.code {
            CuResult::OUT_OF_MEMORY => out_of_memory(),
            _ => failure(queue.device(), format!("allocating {bytes} bytes"), error),
        })
    }

    fn size_bytes(&self, buffer: &CudaBuffer) -> usize {
        buffer.size_bytes()
    }

    /// `false` if another device allocated it, even one on the same GPU: its memory is freed in the order of another
    /// stream.
    fn owns(&self, buffer: &CudaBuffer) -> bool {
        buffer.is_of(&self.queue)
    }

    fn address(&self, buffer: &CudaBuffer) -> u64 {
        assert!(self.owns(buffer), "{FOREIGN_BUFFER}");
        buffer.address()
    }

    fn write(&mut self, buffer: &mut CudaBuffer, bytes: &[u8]) -> Result<(), Error> {
        assert!(
            bytes.len() <= buffer.size_bytes(),
            "write beyond the buffer"
        );
        check_owned(self, buffer)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let (to, stream) = (self.address(buffer), self.raw_stream());
        self.queue.call("copying to the device", || {
            let from = bytes.as_ptr().cast();
            // SAFETY: both ranges hold `bytes.len()` bytes. `bytes` stays until the copy is done: pinned
            // memory would be read after the call returned.
            unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, bytes.len(), stream) }.ok()?;
            self.queue.synchronize()
        })
    }

    fn read_at(
        &mut self,
        buffer: &CudaBuffer,
        offset: usize,
        bytes: &mut [u8],
    ) -> Result<(), Error> {
        let size_bytes = buffer.size_bytes();
        let is_inside = offset <= size_bytes && bytes.len() <= size_bytes - offset;
        assert!(is_inside, "read beyond the buffer");
        check_owned(self, buffer)?;
        if bytes.is_empty() {
            return self.synchronize();
        }
        let (from, stream) = (self.address(buffer) + offset as u64, self.raw_stream());
        self.queue.call("copying from the device", || {
            let to = bytes.as_mut_ptr().cast();
            // SAFETY: both ranges hold `bytes.len()` bytes, and `bytes` stays until the copy is done.
            unsafe { sys::cuMemcpyDtoHAsync_v2(to, from, bytes.len(), stream) }.ok()?;
            self.queue.synchronize()
        })
    }

    fn synchronize(&mut self) -> Result<(), Error> {
        self.queue
            .call("waiting for the device", || self.queue.synchronize())
    }

    fn mark(&mut self) -> Result<CudaMark, Error> {
        self.queue
            .call("recording an event", || CudaMark::record(&self.queue))
    }

    fn elapsed_ms(&mut self, start: &CudaMark, stop: &CudaMark) -> Result<f64, Error> {
        self.queue
            .call("timing", || stop.since(start).map(f64::from))
    }
}

impl Device for CudaDevice {
    const BACKEND_NAME: &'static str = "cuda";

    fn info(&self) -> &DeviceInfo {
        &self.cuda_info().device
    }

    unsafe fn launch(&mut self, launch: &Launch<'_>) -> Result<(), Error> {
        let instance = launch.kernel;
        let geometry = Geometry {
            grid: launch.grid,
            block: instance.threads,
            shared_bytes: instance.shared_bytes,
            begins_early: launch.begins_early && self.queue.primary.may_begin_early,
        };
        let place = (instance.name.as_ptr().addr(), instance.name.len());
        if !self.instances.contains_key(&place) {
            let kernel = self.kernel(instance.name, (launch.ptx)(instance))?;
            self.instances.insert(place, kernel);
        }
        let kernel = &self.instances[&place];
        // SAFETY: the caller vouches for the parameters; the geometry is the kernel's own.
        unsafe {
            self.queue
                .launch(kernel, instance.name, geometry, launch.params)
        }
    }

    fn encode_tensor_map(&self, dtype: DType, spec: &TensorMapSpec) -> Result<TensorMap, Error> {
        // The driver encodes for the device of the current context.
        let _entered = self.queue.enter()?;
        tensor_map::encode(dtype, spec)
            .map_err(|error| failure(&self.info().name, "encoding a tensor map", error))
    }
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaDevice")
            .field("info", self.cuda_info())
            .field("stream", &self.stream())
            .finish_non_exhaustive()
    }
}
