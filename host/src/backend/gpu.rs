use bytemuck::{bytes_of, cast_slice};
use kernels_gpu::abi::{AttentionParams, ForwardParams};
use kernels_gpu::instances::Instance;
use kernels_gpu::wgmma::schedule::{ListedTile, Schedule};

use super::device::{Device, DeviceInfo, Launch};
use super::tensor_maps::TensorMaps;
use super::uploads::Uploads;
use super::workspace::Workspace;
use crate::plan::params::{Arrays, bind_forward};
use crate::plan::tile_list::ListShape;
use crate::plan::{HopperForward, Step, StepParams, TileOrder};
use crate::{
    Backend, Capabilities, Error, GpuCapabilities, Lengths, Operands, Plan, Problem, modules,
};

/// Runs problems with the embedded kernels on a [`Device`].
///
/// Where a launch is given no workspace of its own it has one on the device, and copies slopes and cu_seqlens there for
/// which it is given no address; nothing else is allocated beside what the caller asks for.
pub struct Gpu<D: Device> {
    device: D,
    /// Kernels that need more shared memory a block are not run.
    most_shared_bytes: u32,
    workspace: Workspace<D::Buffer>,
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
            workspace: Workspace::default(),
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

    /// The addresses of a launch's small arrays: those given, and those of this backend's own copies.
    fn arrays(&mut self, problem: &Problem, operands: &Operands) -> Result<Arrays, Error> {
        let Self {
            device,
            slopes,
            cu_seqlens,
            ..
        } = self;
        let mut arrays = Arrays {
            cu_seqlens: operands.cu_seqlens,
            seqused_kv: operands.seqused_kv,
            alibi_slopes: operands.alibi_slopes,
        };
        let host_slopes = problem.alibi().and_then(|slopes| slopes.values());
        if let (Some(values), None) = (host_slopes, arrays.alibi_slopes) {
            let copy = slopes.get(device, values, (), || cast_slice(values).into())?;
            arrays.alibi_slopes = Some(device.address(copy));
        }
        if let (Lengths::Packed(packed), None) = (problem.lengths(), arrays.cu_seqlens) {
            let values = packed.values();
            let bytes = || cast_slice(values).into();
            let copy = cu_seqlens.get(device, values, OfCuSeqlens::Copy, bytes)?;
            let q = device.address(copy);
            arrays.cu_seqlens = Some([q, q + size_of_val(packed.q()) as u64]);
        }
        Ok(arrays)
    }

    /// The tiles of a launch that takes them from a list of shape `shape`.
    fn listed(
        &mut self,
        problem: &Problem,
        params: &AttentionParams,
        hopper: &HopperForward,
        shape: ListShape,
    ) -> Result<Schedule, Error> {
        let Lengths::Packed(packed) = problem.lengths() else {
            unreachable!("listed tiles are of packed sequences");
        };
        let bytes = || cast_slice(&shape.list(packed)).to_vec().into();
        let kind = OfCuSeqlens::Tiles(shape);
        let device = &mut self.device;
        let list = self.cu_seqlens.get(device, packed.values(), kind, bytes)?;
        let entries = (device.size_bytes(list) / size_of::<ListedTile>()) as u32;
        let total_kv = packed.total_kv() as u32;
        let schedule = Schedule::listed(
            params,
            hopper.packing,
            total_kv,
            device.address(list),
            entries,
        );
        Ok(schedule.expect("a plan was made"))
    }

    /// What the device can run, within the limit that was set.
    pub fn gpu_capabilities(&self) -> GpuCapabilities {
        let info = self.device.info();
        GpuCapabilities {
            compute_capability: info.compute_capability,
            shared_bytes: info.shared_bytes.min(self.most_shared_bytes),
            multiprocessors: info.multiprocessors,
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

    unsafe fn launch(&mut self, plan: &Plan, operands: &Operands) -> Result<(), Error> {
        plan.check(&self.capabilities(), operands)?;
        let arrays = self.arrays(plan.problem(), operands)?;
        let workspace = match operands.workspace {
            None if plan.workspace_bytes() > 0 => self
                .workspace
                .address(&mut self.device, plan.workspace_bytes())?,
            given => given.unwrap_or_default(),
        };
        for step in plan.steps() {
            // SAFETY: forwarded to the caller, who vouches for the operands and for a workspace that is given; the
            // backend's own is used by this stream alone.
            let launched = unsafe { self.step(plan.problem(), step, operands, &arrays, workspace) };
            if launched.is_err() {
                // It may have stopped in the middle, with tiles drawn.
                self.workspace.give_up();
            }
            launched?;
        }
        Ok(())
    }
}

impl<D: Device> Gpu<D> {
    /// Queues one step of a plan.
    ///
    /// # Safety
    /// As for [`Backend::launch`].
    unsafe fn step(
        &mut self,
        problem: &Problem,
        step: &Step,
        operands: &Operands,
        arrays: &Arrays,
        workspace: u64,
    ) -> Result<(), Error> {
        match &step.params {
            StepParams::Forward(params) => {
                let mut params = *params;
                bind_forward(&mut params, operands, arrays);
                // SAFETY: these are the kernel's parameters; it reads and writes what the problem's shapes and strides
                // reach, which the caller vouches for.
                unsafe { self.queue(step.kernel, step.grid, &[bytes_of(&params)]) }
            }
            StepParams::HopperForward(params, hopper) => {
                let mut params = *params;
                bind_forward(&mut params, operands, arrays);
                // SAFETY: forwarded to the caller.
                unsafe { self.hopper_forward(problem, step, &params, hopper, operands, workspace) }
            }
        }
    }

    /// Queues a forward kernel of the family `wgmma`.
    ///
    /// # Safety
    /// As for [`Backend::launch`].
    unsafe fn hopper_forward(
        &mut self,
        problem: &Problem,
        step: &Step,
        params: &ForwardParams,
        hopper: &HopperForward,
        operands: &Operands,
        workspace: u64,
    ) -> Result<(), Error> {
        let (schedule, grid) = match hopper.order {
            TileOrder::Counted(schedule) => (schedule, step.grid),
            TileOrder::Listed(shape) => {
                let schedule = self.listed(problem, &params.attention, hopper, shape)?;
                let multiprocessors = self.device.info().multiprocessors;
                let schedule = schedule.on_gpu(multiprocessors, step.kernel.cluster);
                (schedule, schedule.clusters * step.kernel.cluster)
            }
        };
        let specs = hopper.maps(operands);
        let (device, encoded) = (&self.device, &mut self.tensor_maps);
        let mut map = |spec| encoded.get(device, step.kernel.dtype, spec);
        let (q, k, v, o) = (
            map(&specs.q)?,
            map(&specs.k)?,
            map(&specs.v)?,
            map(&specs.o)?,
        );
        let params = [
            bytes_of(params),
            bytes_of(&q),
            bytes_of(&k),
            bytes_of(&v),
            bytes_of(&o),
            bytes_of(&schedule),
            bytes_of(&workspace),
        ];
        // SAFETY: as for the other kernels; the maps were encoded from the same addresses and strides, and the counter,
        // with which the workspace begins, is used by no launch that may run at the same time.
        unsafe { self.queue(step.kernel, grid, &params) }
    }

    /// # Safety
    /// As for [`Device::launch`].
    unsafe fn queue(
        &mut self,
        kernel: &'static Instance,
        grid: u32,
        params: &[&[u8]],
    ) -> Result<(), Error> {
        let launch = Launch {
            kernel,
            ptx: modules::ptx(kernel.name).expect("every instance has a module"),
            grid,
            params,
        };
        // SAFETY: forwarded to the caller.
        unsafe { self.device.launch(&launch) }
    }
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
        assert_eq!([run(&case), run(&case)], [2, 2]);
        case.options.mask = Mask::None;
        assert_eq!([run(&case), run(&case)], [3, 3]);
        // Other kernels read the values.
        case.options.force = Some(Variant::Kernels(Family::Mma));
        assert_eq!([run(&case), run(&case)], [3, 3]);
    }
}
