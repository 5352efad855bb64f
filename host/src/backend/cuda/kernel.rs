//! Kernels: compiled from PTX by the driver, and launched.

use super::failure::of_cust;
use crate::Error;
use cuda_loader::sys::{CUlaunchAttribute, CUlaunchConfig};
use cuda_loader::{CuResult, DriverError, sys};
use cust::module::Module;
use cust::sys::{CUfunction_attribute, CUjit_option};
use std::ffi::{CStr, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

/// Everything a launch needs but the stream.
#[derive(Clone, Copy, Debug)]
pub struct KernelLaunch<'a> {
    /// The kernel's entry in `ptx`. Names the kernel within a context: the PTX that came with its first
    /// launch is the one that stays.
    pub name: &'a str,
    /// The text of a module with that entry.
    pub ptx: &'a str,
    /// Number of blocks, whole clusters of them where the kernel has `.reqnctapercluster`; 0 launches nothing.
    pub grid: u32,
    /// Threads per block.
    pub block: u32,
    /// Dynamic shared memory per block, in bytes.
    pub shared_bytes: u32,
    /// The bytes of each parameter, in order.
    pub params: &'a [&'a [u8]],
}

/// How much of a kernel is launched, as [`KernelLaunch`] says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    pub grid: u32,
    pub block: u32,
    pub shared_bytes: u32,
    /// Whether it may begin before the launch before it has ended.
    pub begins_early: bool,
}

/// Most parameters a kernel here has; a launch puts their pointers on the stack.
const MAX_PARAMS: usize = 16;

/// `CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH` of cuda.h, which is younger than `cust_raw`.
const REQUIRED_CLUSTER_WIDTH: c_uint = 11;

/// Capacity of the driver compiler's log, in bytes.
const JIT_LOG_BYTES: usize = 8192;

/// A compiled kernel. Its last owner drops it with the context current.
pub(super) struct Kernel {
    function: sys::CUfunction,
    /// Blocks per cluster, along x.
    cluster: u32,
    /// The most dynamic shared memory a launch may ask for so far, in bytes.
    shared_limit: AtomicU32,
    /// Keeps `function` alive.
    _module: Module,
}

// SAFETY: the driver takes a function's handle from any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above; the driver locks for itself, and `shared_limit` is atomic.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// Compiles `ptx` in the current context.
    pub(super) fn load(device: &str, name: &str, ptx: &str) -> Result<Self, Error> {
        let failed = |detail: String| Error::Device {
            device: device.to_owned(),
            operation: format!("compiling kernel {name}"),
            detail,
        };
        if ptx.contains('\0') {
            return Err(failed("its PTX contains a NUL byte".to_owned()));
        }
        let module = match Module::from_ptx(ptx, &[]) {
            Ok(module) => module,
            Err(error) => return Err(failed(compiler_log(ptx, of_cust(error)))),
        };
        let function = module.get_function(name);
        let function = function
            .map_err(|error| failed(of_cust(error).to_string()))?
            .to_raw();
        let shared_limit = attribute(
            function,
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as u32,
        );
        let shared_limit = shared_limit.map_err(|error| failed(error.to_string()))?;
        // A driver that does not know the attribute runs no clusters; a kernel without them has 0.
        let cluster = attribute(function, REQUIRED_CLUSTER_WIDTH)
            .unwrap_or(1)
            .max(1);
        Ok(Self {
            function,
            cluster,
            shared_limit: AtomicU32::new(shared_limit),
            _module: module,
        })
    }

    /// Queues a launch of this kernel of `device`, called `name`, on a stream, and returns without waiting for it. The context is current.
    ///
    /// # Safety
    /// As for [`CudaDevice::launch_kernel`](super::CudaDevice::launch_kernel).
    pub(super) unsafe fn launch(
        &self,
        device: &str,
        stream: sys::CUstream,
        name: &str,
        geometry: Geometry,
        params: &[&[u8]],
    ) -> Result<(), Error> {
        let refused = |detail: String| Error::Device {
            device: device.to_owned(),
            operation: format!("launching kernel {name}"),
            detail,
        };
        let Geometry {
            grid, shared_bytes, ..
        } = geometry;
        let cluster = self.cluster;
        if !grid.is_multiple_of(cluster) {
            return Err(refused(format!(
                "{grid} blocks are no whole number of clusters of {cluster}"
            )));
        }
        if params.len() > MAX_PARAMS {
            let count = params.len();
            return Err(refused(format!(
                "{count} parameters; at most {MAX_PARAMS} are supported"
            )));
        }
        if grid == 0 {
            return Ok(());
        }
        let failed = |error: DriverError| refused(error.to_string());
        self.allow_shared(shared_bytes).map_err(failed)?;
        let mut pointers = [ptr::null_mut::<c_void>(); MAX_PARAMS];
        for (pointer, param) in pointers.iter_mut().zip(params) {
            // The driver only reads, despite the type.
            *pointer = param.as_ptr().cast_mut().cast();
        }
        // SAFETY: the handles are alive. The caller vouches that the blobs are the kernel's parameters,
        // which the driver copies before it returns, and that the kernel may run.
        let result = unsafe { start(self.function, stream, geometry, &mut pointers) };
        result.ok().map_err(failed)
    }

    /// Raises the kernel's limit of dynamic shared memory if it is below `bytes`: beyond 48 KiB a kernel
    /// has to be opted in.
    fn allow_shared(&self, bytes: u32) -> Result<(), DriverError> {
        // Relaxed: a thread that sees too low a limit sets it again.
        if bytes <= self.shared_limit.load(Ordering::Relaxed) {
            return Ok(());
        }
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // More than any GPU has, for the driver to refuse, where it does not fit an i32.
        let value = i32::try_from(bytes).unwrap_or(i32::MAX);
        // SAFETY: the function is alive.
        unsafe { sys::cuFuncSetAttribute(self.function, attribute as u32, value) }.ok()?;
        self.shared_limit.fetch_max(bytes, Ordering::Relaxed);
        Ok(())
    }
}

/// Queues a launch.
///
/// # Safety
/// As for `cuLaunchKernel`.
unsafe fn start(
    function: sys::CUfunction,
    stream: sys::CUstream,
    geometry: Geometry,
    params: &mut [*mut c_void; MAX_PARAMS],
) -> CuResult {
    let Geometry {
        grid,
        block,
        shared_bytes,
        begins_early,
    } = geometry;
    let (params, extra) = (params.as_mut_ptr(), ptr::null_mut());
    if !begins_early {
        // SAFETY: forwarded to the caller.
        return unsafe {
            sys::cuLaunchKernel(
                function,
                grid,
                1,
                1,
                block,
                1,
                1,
                shared_bytes,
                stream,
                params,
                extra,
            )
        };
    }
    let mut attributes = [CUlaunchAttribute::programmatic_stream_serialization()];
    let config = CUlaunchConfig {
        grid_x: grid,
        grid_y: 1,
        grid_z: 1,
        block_x: block,
        block_y: 1,
        block_z: 1,
        shared_bytes,
        stream,
        attributes: attributes.as_mut_ptr(),
        attribute_count: attributes.len() as u32,
    };
    // SAFETY: forwarded to the caller; the config's attributes are as many as it says.
    unsafe { sys::cuLaunchKernelEx(&config, function, params, extra) }
}

/// One attribute of a kernel of the current context.
fn attribute(function: sys::CUfunction, which: c_uint) -> Result<u32, DriverError> {
    let mut value = 0;
    // SAFETY: `value` is writable, and the caller's function is alive.
    unsafe { sys::cuFuncGetAttribute(&mut value, which, function) }.ok()?;
    // The attributes asked for here are never negative.
    Ok(value as u32)
}

/// Why `ptx` did not compile: compiles it again with room for the compiler's log, which `cust` has no
/// option for.
fn compiler_log(ptx: &str, error: DriverError) -> String {
    let mut log = vec![0_u8; JIT_LOG_BYTES];
    // A size that fits in a pointer is passed in the pointer's place.
    let mut options = [
        CUjit_option::CU_JIT_ERROR_LOG_BUFFER as c_uint,
        CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES as c_uint,
    ];
    let mut values = [log.as_mut_ptr().cast::<c_void>(), log.len() as *mut c_void];
    let image = [ptx.as_bytes(), &[0]].concat();
    let mut module = ptr::null_mut();
    // SAFETY: the image ends in a NUL; both arrays hold the two options; the log outlives the call.
    let result = unsafe {
        sys::cuModuleLoadDataEx(
            &mut module,
            image.as_ptr().cast(),
            options.len() as c_uint,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    let error = match result.ok() {
        // The code that `cust` did not know, such as 222, a PTX version that is too new for the driver.
        Err(exact) => exact,
        Ok(()) => {
            // SAFETY: just loaded, and nothing of it is used.
            let _ = unsafe { sys::cuModuleUnload(module) };
            error
        }
    };
    let text = CStr::from_bytes_until_nul(&log).unwrap_or_default();
    let lines = text.to_string_lossy();
    let lines: Vec<_> = lines
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    match lines.as_slice() {
        [] => error.to_string(),
        lines => format!("{error}: {}", lines.join(" | ")),
    }
}
