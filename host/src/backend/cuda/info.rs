//! What a device is.

use super::failure::of_cust;
use cuda_loader::{DriverError, sys};
use cust::device::Device;
use cust::sys::CUdevice_attribute;
use std::fmt;

/// The facts about a GPU that reports and kernel selection use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaInfo {
    /// Which of the driver's devices this is.
    pub ordinal: u32,
    /// The device's name, such as `NVIDIA H200`.
    pub name: String,
    /// Major and minor compute capability; (9, 0) is Hopper.
    pub compute_capability: (u32, u32),
    /// Number of streaming multiprocessors.
    pub multiprocessors: u32,
    /// Size of the L2 cache, in bytes.
    pub l2_bytes: u64,
    /// Size of the device's memory, in bytes.
    pub memory_bytes: u64,
    /// Largest shared memory of one block, in bytes, with opt-in.
    pub shared_bytes: u32,
    /// The CUDA version the driver supports, as (major, minor).
    pub cuda_version: (u32, u32),
}

impl CudaInfo {
    pub(super) fn of(
        device: Device,
        ordinal: u32,
        cuda_version: (u32, u32),
    ) -> Result<Self, DriverError> {
        let attribute = |which| attribute(device, which);
        Ok(Self {
            ordinal,
            name: device.name().map_err(of_cust)?,
            compute_capability: (
                attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            multiprocessors: attribute(
                CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            )?,
            l2_bytes: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.into(),
            memory_bytes: device.total_memory().map_err(of_cust)? as u64,
            shared_bytes: attribute(
                CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            )?,
            cuda_version,
        })
    }
}

/// One attribute of a device. Not all of them are among those of `cust::device::DeviceAttribute`.
pub(super) fn attribute(device: Device, which: CUdevice_attribute) -> Result<u32, DriverError> {
    let mut value = 0;
    // SAFETY: `value` is writable; `device` came from the driver.
    unsafe { sys::cuDeviceGetAttribute(&mut value, which as u32, device.as_raw()) }.ok()?;
    // The attributes asked for here are never negative.
    Ok(value as u32)
}

impl fmt::Display for CudaInfo {
    /// `NVIDIA H200 (device 0, sm_90, 132 SMs, 50 MiB L2, 139.8 GiB, driver for CUDA 13.0)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.compute_capability;
        let (cuda_major, cuda_minor) = self.cuda_version;
        write!(
            f,
            "{} (device {}, sm_{major}{minor}, {} SMs, {} MiB L2, {:.1} GiB, driver for CUDA {cuda_major}.{cuda_minor})",
            self.name,
            self.ordinal,
            self.multiprocessors,
            self.l2_bytes >> 20,
            self.memory_bytes as f64 / f64::from(1 << 30),
        )
    }
}
