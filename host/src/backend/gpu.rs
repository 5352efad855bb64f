use bytemuck::cast_slice;
use kernels_gpu::abi::{AttentionParams, ForwardParams};
use kernels_gpu::instances::{Instance, TILE_LIST};
use kernels_gpu::tile::schedule::TileList;
use kernels_gpu::wgmma::tile_list::{TileListParams, Workspace};

use super::device::{Device, DeviceInfo, Launch};
use super::hopper::{HopperPlan, packing};
use super::tensor_maps::TensorMaps;
use super::uploads::Uploads;
use crate::variant::{Choice, GpuCapabilities, choose, in_order};
use crate::{Backend, Capabilities, Error, Operands, Problem, modules};

/// Runs problems with the embedded kernels on a [`Device`].
///
/// On a Hopper GPU it owns a workspace: 4 bytes of device memory, from which running blocks draw tiles, and as much as
/// the largest list of tiles so far takes, 32 bytes a tile of one head. It copies slopes and cu_seqlens to the device for
/// which it is given no address; nothing else is allocated beside what the caller asks for.
pub struct Gpu<D: Device> {
    device: D,
    /// Kernels that need more shared memory a block are not run.
    most_shared_bytes: u32,
    /// Its tile counter is 0 between launches.
    workspace: Option<D::Buffer>,
    tensor_maps: TensorMaps,
    slopes: Uploads<f32, (), D::Buffer>,
    cu_seqlens: Uploads<i32, (), D::Buffer>,
}

impl<D: Device> Gpu<D> {
    /// A backend on `device`.
    pub fn on(device: D) -> Self {
        Self {
            device,
            most_shared_bytes: u32::MAX,
            workspace: None,
            tensor_maps: TensorMaps::default(),
            slopes: Uploads::default(),
            cu_seqlens: Uploads::default(),
        }
    }

    /// From now on runs no kernel that needs more than `bytes` of shared memory a block, as on a GPU that has no more.
    /// `u32::MAX` lifts the limit.
    pub fn limit_shared_bytes(&mut self, bytes: u32) {
        self.most_shared_bytes = bytes;
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// What the device is.
    pub fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    /// The kernel that will run `problem` on aligned operands.
    fn instance(&self, problem: &Problem) -> Result<&'static Instance, Error> {
        Ok(kernel_of(choose(problem, &self.capabilities())?))
    }

    /// The kernel that runs `problem` on operands at the addresses of `params`: the first eligible one that can reach
    /// them.
    fn instance_for(
        &self,
        problem: &Problem,
        params: &ForwardParams,
    ) -> Result<(&'static Instance, Option<HopperPlan>), Error> {
        let here = self.capabilities();
        let chosen = choose(problem, &here)?;
        // Looked for only where the chosen one, their first, cannot reach the operands.
        let others = in_order(problem, &here)
            .skip(1)
            .filter(|_| problem.force().is_none());
        let mut refusal = String::new();
        for choice in std::iter::once(chosen).chain(others) {
            let instance = kernel_of(choice);
            let Some(tile) = instance.wgmma() else {
                return Ok((instance, None));
            };
            match HopperPlan::new(problem, params, tile) {
                Ok(plan) => return Ok((instance, Some(plan))),
                Err(reason) => refusal = reason,
            }
        }
        Err(Error::argument(
            "force",
            format!(
                "variant {} cannot run this problem here: {refusal}",
                chosen.variant
            ),
            "operands at addresses that are multiples of 16, or another variant",
        ))
    }

    /// Address of a workspace of at least `bytes`.
    fn workspace(&mut self, bytes: u64) -> Result<u64, Error> {
        let is_enough = |buffer: &D::Buffer| self.device.size_bytes(buffer) as u64 >= bytes;
        if !self.workspace.as_ref().is_some_and(is_enough) {
            let mut workspace = self.device.alloc(bytes as usize)?;
            let counter = [0; Workspace::COUNTER_BYTES as usize];
            self.device.write(&mut workspace, &counter)?;
            self.workspace = Some(workspace);
        }
        let workspace = self.workspace.as_ref().expect("it was made above");
        Ok(self.device.address(workspace))
    }

    /// `operands` with every address that kernels need for `problem`: those left out are of this backend's own copies.
    fn complete(&mut self, problem: &Problem, operands: &Operands) -> Result<Operands, Error> {
        let Self {
            device,
            slopes,
            cu_seqlens,
            ..
        } = self;
        let mut operands = *operands;
        if let (Some(alibi), None) = (problem.alibi(), operands.alibi_slopes) {
            let values = alibi.values();
            let copy = slopes.get(device, values, (), || cast_slice(values).into())?;
            operands.alibi_slopes = Some(device.address(copy));
        }
        if let (Some(packed), None) = (problem.cu_seqlens(), operands.cu_seqlens) {
            let values = packed.values();
            let copy = cu_seqlens.get(device, values, (), || cast_slice(values).into())?;
            let q = device.address(copy);
            let kv = q + size_of_val(packed.q()) as u64;
            operands.cu_seqlens = Some([q, kv]);
        }
        Ok(operands)
    }

    /// Lists the tiles of a varlen launch.
    fn list_tiles(&mut self, list: &TileListParams) -> Result<(), Error> {
        let launch = Launch {
            kernel: &TILE_LIST,
            ptx: modules::ptx(TILE_LIST.name).expect("every instance has a module"),
            grid: 1,
            params: &[bytemuck::bytes_of(list)],
        };
        // SAFETY: the caller vouches for the arrays of lengths, and the workspace has room for the list.
        unsafe { self.device.launch(&launch) }
    }

    /// What the device can run, within the limit that was set.
    pub fn gpu_capabilities(&self) -> GpuCapabilities {
        let info = self.device.info();
        GpuCapabilities {
            compute_capability: info.compute_capability,
            shared_bytes: info.shared_bytes.min(self.most_shared_bytes),
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

    fn heads_per_tile(&self, problem: &Problem) -> Result<u32, Error> {
        let tile = self.instance(problem)?.wgmma();
        Ok(tile.map_or(1, |tile| packing(problem, tile).heads()))
    }

    unsafe fn forward_raw(&mut self, problem: &Problem, operands: &Operands) -> Result<(), Error> {
        if problem.is_empty() {
            // There is nothing to compute, but a forced variant must still be one that could.
            return self.instance(problem).map(|_| ());
        }
        let (kernel, plan) = self.instance_for(problem, &problem.forward_params(operands))?;
        let params = problem.forward_params(&self.complete(problem, operands)?);
        let ptx = modules::ptx(kernel.name).expect("every instance has a module");
        match (plan, kernel.wgmma()) {
            (Some(plan), Some(tile)) => {
                const NUMBERED: &str = "a plan was made";
                let list = |workspace| {
                    TileListParams::new(&params.attention, tile, plan.packing, workspace)
                        .expect(NUMBERED)
                };
                let layout = if tile.varlen {
                    list(0).layout()
                } else {
                    Workspace::DENSE
                };
                let workspace = self.workspace(layout.bytes)?;
                if tile.varlen {
                    self.list_tiles(&list(workspace))?;
                }
                let (device, maps) = (&self.device, &mut self.tensor_maps);
                let images = plan.images(device, maps, kernel.dtype, tile, params, workspace)?;
                let launch = Launch {
                    kernel,
                    ptx,
                    grid: images.grid,
                    params: &images.params(),
                };
                // SAFETY: as below; the maps were encoded from the same addresses and strides, and the
                // workspace is used by this stream alone.
                let launched = unsafe { self.device.launch(&launch) };
                if launched.is_err() {
                    // It may have stopped in the middle, with tiles drawn.
                    self.workspace = None;
                }
                launched
            }
            _ => {
                let AttentionParams {
                    batch,
                    heads_q,
                    seq_q,
                    ..
                } = params.attention;
                let tiles = TileList::new(batch, heads_q, seq_q, kernel.block_m);
                let launch = Launch {
                    kernel,
                    ptx,
                    grid: tiles.grid(),
                    params: &[bytemuck::bytes_of(&params)],
                };
                // SAFETY: these are the parameters of every other forward kernel; the kernel reads and writes
                // what the problem's shapes and strides reach, which the caller vouches for.
                unsafe { self.device.launch(&launch) }
            }
        }
    }
}

/// The kernel behind a choice that was made for a GPU.
fn kernel_of(choice: Choice) -> &'static Instance {
    choice.kernel.expect("only kernels are eligible on a GPU")
}
