use kernels_gpu::dtype::DType;
use kernels_gpu::instances::{Family, Instance};
use kernels_gpu::wgmma::tensor_map::{TensorMap, TensorMapSpec};

use crate::{Error, Memory};

/// A GPU, or a simulation of one: memory, and a way to launch kernels on it.
///
/// [`Gpu`](super::Gpu) turns any device into a [`Backend`](crate::Backend). Implemented by this crate's devices alone: the
/// trait will gain methods.
pub trait Device: Memory {
    /// [`Backend::name`](crate::Backend::name) of a backend on it.
    const BACKEND_NAME: &'static str;

    /// Families of kernels whose instructions this device has.
    #[doc(hidden)]
    const FAMILIES: &'static [Family] = &Family::ALL;

    /// Name, compute capability and limits of this device.
    fn info(&self) -> &DeviceInfo;

    /// Queues one launch. The device keeps the kernel it loads for the next launch.
    ///
    /// # Errors
    /// [`Error::Device`] if the kernel cannot be loaded or launched, or an earlier launch failed.
    ///
    /// # Safety
    /// `params` must be the kernel's parameters, byte for byte, and every address the kernel computes
    /// from them must lie in live memory of this device until the launch is done, accessed by nobody
    /// else where the kernel writes.
    #[doc(hidden)]
    unsafe fn launch(&mut self, launch: &Launch<'_>) -> Result<(), Error>;

    /// Encodes the descriptor by which TMA reads or writes an operand of element type `dtype`.
    ///
    /// # Errors
    /// [`Error::Device`] if the device has no TMA or refuses the description.
    #[doc(hidden)]
    fn encode_tensor_map(&self, dtype: DType, spec: &TensorMapSpec) -> Result<TensorMap, Error>;

    /// Counts of the launches since the last call, if this device counts. For the project's own teaching and tests.
    #[doc(hidden)]
    fn take_counts(&mut self) -> Option<Counts> {
        None
    }
}

/// Counts summed over launches.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Counts {
    /// Instructions, each counted once a warp.
    pub warp_instructions: u64,
    /// Bytes of global memory that warps asked for, in whole sectors of 32 bytes, before any cache.
    pub global_bytes: u64,
    /// Passes over shared memory beyond the fewest possible.
    pub bank_conflicts: u64,
}

/// One kernel launch. Block size and shared memory stand in the instance. For the project's own kernels alone.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct Launch<'a> {
    /// Entry name, threads of a block and shared memory.
    pub kernel: &'static Instance,
    /// Gives the PTX module that holds the kernel, and no other; asked when the device does not have it yet.
    pub ptx: &'a dyn Fn(&Instance) -> &'static str,
    /// Blocks, along x.
    pub grid: u32,
    /// The image of each kernel parameter.
    pub params: &'a [&'a [u8]],
    /// Whether it may begin before the launch before it has ended (programmatic dependent launch): the kernel then waits for that
    /// by itself.
    pub begins_early: bool,
}

/// Name, compute capability and limits of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The device in words.
    pub name: String,
    /// Major and minor compute capability; (9, 0) is Hopper.
    pub compute_capability: (u32, u32),
    /// Largest shared memory of one block, in bytes, with opt-in.
    pub shared_bytes: u32,
    /// Number of streaming multiprocessors.
    pub multiprocessors: u32,
    /// Memory of the device, in bytes, where that is a fixed size.
    pub memory_bytes: Option<u64>,
    /// Driver and its version, or the simulator.
    pub driver: String,
    /// PCI address of the device, `domain:bus:device.function` in hexadecimal, as in `nvidia-smi` and NVML. `None` if
    /// there is no hardware, or its driver does not tell.
    pub pci_bus_id: Option<String>,
}
