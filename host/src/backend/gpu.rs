use std::collections::HashMap;

use bytemuck::bytes_of;
use kernels_gpu::abi::{BackwardParams, ForwardParams, ModifierParams};
use kernels_gpu::instances::Instance;
use kernels_gpu::wgmma::tensor_map::BackwardMaps;

use super::device::{Device, DeviceInfo, Launch};
use super::embedded::ptx_of;
use super::gpu_append;
use super::gpu_merge;
use super::tensor_maps::TensorMaps;
use super::uploads::Uploads;
use super::workspace::OwnWorkspace;
use crate::plan::backward::WorkspaceLayout;
use crate::plan::backward::bias::bind_bias_gradient;
use crate::plan::backward::bind::{bind_backward, bind_delta, bind_maps, bind_sink_gradient};
use crate::plan::backward::slopes::bind_slope_sums;
use crate::plan::decode::{bind_decode, bind_scales};
use crate::plan::hopper::HopperForward;
use crate::plan::modifiers::bind_modifiers;
use crate::plan::params::{
    Arrays, bind_block_states, bind_check_cache, bind_forward, bind_keep_mask, bind_pages,
    bind_sinks, bind_tile_list,
};
use crate::plan::{Step, StepParams};
use crate::problem::Array;
use crate::sealed::Sealed;
use crate::{
    AppendOperands, AppendProblem, Backend, BoundScoreMod, Capabilities, Error, GpuCapabilities,
    Lengths, Merge, Operands, Plan, Problem, PtxModules, Shape,
};

/// Runs problems with the embedded kernels on a [`Device`].
///
/// A launch without a workspace from the caller uses one of this backend's on the device; slopes and cu_seqlens without
/// an address are copied there. Nothing else is allocated except what the caller asks for.
pub struct Gpu<D: Device> {
    device: D,
    /// Kernels that need more shared memory a block are not run.
    most_shared_bytes: u32,
    newest: (u32, u32),
    workspace: OwnWorkspace<D::Buffer>,
    /// Those of plans of decode kernels, by the bytes that are 0 between launches: only plans that agree in them share one.
    counting_workspaces: HashMap<usize, OwnWorkspace<D::Buffer>>,
    /// Receives an lse that nobody wants, since kernels always write it.
    unwanted_lse: OwnWorkspace<D::Buffer>,
    tensor_maps: TensorMaps,
    slopes: Uploads<f32, D::Buffer>,
    cu_seqlens: Uploads<i32, D::Buffer>,
    modifiers: Uploads<u8, D::Buffer>,
}

impl<D: Device> Gpu<D> {
    /// A backend on `device`.
    pub fn on(device: D) -> Self {
        Self {
            device,
            most_shared_bytes: u32::MAX,
            newest: (u32::MAX, u32::MAX),
            workspace: OwnWorkspace::default(),
            counting_workspaces: HashMap::new(),
            unwanted_lse: OwnWorkspace::default(),
            tensor_maps: TensorMaps::default(),
            slopes: Uploads::default(),
            cu_seqlens: Uploads::default(),
            modifiers: Uploads::default(),
        }
    }

    /// From now on runs no kernel that needs more than `bytes` of shared memory a block, as on a GPU that has no more.
    /// `u32::MAX` lifts the limit. For tests.
    #[doc(hidden)]
    pub fn limit_shared_bytes(&mut self, bytes: u32) {
        self.most_shared_bytes = bytes;
    }

    /// From now on runs no kernel that needs a newer compute capability than `newest`, as on a GPU that has no newer one.
    /// [`u32::MAX`] twice lifts the limit. For tests.
    #[doc(hidden)]
    pub fn limit_compute_capability(&mut self, newest: (u32, u32)) {
        self.newest = newest;
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Name, compute capability and limits of the device.
    pub fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    /// The addresses of a launch's small arrays: those given, and those of this backend's own copies.
    fn arrays(&mut self, problem: &Problem, operands: &Operands) -> Result<Arrays, Error> {
        let Self {
            device,
            slopes,
            cu_seqlens,
            modifiers,
            ..
        } = self;
        let mut arrays = Arrays::given(problem, operands);
        let host_slopes = problem.alibi().and_then(|slopes| slopes.values());
        if let (Some(values), None) = (host_slopes, arrays.alibi_slopes) {
            let copy = slopes.get(device, values)?;
            arrays.alibi_slopes = Some(device.address(copy));
        }
        if let (Lengths::Packed(packed), None) = (problem.lengths(), arrays.cu_seqlens) {
            let values = packed.values();
            let copy = cu_seqlens.get(device, values)?;
            let q = device.address(copy);
            arrays.cu_seqlens = Some([q, q + size_of_val(packed.q()) as u64]);
        }
        let copy = |array: &Array| {
            let values = array.values().expect("the host has it, as checked");
            let copy = modifiers.get(device, values)?;
            Ok(device.address(copy))
        };
        arrays.modifiers = operands.modifiers.resolve(problem.modifiers(), copy)?;
        Ok(arrays)
    }

    /// The device's capabilities, within the limits that were set.
    pub fn gpu_capabilities(&self) -> GpuCapabilities {
        let info = self.device.info();
        GpuCapabilities::new(
            info.compute_capability.min(self.newest),
            info.shared_bytes.min(self.most_shared_bytes),
            info.multiprocessors,
        )
        .with_families(D::FAMILIES)
    }
}

impl<D: Device> Sealed for Gpu<D> {}

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
        let workspace = match (operands.workspace, plan.workspace_bytes()) {
            (Some(given), _) => given.address,
            (None, 0) => 0,
            (None, bytes) => {
                let own = match plan.counter_bytes() {
                    None => &mut self.workspace,
                    Some(counters) => self.counting_workspaces.entry(counters).or_default(),
                };
                own.address(&mut self.device, bytes)?
            }
        };
        let score_mod = plan.problem().modifiers().score_mod.as_ref();
        let bound = score_mod.map(|own| own.bound(&arrays.modifiers.score_mod));
        let places = Places {
            operands,
            lse: self.lse_address(plan.problem(), operands)?,
            arrays: &arrays,
            workspace,
            score_mod: bound.as_ref(),
            ptx: score_mod.map_or(PtxModules::NONE, |own| own.ptx()),
        };
        for step in plan.steps() {
            // SAFETY: the caller vouches for the operands and for a given workspace; the backend's own is used by this
            // stream alone.
            let launched = unsafe { self.step(step, &places) };
            if launched.is_err() {
                // The launch may have stopped midway, with some tiles already taken from the counter.
                self.workspace.give_up();
                for workspace in self.counting_workspaces.values_mut() {
                    workspace.give_up();
                }
            }
            launched?;
        }
        Ok(())
    }

    unsafe fn append_raw(
        &mut self,
        problem: &AppendProblem,
        operands: &AppendOperands,
    ) -> Result<(), Error> {
        // Operands without elements may lie nowhere.
        if problem.is_empty() {
            return Ok(());
        }
        operands.check(problem)?;
        let gpu = self.gpu_capabilities();
        // SAFETY: the caller's promise is the one `run` asks for.
        unsafe { gpu_append::run(&mut self.device, &gpu, problem, operands) }
    }

    unsafe fn merge_raw(&mut self, merge: &Merge<'_>) -> Result<(), Error> {
        let gpu = self.gpu_capabilities();
        // SAFETY: the caller's promise is the one `run` asks for.
        unsafe { gpu_merge::run(&mut self.device, &gpu, merge) }
    }
}

/// Addresses that a launch's kernels read from and write to.
#[derive(Clone, Copy)]
struct Places<'a> {
    operands: &'a Operands,
    lse: u64,
    arrays: &'a Arrays,
    workspace: u64,
    /// The caller's own score modification, and the PTX of its kernels.
    score_mod: Option<&'a BoundScoreMod>,
    ptx: PtxModules,
}

impl Places<'_> {
    /// The second parameter of backward kernels with modifiers.
    fn backward_modifiers(
        &self,
        params: &ModifierParams,
        layout: &WorkspaceLayout,
        states: Option<u64>,
    ) -> Vec<u8> {
        let mut params = *params;
        let mask = layout.keep_mask(self.workspace);
        params.keep_mask.address = mask.filter(|_| params.keep_mask.units > 0);
        self.modifiers(&params, states)
    }

    /// The second parameter of kernels with modifiers.
    fn modifiers(&self, params: &ModifierParams, states: Option<u64>) -> Vec<u8> {
        let states = states.map(|offset| self.workspace + offset);
        let params = bind_modifiers(params, &self.arrays.modifiers, states);
        match self.score_mod {
            None => bytes_of(&params).to_vec(),
            Some(own) => own.behind(&params),
        }
    }
}

impl<D: Device> Gpu<D> {
    /// Where kernels write lse: the caller's memory, or this backend's if the caller does not want it.
    fn lse_address(&mut self, problem: &Problem, operands: &Operands) -> Result<u64, Error> {
        if let Some(given) = operands.lse {
            return Ok(given);
        }
        if problem.is_empty() {
            return Ok(0);
        }
        let Shape {
            batch, heads, seq, ..
        } = problem.o().shape;
        // o has at least one element for each of these rows, so their number fits.
        let bytes = batch * heads * seq * size_of::<f32>();
        self.unwanted_lse.address(&mut self.device, bytes)
    }

    /// Queues one step of a plan.
    ///
    /// # Safety
    /// As for [`Backend::launch`].
    unsafe fn step(&mut self, step: &Step, places: &Places<'_>) -> Result<(), Error> {
        let places = &Places {
            workspace: places.workspace + step.workspace_begin,
            ..*places
        };
        let &Places {
            operands,
            lse,
            arrays,
            workspace,
            ..
        } = places;
        match &step.params {
            StepParams::Forward(params) => {
                let params = bind_forward(params, operands, lse, arrays);
                // SAFETY: these are the kernel's parameters; it reads and writes what the problem's shapes and strides
                // reach, which the caller vouches for.
                unsafe { self.queue(step, places.ptx, &[bytes_of(&params)]) }
            }
            StepParams::Delta(params, layout) => {
                let params = bind_delta(params, layout, operands, workspace);
                // SAFETY: these are the kernel's parameters; it reads o, d_o, lse and d_lse, and writes the workspace.
                unsafe { self.queue(step, places.ptx, &[bytes_of(&params)]) }
            }
            StepParams::Backward(params, layout) => {
                let params = bind_backward(params, layout, operands, arrays, workspace);
                // SAFETY: as for the forward kernels.
                unsafe { self.queue(step, places.ptx, &[bytes_of(&params)]) }
            }
            StepParams::HopperBackward(params, maps, layout) => {
                let params = bind_backward(params, layout, operands, arrays, workspace);
                // SAFETY: forwarded to the caller.
                unsafe { self.hopper_backward(step, places, &params, maps, None) }
            }
            StepParams::Slopes(params, layout) => {
                let params = bind_backward(params, layout, operands, arrays, workspace);
                let sums = layout.slope_sums(workspace);
                // SAFETY: these are the kernel's parameters; it reads operands, and writes the workspace.
                unsafe { self.queue(step, places.ptx, &[bytes_of(&params), bytes_of(&sums)]) }
            }
            StepParams::SlopeSums(params, layout) => {
                let params = bind_slope_sums(params, operands, layout.slope_sums(workspace));
                // SAFETY: these are the kernel's parameters; it reads the workspace, and writes an f32 for each slope, which
                // the caller vouches for.
                unsafe { self.queue(step, places.ptx, &[bytes_of(&params)]) }
            }
            StepParams::ModifiedForward(params, modifiers, states) => {
                let params = bind_forward(params, operands, lse, arrays);
                let modifiers = places.modifiers(modifiers, *states);
                // SAFETY: as for the other forward kernels; the arrays of modifiers have an element for every pair.
                unsafe { self.queue(step, places.ptx, &[bytes_of(&params), &modifiers]) }
            }
            StepParams::ModifiedBackward(params, modifiers, layout, states) => {
                let params = bind_backward(params, layout, operands, arrays, workspace);
                let modifiers = places.backward_modifiers(modifiers, layout, *states);
                // SAFETY: as for the forward kernels.
                unsafe { self.queue(step, places.ptx, &[bytes_of(&params), &modifiers]) }
            }
            StepParams::ModifiedSlopes(params, modifiers, layout, states) => {
                let params = bind_backward(params, layout, operands, arrays, workspace);
                let modifiers = places.modifiers(modifiers, *states);
                let sums = layout.slope_sums(workspace);
                let params = [bytes_of(&params), bytes_of(&sums), &modifiers];
                // SAFETY: as of the kernel without modifiers.
                unsafe { self.queue(step, places.ptx, &params) }
            }
            StepParams::BiasGradient(params, modifiers, of, layout, states) => {
                let params = bind_backward(params, layout, operands, arrays, workspace);
                let modifiers = places.modifiers(modifiers, *states);
                let of = bind_bias_gradient(of, operands);
                let params = [bytes_of(&params), &modifiers, bytes_of(&of)];
                // SAFETY: these are the kernel's parameters; it reads operands, and writes an f32 for each element of the
                // bias, which the caller vouches for.
                unsafe { self.queue(step, places.ptx, &params) }
            }
            StepParams::ModifiedHopperBackward(params, maps, modifiers, layout, states) => {
                let params = bind_backward(params, layout, operands, arrays, workspace);
                let modifiers = places.backward_modifiers(modifiers, layout, *states);
                // SAFETY: forwarded to the caller; the arrays of modifiers have an element for every pair.
                unsafe { self.hopper_backward(step, places, &params, maps, Some(&modifiers)) }
            }
            StepParams::BlockStates(params, offset) => {
                let states = Some(workspace + offset);
                let params = bind_block_states(params, arrays, states);
                // A kernel has no parameter of a type without bytes.
                let own = places.score_mod.map(BoundScoreMod::bytes);
                let own = own.filter(|bytes| !bytes.is_empty());
                let params = [Some(bytes_of(&params)), own];
                let params: Vec<&[u8]> = params.into_iter().flatten().collect();
                // SAFETY: these are the kernel's parameters; it reads the arrays, and writes the workspace.
                unsafe { self.queue(step, places.ptx, &params) }
            }
            StepParams::KeepMask(params, layout, states) => {
                let states = states.map(|offset| workspace + offset);
                let mask = layout.keep_mask(workspace);
                let params = bind_keep_mask(params, arrays, states, mask);
                // SAFETY: these are the kernel's parameters; it reads states, and writes the workspace.
                unsafe { self.queue(step, places.ptx, &[bytes_of(&params)]) }
            }
            StepParams::SinkGradient(params, layout) => {
                let params = bind_sink_gradient(params, layout, operands, arrays, workspace);
                // SAFETY: these are the kernel's parameters; it reads the workspace and sinks, and writes an f32 for each
                // sink, which the caller vouches for.
                unsafe { self.queue(step, places.ptx, &[bytes_of(&params)]) }
            }
            StepParams::Decode(params, scales) => {
                let params = bind_decode(params, operands, lse, arrays, workspace);
                let scales = scales.as_ref().map(|scales| bind_scales(scales, arrays));
                let params = [Some(bytes_of(&params)), scales.as_ref().map(bytes_of)];
                let params: Vec<&[u8]> = params.into_iter().flatten().collect();
                // SAFETY: as for the forward kernels; of the cache it reads what lies in existing pages alone.
                unsafe { self.queue(step, places.ptx, &params) }
            }
            StepParams::CheckCache(params, lens) => {
                let params = bind_check_cache(params, arrays, workspace + lens);
                // SAFETY: these are the kernel's parameters; it reads lengths and a block table, and writes the workspace and
                // the status.
                unsafe { self.queue(step, places.ptx, &[bytes_of(&params)]) }
            }
            StepParams::TileList(params, lens) => {
                let lens = lens.map(|lens| workspace + lens);
                let params = bind_tile_list(params, arrays, workspace, lens);
                // SAFETY: these are the kernel's parameters; it reads the arrays of lengths, and writes the workspace.
                unsafe { self.queue(step, places.ptx, &[bytes_of(&params)]) }
            }
            StepParams::HopperForward(params, hopper, lens) => {
                let (Some(pages), Some(lens)) = (hopper.pages, lens) else {
                    // SAFETY: forwarded to the caller.
                    return unsafe { self.hopper_forward(step, places, params, hopper, &[]) };
                };
                let pages = bind_pages(&pages, arrays, workspace + lens);
                let v_rows = hopper.maps(operands).v_rows();
                let v_rows = self
                    .tensor_maps
                    .get(&self.device, step.kernel.dtype, &v_rows)?;
                let sinks = bind_sinks(arrays);
                let others = [bytes_of(&sinks), bytes_of(&pages), bytes_of(&v_rows)];
                // SAFETY: forwarded to the caller; the pages are those of the operands' cache.
                unsafe { self.hopper_forward(step, places, params, hopper, &others) }
            }
            StepParams::ModifiedHopperForward(params, hopper, modifiers, states) => {
                let modifiers = places.modifiers(modifiers, *states);
                // SAFETY: forwarded to the caller; the arrays of modifiers have an element for every pair.
                unsafe { self.hopper_forward(step, places, params, hopper, &[&modifiers]) }
            }
        }
    }

    /// Queues a backward kernel of Hopper, whose parameters have their addresses.
    ///
    /// # Safety
    /// As for [`Backend::launch`].
    unsafe fn hopper_backward(
        &mut self,
        step: &Step,
        places: &Places<'_>,
        params: &BackwardParams,
        maps: &BackwardMaps,
        modifiers: Option<&[u8]>,
    ) -> Result<(), Error> {
        let BackwardMaps { q, k, v, d_o } = bind_maps(maps, places.operands);
        let (dtype, specs) = (step.kernel.dtype, [q, k, v, d_o]);
        let [q, k, v, d_o] = self.tensor_maps.get_all(&self.device, dtype, specs)?;
        let params = [
            bytes_of(params),
            bytes_of(&q),
            bytes_of(&k),
            bytes_of(&v),
            bytes_of(&d_o),
            modifiers.unwrap_or_default(),
        ];
        let count = params.len() - usize::from(modifiers.is_none());
        // SAFETY: as for the forward kernels; the maps were encoded from the same addresses and strides.
        unsafe { self.queue(step, places.ptx, &params[..count]) }
    }

    /// Queues a forward kernel of Hopper.
    ///
    /// # Safety
    /// As for [`Backend::launch`].
    unsafe fn hopper_forward(
        &mut self,
        step: &Step,
        places: &Places<'_>,
        params: &ForwardParams,
        hopper: &HopperForward,
        others: &[&[u8]],
    ) -> Result<(), Error> {
        let params = bind_forward(params, places.operands, places.lse, places.arrays);
        let specs = hopper.maps(places.operands);
        let maps = &mut self.tensor_maps;
        let [q, k, v, o] = maps.of_forward(&self.device, step.kernel.dtype, &specs)?;
        let common = [
            bytes_of(&params),
            bytes_of(&q),
            bytes_of(&k),
            bytes_of(&v),
            bytes_of(&o),
            bytes_of(&hopper.schedule),
            bytes_of(&places.workspace),
        ];
        // As many as there may be: a launch does not allocate.
        let mut params: [&[u8]; 10] = [&[]; 10];
        let count = common.len() + others.len();
        params[..common.len()].copy_from_slice(&common);
        params[common.len()..count].copy_from_slice(others);
        // SAFETY: as for the other kernels; the maps were encoded from the same addresses and strides, and no launch that
        // may run at the same time uses the workspace.
        unsafe { self.queue(step, places.ptx, &params[..count]) }
    }

    /// # Safety
    /// As for [`Device::launch`].
    unsafe fn queue(
        &mut self,
        step: &Step,
        own: PtxModules,
        params: &[&[u8]],
    ) -> Result<(), Error> {
        let ptx = |kernel: &Instance| own.text(kernel.name).unwrap_or_else(|| ptx_of(kernel));
        let launch = Launch {
            kernel: step.kernel,
            ptx: &ptx,
            grid: step.grid,
            params,
            begins_early: step.begins_early,
        };
        // SAFETY: the caller's contract is this function's; entry, grid and block size are those of the plan's step.
        unsafe { self.device.launch(&launch) }
    }
}
