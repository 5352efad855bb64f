//! The launches of a backward pass, in order.

use kernels_gpu::abi::ModifierParams;
use kernels_gpu::config::warp_per_row;
use kernels_gpu::instances::{Family, Instance, KEEP_MASK, SINK_GRADIENT, SLOPE_SUMS};

use super::kernels::BackwardKernels;
use super::launches::BackwardLaunches;
use crate::plan::modifiers::{StatesOfKernels, modifier_params};
use crate::plan::step::StepParams;
use crate::plan::{GpuCapabilities, Plan};

impl Plan {
    /// Adds the launches of a backward pass, except those without rows, whose grids are empty.
    pub(in crate::plan) fn add_backward(
        &mut self,
        kernels: &BackwardKernels,
        gpu: &GpuCapabilities,
    ) {
        let launches = BackwardLaunches::new(&self.problem, kernels, gpu);
        self.workspace_bytes = launches.workspace_bytes;
        let layout = launches.layout;
        let delta = StepParams::Delta(launches.delta, layout);
        self.add_unless_empty(kernels.delta, launches.delta_grid, delta);
        if let Some(states) = &launches.modified {
            self.add_modified_backward(kernels, &launches, states);
            return;
        }
        for chunk in &launches.chunks {
            let mut params = launches.params;
            params.ds = chunk.ds;
            for (kernel, grid) in [
                (kernels.keys, chunk.keys_grid),
                (kernels.queries, chunk.queries_grid),
            ] {
                // The one that rounds dq is no Hopper kernel.
                let maps = kernels.maps.filter(|_| kernel.family == Family::Wgmma);
                let params = match maps {
                    None => StepParams::Backward(params, layout),
                    Some(maps) => StepParams::HopperBackward(params, Box::new(maps), layout),
                };
                self.add_unless_empty(kernel, grid, params);
            }
        }
        if let Some(slopes) = launches.slopes {
            let params = StepParams::Slopes(launches.params, layout);
            self.add_unless_empty(slopes.kernel, slopes.grid, params);
            let sums = StepParams::SlopeSums(slopes.sums, layout);
            self.add_unless_empty(&SLOPE_SUMS, slopes.sums_grid, sums);
        }
    }

    /// Adds the launches of backward kernels with modifiers.
    fn add_modified_backward(
        &mut self,
        kernels: &BackwardKernels,
        launches: &BackwardLaunches,
        states: &StatesOfKernels,
    ) {
        let &BackwardLaunches { layout, params, .. } = launches;
        let chunk = &launches.chunks[0];
        let mut found = Vec::new();
        let keys = launches.modified_keys.iter();
        let keys = keys.map(|launch| (kernels.keys, launch.grid, launch.keep_mask));
        let queries = (kernels.queries, chunk.queries_grid, None);
        for (kernel, grid, keep_mask) in keys.chain([queries]) {
            if grid > 0 {
                let (mut modifiers, place) = self.states_of(kernel, launches, states, &mut found);
                if let (Some(parts), Some(part)) = (kernels.keep_mask, keep_mask) {
                    let (params, grid) = parts.launch(part, kernel, &modifiers);
                    *modifiers = params.modifiers;
                    let params = StepParams::KeepMask(Box::new(params), layout, place);
                    self.add(&KEEP_MASK, grid, params);
                }
                // The one that rounds dq is no Hopper kernel.
                let maps = kernels.maps.filter(|_| kernel.family == Family::Wgmma);
                let params = match maps.map(Box::new) {
                    None => StepParams::ModifiedBackward(params, modifiers, layout, place),
                    Some(maps) => {
                        StepParams::ModifiedHopperBackward(params, maps, modifiers, layout, place)
                    }
                };
                self.add(kernel, grid, params);
            }
        }
        if let Some(slopes) = &launches.slopes {
            if slopes.grid > 0 {
                let (modifiers, place) =
                    self.states_of(slopes.kernel, launches, states, &mut found);
                let params = StepParams::ModifiedSlopes(params, modifiers, layout, place);
                self.add(slopes.kernel, slopes.grid, params);
            }
            let sums = StepParams::SlopeSums(slopes.sums, layout);
            self.add_unless_empty(&SLOPE_SUMS, slopes.sums_grid, sums);
        }
        if let Some(bias) = launches.bias.filter(|bias| bias.grid > 0) {
            let (modifiers, place) = self.states_of(bias.kernel, launches, states, &mut found);
            let of = Box::new(bias.params);
            let params = StepParams::BiasGradient(params, modifiers, of, layout, place);
            self.add(bias.kernel, bias.grid, params);
        }
        if let Some(sinks) = launches.sinks {
            let grid = warp_per_row::grid(sinks.heads.into());
            self.add(
                &SINK_GRADIENT,
                grid,
                StepParams::SinkGradient(sinks, layout),
            );
        }
    }

    /// What `kernel` is given of modifiers. Adds the launch that finds its states, unless that of a kernel before, which are
    /// `found`, did.
    fn states_of(
        &mut self,
        kernel: &Instance,
        launches: &BackwardLaunches,
        states: &StatesOfKernels,
        found: &mut Vec<usize>,
    ) -> (Box<ModifierParams>, Option<u64>) {
        let Some(index) = states.index(kernel) else {
            return (Box::new(modifier_params(&self.problem)), None);
        };
        let offset = launches.layout.states() + states.offset(index);
        let launch = states.launch(index);
        if found.contains(&index) {
            let modifiers = launch.map_or_else(
                || modifier_params(&self.problem),
                |launch| launch.params.modifiers,
            );
            return (Box::new(modifiers), launch.map(|_| offset));
        }
        found.push(index);
        let (modifiers, place) = self.add_states(launch, offset);
        (Box::new(modifiers), place)
    }

    fn add_unless_empty(&mut self, kernel: &'static Instance, grid: u32, params: StepParams) {
        if grid > 0 {
            self.add(kernel, grid, params);
        }
    }
}
