//! A consumer warpgroup: 64 rows of scores, softmax and output.

use cuda_std::mbarrier;
use cuda_std::wgmma::{Descriptor, InFlight, KMajor, MnMajor};

use super::Launch;
use super::blocks::Ranges;
use super::epilogue;
use super::lanes::Lanes;
use super::policy::{Policy, Query};
use super::softmax::Rows;
use super::work::Inbox;
use crate::abi::Band;
use crate::barriers::Turns;
use crate::config::wgmma::WgmmaTile;
use crate::pipeline::Ring;
use crate::score;
use crate::tile::block_range::BlockRange;

/// One thread of a consumer warpgroup. All methods are inlined, and the arrays live in registers.
pub(super) struct Consumer<'a, K, const S: usize, const P: usize, const O: usize>
where
    K: Policy<S, P, O>,
{
    pub(super) launch: &'a Launch<'a>,
    /// Multiplies `q · k` where scores are plain: bits.
    pub(super) scale_log2: f32,
    pub(super) lanes: Lanes,
    pub(super) turns: Turns,
    pub(super) k: Ring,
    pub(super) v: Ring,
    pub(super) k_smem: Descriptor<KMajor>,
    pub(super) v_smem: Descriptor<MnMajor>,
    pub(super) policy: core::marker::PhantomData<K>,
    pub(super) acc_s: [f32; S],
    pub(super) p_frag: [u32; P],
    pub(super) acc_o: [f32; O],
    pub(super) rows: Rows,
    /// 0 until the tile's first PV, which overwrites `acc_o`.
    pub(super) accumulate: u32,
}

/// Computes tiles until there are no more.
///
/// # Safety
/// `launch` holds; all threads of consumer warpgroup `warpgroup` call it.
#[inline(always)]
pub unsafe fn consume<K, const S: usize, const P: usize, const O: usize>(
    launch: &Launch,
    warpgroup: u32,
) where
    K: Policy<S, P, O>,
    [f32; S]: InFlight,
    [f32; O]: InFlight,
{
    let tile = &K::TILE;
    let Launch {
        params,
        smem,
        barriers,
        ..
    } = *launch;
    let lanes = Lanes::new();
    let turns = Turns::new(warpgroup, tile.consumers);
    let mut consumer = Consumer::<K, S, P, O> {
        launch,
        scale_log2: score::plain_scale_log2(&params.attention.score),
        lanes,
        turns,
        k: Ring::consumer(barriers.k_full, barriers.k_empty, tile.k_stages),
        v: Ring::consumer(barriers.v_full, barriers.v_empty, tile.v_stages),
        k_smem: Descriptor::k_major(smem + tile.k_offset()),
        v_smem: Descriptor::mn_major(smem + tile.v_offset(), tile.kv_panel_bytes()),
        policy: core::marker::PhantomData,
        acc_s: [0.0; S],
        p_frag: [0; P],
        acc_o: [0.0; O],
        rows: Rows::new(),
        accumulate: 0,
    };
    let mut q = Ring::consumer(barriers.q_full, barriers.q_empty, tile.q_stages);
    let mut inbox = Inbox::new(smem + tile.work_offset(), &barriers, tile);
    // SAFETY: every wait below is matched by the producer's loads of the same tile, in the same order.
    unsafe {
        if tile.ping_pong {
            turns.start();
        }
        while inbox.wait() {
            let place = inbox.tile();
            let sequence = inbox.sequence(&params.attention, place);
            let ranges = Ranges::new(launch, tile, &sequence, place, warpgroup);
            consumer.skip(ranges.cluster.end - ranges.block.end, false);
            consumer.skip(ranges.block.end - ranges.own.end, tile.ping_pong);
            q.wait_full();
            let q_smem = smem + (q.stage * tile.consumers + warpgroup) * tile.q_bytes();
            let query = K::Query::load(q_smem, lanes);
            consumer.attend(&query, ranges.own, &q, &inbox);
            let place = inbox.tile();
            // Worked out again rather than kept.
            let sequence = inbox.sequence(&params.attention, place);
            if params.attention.mask.band.lower > -Band::OPEN {
                // Without a border on the left all ranges begin with block 0.
                let ranges = Ranges::new(launch, tile, &sequence, place, warpgroup);
                consumer.skip(ranges.own.begin - ranges.block.begin, tile.ping_pong);
                consumer.skip(ranges.block.begin - ranges.cluster.begin, false);
            }
            epilogue::store::<K, S, P, O>(
                launch,
                warpgroup,
                lanes,
                &consumer.acc_o,
                &consumer.rows,
                place,
                &sequence,
                &mut consumer.v,
            );
            inbox.release(lanes.lane == 0);
            q.advance();
        }
        epilogue::finish();
    }
}

impl<K, const S: usize, const P: usize, const O: usize> Consumer<'_, K, S, P, O>
where
    K: Policy<S, P, O>,
    [f32; S]: InFlight,
    [f32; O]: InFlight,
{
    pub(super) const TILE: WgmmaTile = K::TILE;

    /// Passes over key blocks that only others need: the other block of the cluster, or, with a turn for each,
    /// other warpgroups of this block.
    ///
    /// # Safety
    /// As [`consume`].
    #[inline(always)]
    unsafe fn skip(&mut self, blocks: u32, turns: bool) {
        let mut i = 0;
        while i < blocks {
            // SAFETY: forwarded to the caller.
            unsafe {
                self.k.wait_full();
                self.release_k();
                self.v.wait_full();
                self.release_v();
                if turns {
                    self.turns.take();
                    self.turns.hand_over();
                }
            }
            i += 1;
        }
    }

    /// From the last block's scores to the first block's output.
    ///
    /// # Safety
    /// As [`consume`]; Q has arrived.
    #[inline(always)]
    unsafe fn attend(&mut self, query: &K::Query, blocks: BlockRange, q: &Ring, inbox: &Inbox) {
        self.rows = Rows::new();
        self.accumulate = 0;
        // SAFETY: forwarded to the caller.
        unsafe {
            self.k.wait_full();
            self.scores(query);
            self.acc_s.wait::<0>();
            self.release_k();
            if Self::TILE.q_in_registers {
                // The multiplication has read the registers, so the loads that filled them are done.
                mbarrier::arrive_if(self.lanes.lane == 0, q.empty());
            }
            // The block whose probabilities are packed and whose PV is still to come.
            let mut n_block = blocks.end - 1;
            self.softmax(blocks, n_block, inbox);
            self.pack();

            let (fast_begin, fast_end) = if self.is_plain() {
                blocks.unmasked(Self::TILE.block_n)
            } else {
                (blocks.begin, blocks.begin)
            };
            // Blocks masked on the right, blocks without a mask, blocks masked on the left.
            let mut stop = fast_end;
            loop {
                while n_block > stop {
                    self.step_online(query, blocks, n_block - 1, inbox);
                    n_block -= 1;
                }
                if stop == blocks.begin {
                    break;
                }
                while n_block > fast_begin {
                    self.step_max_free(query);
                    n_block -= 1;
                }
                stop = blocks.begin;
            }

            if !Self::TILE.q_in_registers {
                mbarrier::arrive_if(self.lanes.lane == 0, q.empty());
            }
            // O += P V of the first block.
            self.v.wait_full();
            self.output();
            self.acc_o.wait::<0>();
            self.release_v();
        }
    }
}
