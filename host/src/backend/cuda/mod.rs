//! NVIDIA GPUs through the CUDA driver, by way of `cust`.
//!
//! Nothing here needs CUDA where it is built, nor a driver where it starts: [`cuda_loader`] finds the driver
//! at run time. What lives how long:
//!
//! ```text
//! Primary   one a device: its primary context, shared with every framework in the process, and the
//!           kernels compiled in it
//! └ Queue   one a `CudaDevice`: a stream, its own or the caller's
//!   ├ CudaBuffer   allocated and freed in the stream's order
//!   ├ CudaMark     an event
//!   └ CudaGraph    work to queue again
//! ```
//!
//! `cust` provides devices, contexts, modules and streams. Calls that it lacks or would lose the reason of a
//! failure in (it knows result codes up to CUDA 11.4, takes no foreign stream, keeps no compiler log) go to
//! [`cuda_loader::sys`] directly.

mod buffer;
mod device;
mod failure;
mod graph;
mod info;
mod kernel;
mod mark;
mod primary;
mod queue;
mod tensor_map;

/// The backend that runs problems on an NVIDIA GPU.
pub type Cuda = crate::Gpu<CudaDevice>;

impl Cuda {
    /// GPU number `ordinal`, with a stream of its own; [`CudaDevice::with_stream`] takes the caller's.
    ///
    /// # Errors
    /// Those of [`CudaDevice::new`].
    pub fn new(ordinal: u32) -> Result<Self, crate::Error> {
        Ok(Self::on(CudaDevice::new(ordinal)?))
    }
}

pub use buffer::CudaBuffer;
pub use device::CudaDevice;
pub use graph::CudaGraph;
pub use info::CudaInfo;
pub use kernel::KernelLaunch;
pub use mark::CudaMark;
