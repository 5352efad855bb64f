//! The launches of a forward pass, and of attention to a cache.

use kernels_gpu::abi::{CheckCacheParams, ForwardParams, ModifierParams};
use kernels_gpu::instances::{CHECK_CACHE, Instance, TILE_LIST};
use kernels_gpu::tile::grid::TileGrid;

use super::backward::RESERVED_BYTES;
use super::decode::DecodeLaunch;
use super::hopper::{HopperForward, checked_cache_bytes};
use super::modifiers::StatesLaunch;
use super::step::StepParams;
use super::{Plan, WORKSPACE_ALIGN_BYTES};

impl Plan {
    /// Adds the launches of a Hopper kernel, for sequences with `fewest_queries` at least.
    pub(super) fn add_hopper(
        &mut self,
        instance: &'static Instance,
        hopper: Box<HopperForward>,
        params: &ForwardParams,
        fewest_queries: u32,
    ) {
        let tile = instance.wgmma().expect("a Hopper kernel has such a tile");
        let list = hopper.tile_list(params, tile);
        // Behind that of a decode kernel.
        let begin = (self.workspace_bytes as u64).next_multiple_of(WORKSPACE_ALIGN_BYTES);
        self.workspace_begin = begin;
        let bytes = HopperForward::workspace(list.as_ref()).bytes;
        self.workspace_bytes = (begin + bytes) as usize;
        let lens = self.add_cache_check(&hopper, params, fewest_queries);
        if let Some(list) = list {
            self.add(&TILE_LIST, 1, StepParams::TileList(list, lens));
        }
        let grid = hopper.schedule.clusters * tile.cluster;
        // A cache's has sinks at most, which are told with its pages.
        let params = match self.problem.modifiers().is_none() || hopper.pages.is_some() {
            true => StepParams::HopperForward(*params, hopper, lens),
            false => {
                let (modifiers, place) = self.add_forward_states(instance, params);
                StepParams::ModifiedHopperForward(*params, hopper, modifiers, place)
            }
        };
        self.add(instance, grid, params);
    }

    /// Adds the launch that checks a cache, if one is read; returns where in the workspace it leaves lengths, which lie behind what
    /// else there is.
    fn add_cache_check(
        &mut self,
        hopper: &HopperForward,
        params: &ForwardParams,
        fewest_queries: u32,
    ) -> Option<u64> {
        let pages = hopper.pages?;
        let offset = self.workspace_bytes as u64 - self.workspace_begin;
        self.workspace_bytes += checked_cache_bytes(&pages);
        let check = Box::new(CheckCacheParams {
            attention: params.attention,
            pages,
            kv_lens: None,
            status: None,
            fewest_queries,
            reserved: 0,
        });
        let check = StepParams::CheckCache(check, offset);
        self.add(&CHECK_CACHE, pages.batch, check);
        Some(offset)
    }

    /// Adds the launch of a decode kernel.
    pub(super) fn add_decode(&mut self, instance: &'static Instance, launch: DecodeLaunch) {
        self.workspace_bytes = launch.workspace_bytes;
        self.counter_bytes = Some(launch.counter_bytes);
        let params = StepParams::Decode(Box::new(launch.params), launch.scales);
        self.add(instance, launch.grid, params);
    }

    /// Adds the launches of a forward kernel with modifiers.
    pub(super) fn add_modified(&mut self, instance: &'static Instance, params: &ForwardParams) {
        let (modifiers, place) = self.add_forward_states(instance, params);
        let attention = &params.attention;
        let (batch, heads) = (attention.batch, attention.heads_q);
        let tiles = TileGrid::new(batch, heads, attention.seq_q, instance.block_m);
        let params = StepParams::ModifiedForward(*params, modifiers, place);
        self.add(instance, tiles.grid(), params);
    }

    /// Adds the launch that finds states for a forward kernel, behind what else there is in the workspace; returns what the
    /// kernel is given.
    fn add_forward_states(
        &mut self,
        instance: &Instance,
        params: &ForwardParams,
    ) -> (Box<ModifierParams>, Option<u64>) {
        let tile = [instance.block_m, instance.block_n];
        let states = StatesLaunch::new(&self.problem, &params.attention, tile);
        let others = (self.workspace_bytes as u64).max(RESERVED_BYTES);
        let offset = others.next_multiple_of(WORKSPACE_ALIGN_BYTES);
        let (modifiers, place) = self.add_states(states.as_ref(), offset);
        if let Some(states) = states {
            self.workspace_bytes = (offset + states.bytes) as usize;
        }
        (Box::new(modifiers), place)
    }
}
