use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use ferroflash::{AppendOperands, AppendProblem, Backend, Capabilities, Cpu, Cuda, CudaDevice};
use ferroflash::{Error, Operands, Plan};

/// What runs a call: the CPU, or a GPU's stream.
pub enum Place {
    /// The CPU.
    Cpu,
    /// A stream's backend, which one launch at a time uses.
    Cuda(Arc<Mutex<Cuda>>),
}

type ByStream = HashMap<(u32, u64), Arc<Mutex<Cuda>>>;

/// Backends by GPU and stream. They are kept: frameworks' streams live as long as the process, and graphs keep addresses of a
/// backend's workspace.
static ON_STREAMS: LazyLock<Mutex<ByStream>> = LazyLock::new(Mutex::default);

impl Place {
    /// The CPU if `device` is negative, else `stream` of that GPU.
    ///
    /// # Errors
    /// Those of [`CudaDevice::with_stream`].
    ///
    /// # Safety
    /// `stream` is a CUDA stream of that device's primary context, or 0; it is not destroyed before the process ends.
    pub unsafe fn new(device: i32, stream: u64) -> Result<Self, Error> {
        let Ok(ordinal) = u32::try_from(device) else {
            return Ok(Self::Cpu);
        };
        let mut on_streams = lock(&ON_STREAMS);
        if let Some(known) = on_streams.get(&(ordinal, stream)) {
            return Ok(Self::Cuda(Arc::clone(known)));
        }
        let handle: *mut c_void = ptr::with_exposed_provenance_mut(stream as usize);
        // SAFETY: the caller's promise is this function's.
        let cuda = Cuda::on(unsafe { CudaDevice::with_stream(ordinal, handle) }?);
        let new = Arc::new(Mutex::new(cuda));
        on_streams.insert((ordinal, stream), Arc::clone(&new));
        Ok(Self::Cuda(new))
    }

    /// From which plans choose kernels.
    pub fn capabilities(&self) -> Capabilities {
        match self {
            Self::Cpu => Capabilities::Cpu,
            Self::Cuda(on_stream) => lock(on_stream).capabilities(),
        }
    }

    /// Whether its stream's work is being captured into a graph.
    ///
    /// # Errors
    /// Those of [`CudaDevice::is_capturing`].
    pub fn is_capturing(&self) -> Result<bool, Error> {
        match self {
            Self::Cpu => Ok(false),
            Self::Cuda(on_stream) => lock(on_stream).memory().is_capturing(),
        }
    }

    /// Queues `plan`, alone on its stream's backend.
    ///
    /// # Errors
    /// Those of [`Backend::launch`].
    ///
    /// # Safety
    /// As for [`Backend::launch`].
    pub unsafe fn launch(&self, plan: &Plan, operands: &Operands) -> Result<(), Error> {
        // SAFETY: the caller's promise is this function's.
        match self {
            Self::Cpu => unsafe { Cpu::new().launch(plan, operands) },
            Self::Cuda(on_stream) => unsafe { lock(on_stream).launch(plan, operands) },
        }
    }

    /// Queues `problem`, alone on its stream's backend.
    ///
    /// # Errors
    /// Those of [`Backend::append_raw`].
    ///
    /// # Safety
    /// As for [`Backend::append_raw`].
    pub unsafe fn append(
        &self,
        problem: &AppendProblem,
        operands: &AppendOperands,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise is this function's.
        match self {
            Self::Cpu => unsafe { Cpu::new().append_raw(problem, operands) },
            Self::Cuda(on_stream) => unsafe { lock(on_stream).append_raw(problem, operands) },
        }
    }
}

/// Locks a mutex whose data a panic cannot leave half-made.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
