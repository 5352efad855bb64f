//! Facts about a CUDA device.

use super::failure::of_cust;
use crate::backend::DeviceInfo;
use cuda_loader::{DriverError, sys};
use cust::device::Device;
use cust::sys::CUdevice_attribute;
use std::ffi::{CStr, c_int};
use std::fmt;

/// The facts about a GPU that reports and kernel selection use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaInfo {
    /// The facts that every device has.
    pub device: DeviceInfo,
    /// The driver's number of this device.
    pub ordinal: u32,
    /// Size of the L2 cache, in bytes.
    pub l2_bytes: u64,
}

impl CudaInfo {
    pub(super) fn of(
        device: Device,
        ordinal: u32,
        (cuda_major, cuda_minor): (u32, u32),
    ) -> Result<Self, DriverError> {
        use CUdevice_attribute as Attribute;
        let attribute = |which| attribute(device, which);
        Ok(Self {
            device: DeviceInfo {
                name: device.name().map_err(of_cust)?,
                compute_capability: (
                    attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                    attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
                ),
                shared_bytes: attribute(
                    Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                )?,
                multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
                memory_bytes: Some(device.total_memory().map_err(of_cust)? as u64),
                driver: format!("NVIDIA driver for CUDA {cuda_major}.{cuda_minor}"),
                pci_bus_id: pci_bus_id(device),
            },
            ordinal,
            l2_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.into(),
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

/// Bytes of `domain:bus:device.function` and the null behind it, for `cuDeviceGetPCIBusId`: 13 are enough (CUDA Driver
/// API), of a domain of 4 digits.
const PCI_BUS_ID_BYTES: usize = 32;

/// Where a device is plugged in, if the driver tells.
fn pci_bus_id(device: Device) -> Option<String> {
    let mut text = [0u8; PCI_BUS_ID_BYTES];
    let (start, bytes) = (text.as_mut_ptr().cast(), text.len() as c_int);
    // SAFETY: `text` holds that many writable bytes; `device` came from the driver.
    unsafe { sys::cuDeviceGetPCIBusId(start, bytes, device.as_raw()) }
        .ok()
        .ok()?;
    let text = CStr::from_bytes_until_nul(&text).ok()?;
    Some(text.to_str().ok()?.to_owned())
}

impl fmt::Display for CudaInfo {
    /// `NVIDIA H200 (device 0, sm_90, 132 SMs, 50 MiB L2, 139.8 GiB, NVIDIA driver for CUDA 13.0)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.device.compute_capability;
        write!(
            f,
            "{} (device {}, sm_{major}{minor}, {} SMs, {} MiB L2, {:.1} GiB, {})",
            self.device.name,
            self.ordinal,
            self.device.multiprocessors,
            self.l2_bytes >> 20,
            self.device.memory_bytes.unwrap_or(0) as f64 / f64::from(1 << 30),
            self.device.driver,
        )
    }
}
