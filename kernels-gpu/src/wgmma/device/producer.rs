//! The producer: one thread that draws tiles and keeps Q, K and V coming.

use core::marker::PhantomData;

use cuda_std::{mbarrier, tma};

use super::Launch;
use super::blocks::{cluster_range, row_begin};
use super::policy::Maps;
use super::work::{Dispatcher, Inbox, Keys, leads};
use crate::config::wgmma::{PANEL_COLS, PANEL_ROW_BYTES, Staging, WARPGROUP_ROWS, WgmmaTile};
use crate::pipeline::Ring;
use crate::tile::opaque;
use crate::tile::sequence::Sequence;
use crate::wgmma::schedule::Tile;
use crate::wgmma::tensor_map::parameter;

/// The next tile is drawn when so many blocks of this one are still to be loaded: time for the round trips of
/// drawing and announcing it.
const DRAW_AHEAD: u32 = 5;

/// Loads for tiles until there are no more.
///
/// # Safety
/// `launch` holds; one thread of the block calls it.
#[inline(always)]
pub unsafe fn produce<M: Maps>(launch: &Launch, tile: &WgmmaTile) {
    let Launch {
        params,
        smem,
        barriers,
        ..
    } = *launch;
    let slots = smem + tile.work_offset();
    let mut inbox = Inbox::new(slots, &barriers, tile);
    let dispatcher = Dispatcher {
        schedule: launch.schedule,
        tile,
        workspace: launch.workspace,
    };
    let mut loader = Loader::<M> {
        maps: PhantomData,
        launch,
        tile,
        q: Ring::producer(barriers.q_full, barriers.q_empty, tile.q_stages),
        k: Ring::producer(barriers.k_full, barriers.k_empty, tile.k_stages),
        v: Ring::producer(barriers.v_full, barriers.v_empty, tile.v_stages),
        owes_v: false,
    };
    let leader = leads(launch.rank);
    // SAFETY: forwarded to the caller. Loads go to stages the consumers have emptied.
    unsafe {
        while inbox.wait_alone() {
            let (place, sequence) = inbox.take_alone(&params.attention);
            let blocks = cluster_range(&sequence, tile, place, launch.packing());
            let last = blocks.end - 1;
            let keys = || inbox.keys(&params.attention, place, &sequence);
            if tile.q_in_registers || tile.q_stages > 1 {
                // There is room for Q early: it can come long before its tile.
                loader.load_q(place, &sequence);
                loader.load_k(last, keys());
            } else {
                loader.load_k(last, keys());
                loader.load_q(place, &sequence);
            }
            // Late, so that it is the next cluster to come free that takes the longest tile left.
            let draw_at = (blocks.begin + DRAW_AHEAD - 1).min(last);
            let mut n_block = blocks.end;
            while n_block > blocks.begin {
                n_block -= 1;
                // V trails K by a block, as PV trails QKᵀ.
                if n_block > blocks.begin {
                    loader.load_k(n_block - 1, keys());
                }
                loader.lend_v();
                loader.load_v(n_block, keys());
                if leader && n_block == draw_at {
                    dispatcher.announce_next(&inbox);
                }
            }
            loader.owes_v = matches!(tile.staging, Staging::OverV);
            inbox.release(true);
        }
        loader.lend_v();
    }
}

struct Loader<'a, M> {
    maps: PhantomData<M>,
    launch: &'a Launch<'a>,
    tile: &'a WgmmaTile,
    q: Ring,
    k: Ring,
    v: Ring,
    /// The last tile's output is yet to be staged in V's next stages.
    owes_v: bool,
}

impl<M: Maps> Loader<'_, M> {
    /// Start of shared memory. Hidden in a varlen kernel, whose producer has no register for what comes of it.
    #[inline(always)]
    fn smem(&self) -> u32 {
        if self.tile.varlen {
            opaque(self.launch.smem)
        } else {
            self.launch.smem
        }
    }

    /// Loads this block's Q.
    #[inline(always)]
    unsafe fn load_q(&mut self, place: Tile, sequence: &Sequence) {
        let tile = self.tile;
        // SAFETY: forwarded to the caller.
        unsafe {
            self.q.wait_empty();
            mbarrier::arrive_expect(self.q.full(), tile.consumers * tile.q_bytes());
            let mut warpgroup = 0;
            while warpgroup < tile.consumers {
                let row = row_begin(self.launch, tile, place, warpgroup);
                let query = sequence.q_begin + self.launch.packing().query(row);
                let mut panel = 0;
                while panel < tile.panels() {
                    let to = self.launch.smem
                        + (self.q.stage * tile.consumers + warpgroup) * tile.q_bytes()
                        + panel * tile.row_panel_bytes();
                    let col = panel * PANEL_COLS;
                    let from = [col, place.head, query, place.head_kv, sequence.batch];
                    tma::load5d(to, M::address::<{ parameter::Q }>(), from, self.q.full());
                    panel += 1;
                }
                warpgroup += 1;
            }
        }
        self.q.advance();
    }

    /// Lends V's next stages to the warpgroups for the last tile's output, if it is owed.
    #[inline(always)]
    unsafe fn lend_v(&mut self) {
        if !self.owes_v {
            return;
        }
        self.owes_v = false;
        let mut warpgroup = 0;
        while warpgroup < self.tile.consumers {
            // SAFETY: forwarded to the caller. The consumers release the stage as if it had been loaded.
            unsafe {
                self.v.wait_empty();
                mbarrier::arrive_if(true, self.v.full());
            }
            self.v.advance();
            warpgroup += 1;
        }
    }

    #[inline(always)]
    unsafe fn load_k(&mut self, n_block: u32, keys: Keys) {
        let tile = self.tile;
        let row = keys.begin + n_block * tile.block_n;
        let stage = self.smem() + tile.k_offset() + self.k.stage * tile.k_bytes();
        // SAFETY: forwarded to the caller.
        unsafe {
            self.load_block(
                &self.k,
                M::address::<{ parameter::K }>(),
                stage,
                tile.panels(),
                [row, keys.head, keys.batch],
            )
        };
        self.k.advance();
    }

    #[inline(always)]
    unsafe fn load_v(&mut self, n_block: u32, keys: Keys) {
        let tile = self.tile;
        let row = keys.begin + n_block * tile.block_n;
        let stage = self.smem() + tile.v_offset() + self.v.stage * tile.v_bytes();
        // SAFETY: forwarded to the caller.
        unsafe {
            self.load_block(
                &self.v,
                M::address::<{ parameter::V }>(),
                stage,
                tile.panels_v(),
                [row, keys.head, keys.batch],
            )
        };
        self.v.advance();
    }

    /// Loads this block's rows of a stage of K or V, for every block of the cluster.
    #[inline(always)]
    unsafe fn load_block(
        &self,
        ring: &Ring,
        map: u64,
        stage: u32,
        panels: u32,
        [row, head, batch]: [u32; 3],
    ) {
        let tile = self.tile;
        let rank = self.launch.rank;
        let rows = tile.kv_box_rows();
        let all_blocks = (1 << tile.cluster) - 1;
        // SAFETY: forwarded to the caller. The stage is empty in every block of the cluster.
        unsafe {
            ring.wait_empty();
            mbarrier::arrive_expect(ring.full(), panels * tile.kv_panel_bytes());
            let mut panel = 0;
            while panel < panels {
                let to = stage + panel * tile.kv_panel_bytes() + rank * rows * PANEL_ROW_BYTES;
                let from = [panel * PANEL_COLS, row + rank * rows, head, batch];
                if tile.cluster == 1 {
                    tma::load4d(to, map, from, ring.full());
                } else {
                    tma::load4d_multicast(to, map, from, ring.full(), all_blocks);
                }
                panel += 1;
            }
        }
    }
}
