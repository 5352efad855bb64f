//! dq of a kernel that keeps keys, one block behind: the product of a block's dSᵀ, all consumers' keys of it, and K, added to
//! f32 in global memory ([`DqSums`], [`SumsOrder::Lanes`](crate::tile::dq_sums::SumsOrder::Lanes)).

use cuda_std::half::Half;
use cuda_std::warp::sync_warp;
use cuda_std::wgmma::{Descriptor, GemmSs, InFlight, MnMajor};
use cuda_std::{global, mbarrier, stmatrix, tma};

use super::barriers::Barriers;
use super::tile::Tile;
use crate::backward::side::Side;
use crate::config::wgmma::{ATOM_COLS, ATOM_ROW_BYTES, WARPGROUP_ROWS};
use crate::config::wgmma_backward::WgmmaBackwardConfig;
use crate::layout::fragment::{TILE_M, TILE_N};
use crate::layout::swizzle::VEC16_BYTES;
use crate::modifiers::Modifiers;
use crate::tile::black_box;
use crate::tile::dq_sums::{DqSums, LANE_BYTES, UNIT_BYTES};
use crate::wgmma::forward::lanes::Lanes;
use crate::wgmma::pipeline::PipelineState;

/// Vec16s of a row that a warp stores at once.
const STEP_VEC16S: u32 = 2;

/// A consumer's part of dq.
#[derive(Clone, Copy)]
pub struct Dq<'a> {
    pub config: &'a WgmmaBackwardConfig,
    pub barriers: &'a Barriers,
    pub warpgroup: u32,
    /// Number of the tile's first block among all that pass in this thread block, and of the present one.
    pub first_step: u32,
    pub step: u32,
    pub lanes: Lanes,
}

impl Dq<'_> {
    /// Leaves the warpgroup's rows of the present block's dS where all consumers read them.
    ///
    /// # Safety
    /// All threads of the warpgroup reach the same call, once a block.
    #[inline(always)]
    pub unsafe fn write_ds<const P_REGS: usize>(&self, smem: u32, ds_frag: &[u32; P_REGS]) {
        let block = self.barriers.ds_writer().at(self.step);
        let rows = self.warpgroup * WARPGROUP_ROWS * ATOM_ROW_BYTES;
        let first = smem + self.config.ds_offset(block.stage) + rows + self.lanes.matrix_row(0);
        block.producer_acquire();
        for step in 0..P_REGS / 4 {
            let four = [0, 1, 2, 3].map(|register| ds_frag[4 * step + register]);
            // Vec16s count in bits of their own, which the swizzle only flips.
            stmatrix::store4(first ^ (step as u32 * STEP_VEC16S * VEC16_BYTES), four);
        }
        tma::fence_shared();
        sync_warp();
        mbarrier::arrive_if(self.lanes.lane == 0, block.full_barrier());
    }

    /// The atom column of dq, and so of K, that this warpgroup multiplies.
    #[inline(always)]
    fn atom_column(&self) -> u32 {
        if self.config.shares_dq() {
            self.warpgroup
        } else {
            0
        }
    }

    /// The block before, whose dq is due.
    #[inline(always)]
    fn due(&self) -> PipelineState {
        self.barriers.ds_reader().at(self.step - 1)
    }

    /// Whether there is a block before, of which this warpgroup multiplies a part.
    #[inline(always)]
    pub fn is_due(&self) -> bool {
        let has_turn =
            self.config.shares_dq() || (self.step + 1) % self.config.consumers == self.warpgroup;
        (self.step != self.first_step) & has_turn
    }

    /// Starts the product of the block before: 64 queries and 64 columns.
    ///
    /// # Safety
    /// As [`GemmSs::multiply`]; it is due, and K stays.
    #[inline(always)]
    pub unsafe fn issue<E, const S_REGS: usize>(&self, smem: u32, acc: &mut [f32; S_REGS])
    where
        E: GemmSs<MnMajor, MnMajor, S_REGS, { WARPGROUP_ROWS as usize }>,
    {
        let config = self.config;
        let column = self.atom_column();
        let block = self.due();
        let ds = smem + config.ds_offset(block.stage);
        let operands = |consumer: u32| {
            let ds = ds + consumer * WARPGROUP_ROWS * ATOM_ROW_BYTES;
            let k = smem + config.kept_offset(0, consumer);
            let k = k + column * config.kept_atom_column_bytes();
            // Neither is wider than an atom column.
            (Descriptor::mn_major(ds, 0), Descriptor::mn_major(k, 0))
        };
        block.consumer_wait();
        let (ds, k) = operands(0);
        E::multiply(acc, ds, k);
        let mut consumer = 1;
        while consumer < config.consumers {
            let (ds, k) = operands(consumer);
            E::multiply_add(acc, ds, k);
            consumer += 1;
        }
    }

    /// Adds that product, which has been waited for, at `address`; times 2^−κ, where dS is.
    ///
    /// # Safety
    /// All lanes of the warp reach the same call; the sums were 0 before the launch.
    #[inline(always)]
    pub unsafe fn add<const S_REGS: usize>(&self, address: u64, acc: &[f32; S_REGS]) {
        self.due().consumer_release(self.lanes.lane, 1);
        for j in 0..S_REGS / 4 {
            let four = [0, 1, 2, 3].map(|register| acc[4 * j + register]);
            let address = address + (j as u32 * UNIT_BYTES) as u64;
            global::add4(address, four);
        }
    }

    /// Bytes from a block's sums to those of the next one of a head.
    #[inline(always)]
    pub fn block_bytes<S: Side, M: Modifiers>(&self, tile: &Tile<S, M>) -> u64 {
        let sums = DqSums::of_dims(&tile.params.attention, self.config.head_dim);
        (self.config.block_n / TILE_M as u32) as u64 * sums.row_bytes()
    }

    /// Where this lane adds its part of queries `begin ..` of query head `head`.
    ///
    /// # Safety
    /// The tile's words are written and visible.
    #[inline(always)]
    pub unsafe fn address<S: Side, M: Modifiers>(
        &self,
        tile: &Tile<S, M>,
        head: u32,
        begin: u32,
    ) -> u64 {
        let sums = DqSums::of_dims(&tile.params.attention, self.config.head_dim);
        let start = tile.params.dq_sums.map_or(0, |address| address.get());
        let row_unit = begin / TILE_M as u32 + self.lanes.warp;
        let col_unit = self.atom_column() * ATOM_COLS / TILE_N as u32;
        let in_row = col_unit * UNIT_BYTES + black_box(self.lanes.lane) * LANE_BYTES;
        start
            + sums.offset(tile.batch(), head, tile.sequence().q_begin)
            + row_unit as u64 * sums.row_bytes()
            + in_row as u64
    }
}
