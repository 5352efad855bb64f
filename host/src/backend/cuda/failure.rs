//! Errors of the driver as errors of this crate.

use crate::Error;
use cuda_loader::{CuResult, DriverError};
use cust::error::CudaError;

/// An [`Error::Device`] for a driver call of `operation`.
pub(super) fn failure(device: &str, operation: impl Into<String>, error: DriverError) -> Error {
    Error::Device {
        device: device.to_owned(),
        operation: operation.into(),
        detail: error.to_string(),
    }
}

/// The driver's result behind an error of `cust`.
pub(super) fn of_cust(error: CudaError) -> DriverError {
    DriverError {
        code: CuResult(error as u32),
    }
}

/// An [`Error::NoDevice`] of this backend.
pub(super) fn no_device(wrong: impl Into<String>) -> Error {
    Error::NoDevice {
        backend: "cuda",
        wrong: wrong.into(),
        allowed: "an NVIDIA GPU and its driver are needed, or another backend".into(),
    }
}
