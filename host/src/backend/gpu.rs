use kernels_gpu::instances::Instance;
use kernels_gpu::tile::schedule::TileList;

use super::device::{Device, DeviceInfo, Launch};
use crate::variant::{GpuCapabilities, find_instance, select};
use crate::{Backend, Capabilities, Error, Operands, Problem, Variant, modules};

/// Runs problems with the embedded kernels on a [`Device`].
#[derive(Debug)]
pub struct Gpu<D> {
    device: D,
}

impl<D: Device> Gpu<D> {
    /// A backend on `device`.
    pub fn on(device: D) -> Self {
        Self { device }
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// What the device is.
    pub fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    /// The kernel that will run `problem`.
    fn instance(&self, problem: &Problem) -> Result<&'static Instance, Error> {
        let here = self.gpu_capabilities();
        let Variant::Kernels(family) = select(problem, &Capabilities::Gpu(here))? else {
            unreachable!("only kernels are eligible on a GPU");
        };
        let instance = find_instance(family, problem, &here);
        Ok(instance.expect("an eligible family has a kernel"))
    }

    /// What the device can run.
    pub fn gpu_capabilities(&self) -> GpuCapabilities {
        let info = self.device.info();
        GpuCapabilities {
            compute_capability: info.compute_capability,
            shared_bytes: info.shared_bytes,
            families: D::FAMILIES,
        }
    }
}

impl<D: Device> Backend for Gpu<D> {
    type Memory = D;

    fn name(&self) -> &'static str {
        D::BACKEND_NAME
    }

    fn device_name(&self) -> String {
        self.device.info().name.clone()
    }

    fn memory(&mut self) -> &mut D {
        &mut self.device
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::Gpu(self.gpu_capabilities())
    }

    fn kernel_name(&self, problem: &Problem) -> Result<String, Error> {
        Ok(self.instance(problem)?.name.to_owned())
    }

    unsafe fn forward_raw(&mut self, problem: &Problem, operands: &Operands) -> Result<(), Error> {
        let kernel = self.instance(problem)?;
        let params = problem.forward_params(operands);
        let tiles = TileList::new(params.batch, params.heads_q, params.seq_q, kernel.block_m);
        if tiles.count == 0 {
            return Ok(());
        }
        let launch = Launch {
            kernel,
            ptx: modules::ptx(kernel.name).expect("every instance has a module"),
            grid: tiles.grid(),
            params: &[bytemuck::bytes_of(&params)],
        };
        // SAFETY: these are the parameters of every forward kernel; the kernel reads and writes what
        // the problem's shapes and strides reach, which the caller vouches for.
        unsafe { self.device.launch(&launch) }
    }
}
