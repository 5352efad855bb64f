//! A library that is not a driver is refused.

use cuda_loader::LIBRARY_VARIABLE;
use std::env;

#[test]
fn a_library_without_cu_init_is_refused() {
    // SAFETY: no other thread of this process touches the environment: it has one test.
    unsafe { env::set_var(LIBRARY_VARIABLE, "libm.so.6") };
    let error = cuda_loader::load().unwrap_err();
    assert_eq!(
        error.to_string(),
        "no NVIDIA driver: libm.so.6 has no cuInit"
    );
}
