//! With a driver: calls of `cust` and of `cuda_loader::sys` reach the library.

use cuda_loader::{CuResult, LIBRARY_VARIABLE, sys};
use cust::module::Module;
use std::env;
use std::ffi::{CStr, c_char};
use std::path::Path;
use std::ptr;

/// The calls that the fake driver has logged.
fn take_log(fake: &Path) -> String {
    // SAFETY: the library is the fake, already open; its function has this signature.
    unsafe {
        let library = libloading::Library::new(fake).unwrap();
        let take = library
            .get::<unsafe extern "C" fn() -> *const c_char>(b"fake_take_log")
            .unwrap();
        CStr::from_ptr(take()).to_string_lossy().into_owned()
    }
}

#[test]
fn calls_reach_the_library() {
    let fake = env::current_exe()
        .unwrap()
        .with_file_name("libfake_libcuda.so");
    // SAFETY: no other thread of this process touches the environment: it has one test.
    unsafe { env::set_var(LIBRARY_VARIABLE, &fake) };

    // Before anyone called `load`, `cuInit` does.
    cust::init(cust::CudaFlags::empty()).unwrap();
    let driver = cuda_loader::load().unwrap();
    assert_eq!(driver.library(), fake);
    assert_eq!(driver.cuda_version().unwrap(), (13, 1));

    // Through `cust`, with names that carry an ABI version among them.
    assert_eq!(cust::device::Device::num_devices().unwrap(), 1);
    let device = cust::device::Device::get_device(0).unwrap();
    assert_eq!(device.name().unwrap(), "Fake H1");
    assert_eq!(device.total_memory().unwrap(), 1 << 30);
    assert_eq!(
        cust::device::Device::get_device(7).unwrap_err(),
        cust::error::CudaError::InvalidDevice
    );

    // Before a context is current, the driver's own code comes back, under the driver's name for it.
    let mut free_bytes = 0;
    let mut total_bytes = 0;
    // SAFETY: both are writable.
    let result = unsafe { sys::cuMemGetInfo_v2(&mut free_bytes, &mut total_bytes) };
    let error = result.ok().unwrap_err();
    assert_eq!(error.to_string(), "CUDA_ERROR_INVALID_CONTEXT (201)");

    // Eleven arguments, five of them on the stack, pass through the trampoline as they are.
    let _context = cust::context::Context::new(device).unwrap();
    let module = Module::from_ptx(".entry nothing()", &[]).unwrap();
    let function = module.get_function("nothing").unwrap();
    let stream = 0xABC as sys::CUstream;
    let null = ptr::null_mut();
    // SAFETY: the fake only logs kernels it does not know.
    let result =
        unsafe { sys::cuLaunchKernel(function.to_raw(), 1, 2, 3, 4, 5, 6, 7, stream, null, null) };
    assert_eq!(result, CuResult::SUCCESS);
    let launch = "cuLaunchKernel nothing grid 1x2x3 block 4x5x6 shared 7 stream 0xabc";
    assert!(take_log(&fake).contains(launch));

    // A function the library lacks says so, and so do the driver's answers.
    assert!(driver.provides("cuMemAlloc_v2"));
    assert!(!driver.provides("cuOccupancyMaxActiveClusters"));
    // SAFETY: the fake has no such function; nothing is dereferenced.
    let result =
        unsafe { sys::cuOccupancyMaxActiveClusters(ptr::null_mut(), ptr::null_mut(), ptr::null()) };
    assert_eq!(result, CuResult::NOT_FOUND);
    let oom = CuResult::OUT_OF_MEMORY.ok().unwrap_err();
    assert_eq!(
        oom.to_string(),
        "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"
    );
    // A code that the driver has no name for.
    assert_eq!(
        CuResult(4711).ok().unwrap_err().to_string(),
        "CUDA error (4711)"
    );
}
