//! A device's primary context and the kernels compiled in it.

use super::CudaInfo;
use super::failure::{failure, no_device, of_cust};
use super::info::attribute;
use super::kernel::Kernel;
use crate::Error;
use cuda_loader::{DriverError, sys};
use cust::context::Context;
use cust::device::Device;
use cust::sys::CUdevice_attribute;
use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A retained primary context: the one that the CUDA runtime, PyTorch and other frameworks use too.
///
/// There is one a device while anything in the process uses it, so a kernel is compiled once.
pub(super) struct Primary {
    kernels: Mutex<HashMap<Box<str>, Arc<Kernel>>>,
    pub(super) info: CudaInfo,
    /// Whether memory can be allocated in stream order.
    pub(super) has_memory_pools: bool,
    /// Whether a launch may be let begin before the one before it has ended, captured or not.
    pub(super) may_begin_early: bool,
    context: Context,
}

/// The first CUDA version whose driver captures programmatic dependent launches into graphs (CUDA C++ Programming Guide,
/// "Programmatic Dependent Launch and Synchronization", "Use in CUDA Graphs").
const EARLY_LAUNCHES_CAPTURED: (u32, u32) = (12, 3);

/// The primary contexts in use, by device.
static IN_USE: Mutex<BTreeMap<u32, Weak<Primary>>> = Mutex::new(BTreeMap::new());

impl Primary {
    /// Loads the driver if need be and retains the primary context of device `ordinal`.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if there is no driver or no such device; [`Error::Device`] if it cannot be used.
    pub(super) fn retain(ordinal: u32) -> Result<Arc<Self>, Error> {
        let mut in_use = lock(&IN_USE);
        if let Some(primary) = in_use.get(&ordinal).and_then(Weak::upgrade) {
            return Ok(primary);
        }
        let primary = Arc::new(Self::new(ordinal)?);
        in_use.insert(ordinal, Arc::downgrade(&primary));
        Ok(primary)
    }

    fn new(ordinal: u32) -> Result<Self, Error> {
        let count = device_count()?;
        if ordinal >= count {
            return Err(no_device(format!(
                "no device {ordinal}, the driver has {count}"
            )));
        }
        let failed =
            |operation: &str, error| failure(&format!("device {ordinal}"), operation, error);
        let device = Device::get_device(ordinal)
            .map_err(|error| failed("opening the device", of_cust(error)))?;
        let cuda_version = cuda_loader::load()
            .map_err(|error| no_device(error.to_string()))?
            .cuda_version()
            .map_err(|error| failed("asking for the driver's version", error))?;
        let info = CudaInfo::of(device, ordinal, cuda_version)
            .map_err(|error| failed("asking what it is", error))?;
        let pools = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
        // `Context::new` makes the context current; the caller's thread gets its own back here.
        let before = current().map_err(|error| failed("asking for the current context", error))?;
        let context = Context::new(device)
            .map_err(|error| failed("retaining the primary context", of_cust(error)))?;
        // SAFETY: `before` was current just now; null makes none current.
        unsafe { cust::sys::cuCtxSetCurrent(before) };
        Ok(Self {
            kernels: Mutex::default(),
            info,
            has_memory_pools: attribute(device, pools) == Ok(1),
            may_begin_early: cuda_version >= EARLY_LAUNCHES_CAPTURED,
            context,
        })
    }

    /// Makes the context current to this thread until the guard is dropped.
    ///
    /// # Errors
    /// [`Error::Device`], once the driver has shut down or a kernel has broken the context.
    pub(super) fn enter(&self) -> Result<Entered<'_>, Error> {
        self.push()
            .map_err(|error| failure(&self.info.device.name, "entering the context", error))
    }

    fn push(&self) -> Result<Entered<'_>, DriverError> {
        let context = self.context.as_raw();
        let pushed = current()? != context;
        if pushed {
            // SAFETY: the context is retained as long as `self` lives, which the guard borrows.
            unsafe { sys::cuCtxPushCurrent_v2(context) }.ok()?;
        }
        Ok(Entered {
            pushed,
            primary: PhantomData,
        })
    }

    /// The kernel `name` of the module `ptx`, compiled on first use.
    ///
    /// # Errors
    /// [`Error::Device`] with what the driver's compiler said.
    pub(super) fn kernel(&self, name: &str, ptx: &str) -> Result<Arc<Kernel>, Error> {
        // Held while a kernel compiles, so that no other thread compiles it too.
        let mut kernels = lock(&self.kernels);
        if let Some(kernel) = kernels.get(name) {
            return Ok(Arc::clone(kernel));
        }
        let _entered = self.enter()?;
        let kernel = Arc::new(Kernel::load(&self.info.device.name, name, ptx)?);
        kernels.insert(name.into(), Arc::clone(&kernel));
        Ok(kernel)
    }
}

impl Drop for Primary {
    fn drop(&mut self) {
        // Modules are unloaded from the current context. Where the driver refuses to make it current, as
        // it does while the process ends, they are gone already.
        if let Ok(_entered) = self.enter() {
            lock(&self.kernels).clear();
        }
    }
}

/// The primary context is current to this thread.
pub(super) struct Entered<'a> {
    pushed: bool,
    /// Belongs to one thread, hence neither `Send` nor `Sync`.
    primary: PhantomData<(&'a Primary, *const ())>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = ptr::null_mut();
            // SAFETY: `popped` is writable. This fails only where the driver has shut down.
            let _ = unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
        }
    }
}

/// The number of devices the driver has.
///
/// # Errors
/// [`Error::NoDevice`] if there is no driver or it does not start.
pub(super) fn device_count() -> Result<u32, Error> {
    cuda_loader::load().map_err(|error| no_device(error.to_string()))?;
    // `cust::init` would lose codes such as 803, the driver and its library being of different versions.
    // SAFETY: any time is right for this call.
    let started = unsafe { sys::cuInit(0) }.ok();
    started.map_err(|error| no_device(format!("the driver does not start: {error}")))?;
    Device::num_devices().map_err(|error| no_device(of_cust(error).to_string()))
}

/// The context that is current to this thread, or null.
fn current() -> Result<sys::CUcontext, DriverError> {
    let mut context = ptr::null_mut();
    // SAFETY: `context` is writable.
    unsafe { sys::cuCtxGetCurrent(&mut context) }.ok()?;
    Ok(context)
}

/// Locks a mutex whose data a panic cannot leave half-made.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
