//! Without a driver: everything links, starts, and says what is missing.

use cuda_loader::{CuResult, LIBRARY_VARIABLE, sys};
use std::env;

#[test]
fn a_missing_driver_is_an_error_that_names_it() {
    // SAFETY: no other thread of this process touches the environment: it has one test.
    unsafe { env::set_var(LIBRARY_VARIABLE, "/nowhere/libcuda.so.1") };

    // `cust` gets an error from every function, and can print it.
    let error = cust::init(cust::CudaFlags::empty()).unwrap_err();
    assert_eq!(error, cust::error::CudaError::NoDevice);
    assert!(error.to_string().contains("no NVIDIA driver"));
    let error = cust::device::Device::num_devices().unwrap_err();
    assert_eq!(error, cust::error::CudaError::NotInitialized);

    let error = cuda_loader::load().unwrap_err().to_string();
    assert!(error.starts_with("no NVIDIA driver: "), "{error}");
    assert!(error.contains("/nowhere/libcuda.so.1"), "{error}");
    // The answer stays, whatever the variable says by now.
    // SAFETY: as above.
    unsafe { env::remove_var(LIBRARY_VARIABLE) };
    assert_eq!(cuda_loader::load().unwrap_err().to_string(), error);

    let mut count = 0;
    // SAFETY: `count` is writable.
    let result = unsafe { sys::cuDeviceGetAttribute(&mut count, 16, 0) };
    assert_eq!(result, CuResult::NOT_INITIALIZED);
}
