use bytemuck::cast_slice;
use kernels_gpu::abi::ForwardParams;
use kernels_gpu::config::wgmma::WgmmaTile;
use kernels_gpu::instances::Instance;
use kernels_gpu::tile::schedule::TileList;
use kernels_gpu::wgmma::gqa::Packing;
use kernels_gpu::wgmma::schedule::{ListedTile, Schedule};

use super::device::{Device, DeviceInfo, Launch};
use super::hopper::{HopperPlan, packing};
use super::tensor_maps::TensorMaps;
use super::tile_list::ListShape;
use super::uploads::Uploads;
use crate::variant::{Choice, GpuCapabilities, choose, in_order};
use crate::{Backend, Capabilities, Error, Operands, Problem, modules};

/// Runs problems with the embedded kernels on a [`Device`].
///
/// On a Hopper GPU it owns 4 bytes of device memory, from which running blocks draw tiles. It copies slopes and
/// cu_seqlens to the device for which it is given no address, and lists of tiles for Hopper's kernels, 32 bytes a tile
/// of one head; nothing else is allocated beside what the caller asks for.
pub struct Gpu<D: Device> {
    device: D,
    /// Kernels that need more shared memory a block are not run.
    most_shared_bytes: u32,
    /// 0 between launches.
    tile_counter: Option<D::Buffer>,
    tensor_maps: TensorMaps,
    slopes: Uploads<f32, (), D::Buffer>,
    cu_seqlens: Uploads<i32, OfCuSeqlens, D::Buffer>,
}

/// What kernels want of cu_seqlens.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OfCuSeqlens {
    /// The values.
    Copy,
    Tiles(ListShape),
}

impl<D: Device> Gpu<D> {
    /// A backend on `device`.
    pub fn on(device: D) -> Self {
        Self {
            device,
            most_shared_bytes: u32::MAX,
            tile_counter: None,
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
            let Some(tile) = instance.wgmma else {
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

    /// Address of the tile counter.
    fn tile_counter(&mut self) -> Result<u64, Error> {
        if self.tile_counter.is_none() {
            let mut counter = self.device.alloc(size_of::<u32>())?;
            self.device.write(&mut counter, &0u32.to_ne_bytes())?;
            self.tile_counter = Some(counter);
        }
        let counter = self.tile_counter.as_ref().expect("it was made above");
        Ok(self.device.address(counter))
    }

    /// `operands` with every address `kernel` needs for `problem`: those left out are of this backend's own copies.
    fn complete(
        &mut self,
        problem: &Problem,
        operands: &Operands,
        kernel: &Instance,
    ) -> Result<Operands, Error> {
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
        // Hopper's kernels have lists of tiles instead.
        let is_read = kernel.wgmma.is_none();
        if let (Some(packed), None, true) = (problem.cu_seqlens(), operands.cu_seqlens, is_read) {
            let values = packed.values();
            let bytes = || cast_slice(values).into();
            let copy = cu_seqlens.get(device, values, OfCuSeqlens::Copy, bytes)?;
            let q = device.address(copy);
            let kv = q + size_of_val(packed.q()) as u64;
            operands.cu_seqlens = Some([q, kv]);
        }
        Ok(operands)
    }

    /// The tiles of a launch of a kernel of shape `tile`, which can number them in packs of `packing`.
    fn schedule(
        &mut self,
        problem: &Problem,
        params: &ForwardParams,
        tile: &WgmmaTile,
        packing: Packing,
    ) -> Result<Schedule, Error> {
        const NUMBERED: &str = "a plan was made";
        let Some(packed) = problem.cu_seqlens() else {
            let schedule = Schedule::new(params, packing, tile.cluster_m());
            return Ok(schedule.expect(NUMBERED));
        };
        let shape = ListShape::new(params, tile, packing);
        let bytes = || cast_slice(&shape.list(packed)).to_vec().into();
        let kind = OfCuSeqlens::Tiles(shape);
        let device = &mut self.device;
        let list = self.cu_seqlens.get(device, packed.values(), kind, bytes)?;
        let entries = (device.size_bytes(list) / size_of::<ListedTile>()) as u32;
        let total_kv = packed.total_kv() as u32;
        let schedule = Schedule::listed(params, packing, total_kv, device.address(list), entries);
        Ok(schedule.expect(NUMBERED))
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

    fn pci_bus_id(&self) -> Option<&str> {
        self.device.info().pci_bus_id.as_deref()
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
        let tile = self.instance(problem)?.wgmma;
        Ok(tile.map_or(1, |tile| packing(problem, tile).heads()))
    }

    unsafe fn forward_raw(&mut self, problem: &Problem, operands: &Operands) -> Result<(), Error> {
        if problem.is_empty() {
            // There is nothing to compute, but a forced variant must still be one that could.
            return self.instance(problem).map(|_| ());
        }
        let (kernel, plan) = self.instance_for(problem, &problem.forward_params(operands))?;
        let params = problem.forward_params(&self.complete(problem, operands, kernel)?);
        let ptx = modules::ptx(kernel.name).expect("every instance has a module");
        match (plan, kernel.wgmma) {
            (Some(plan), Some(tile)) => {
                let counter = self.tile_counter()?;
                let schedule = self.schedule(problem, &params, tile, plan.packing)?;
                let (device, maps) = (&self.device, &mut self.tensor_maps);
                let images =
                    plan.images(device, maps, kernel.dtype, tile, params, schedule, counter)?;
                let launch = Launch {
                    kernel,
                    ptx,
                    grid: images.grid,
                    params: &images.params(),
                };
                // SAFETY: as below; the maps were encoded from the same addresses and strides, and the counter
                // is used by this stream alone.
                let launched = unsafe { self.device.launch(&launch) };
                if launched.is_err() {
                    // It may have stopped in the middle, with tiles drawn.
                    self.tile_counter = None;
                }
                launched
            }
            _ => {
                let tiles =
                    TileList::new(params.batch, params.heads_q, params.seq_q, kernel.block_m);
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

#[cfg(test)]
mod tests {
    use kernels_gpu::instances::Family;

    use crate::cases::{Arrangement, CaseSpec, InputKind, Lengths};
    use crate::{DType, Layout, Mask, Sim, Variant};

    #[test]
    fn packed_sequences_are_listed_once_for_each_mask() {
        let spec = CaseSpec {
            dtype: DType::Bf16,
            lengths: Lengths::Varlen(vec![(3, 5), (0, 2), (1, 1)]),
            heads_kv: 1,
            group: 1,
            head_dim: 64,
            head_dim_v: 64,
            mask: Mask::Causal,
            scale_factor: None,
            softcap: None,
            alibi: None,
            kind: InputKind::ALL[0],
            arrangements: [Arrangement::BSHD; 3],
            o_layout: Layout::Bshd,
            seed: 0,
        };
        let mut case = spec.build().unwrap();
        let mut sim = Sim::new();
        let mut run = |case: &crate::cases::Case| {
            case.run(&mut sim).unwrap();
            sim.cu_seqlens.count()
        };
        assert_eq!([run(&case), run(&case)], [1, 1]);
        case.options.mask = Mask::None;
        assert_eq!([run(&case), run(&case)], [2, 2]);
        // Other kernels read the values.
        case.options.force = Some(Variant::Kernels(Family::Mma));
        assert_eq!([run(&case), run(&case)], [3, 3]);
    }
}
