//! Without a driver, the CUDA backend says so.

use ferroflash::Error;
use ferroflash::backend::cuda::CudaDevice;

#[test]
fn a_missing_driver_is_no_device() {
    // SAFETY: no other thread of this process touches the environment: it has one test.
    unsafe { std::env::set_var(cuda_loader::LIBRARY_VARIABLE, "/nowhere/libcuda.so.1") };
    for error in [CudaDevice::new(0).err(), CudaDevice::count().err()] {
        let error = error.unwrap();
        assert!(matches!(
            error,
            Error::NoDevice {
                backend: "cuda",
                ..
            }
        ));
        let message = error.to_string();
        assert!(
            message.starts_with("cuda: no NVIDIA driver: /nowhere/libcuda.so.1"),
            "{message}"
        );
        assert!(message.ends_with("; an NVIDIA GPU and its driver are needed, or another backend"));
    }
}
