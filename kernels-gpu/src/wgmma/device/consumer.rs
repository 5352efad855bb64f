//! A consumer warpgroup: 64 rows of scores, softmax and output.

use core::f32::consts::LOG2_E;

use cuda_std::half::Half;
use cuda_std::mbarrier;
use cuda_std::thread::thread_idx_x;
use cuda_std::warp;
use cuda_std::wgmma::{Descriptor, InFlight, OutputFromRegisters};

use super::Launch;
use super::blocks::{Ranges, row_begin};
use super::element::Element;
use super::epilogue;
use super::lanes::Lanes;
use super::mask::{Keys, below, col};
use super::policy::{Policy, Query};
use super::rescore::rescore;
use super::softmax::{PerRow, Rows, scale_rows};
use super::work::Inbox;
use crate::abi::Band;
use crate::barriers::Turns;
use crate::config::wgmma::{WARPGROUP, WgmmaTile};
use crate::pipeline::Ring;
use crate::tile::block_range::BlockRange;
use crate::tile::opaque;
use crate::tile::score::ScoreTransform;
use crate::tile::sequence::Sequence;
use crate::wgmma::schedule::Tile;

/// A thread's part of a block's sum above which the references are moved: far from f32's limit, and below
/// f16's, so that no probability that is rounded to f16 overflows.
const LARGE_SUM: f32 = 1024.0;

/// A thread's part of a block's sum above which the block is done again by the online softmax: 2¹²⁰, well inside
/// the range in which [`Rows::lower`] has an exact factor.
const HUGE_SUM: f32 = f32::from_bits((127 + 120) << 23);

/// One thread of a consumer warpgroup. All methods are inlined, and the arrays live in registers.
struct Consumer<'a, K, const S: usize, const P: usize, const O: usize>
where
    K: Policy<S, P, O>,
{
    launch: &'a Launch<'a>,
    /// Multiplies a score that enters the softmax as it is: bits.
    scale_log2: f32,
    lanes: Lanes,
    turns: Turns,
    k: Ring,
    v: Ring,
    k_smem: Descriptor,
    v_smem: Descriptor,
    policy: core::marker::PhantomData<K>,
    acc_s: [f32; S],
    p_frag: [u32; P],
    acc_o: [f32; O],
    rows: Rows,
    /// 0 until the tile's first PV, which overwrites `acc_o`.
    accumulate: u32,
}

/// The tile as this thread sees it.
#[derive(Clone, Copy)]
struct View {
    blocks: BlockRange,
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
    // SAFETY: the whole warpgroup is here.
    let turns = unsafe { Turns::new(warpgroup, tile.consumers) };
    let mut consumer = Consumer::<K, S, P, O> {
        launch,
        scale_log2: params.softmax_scale * LOG2_E,
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
            let sequence = inbox.sequence(params, place);
            let ranges = Ranges::new(launch, tile, &sequence, place, warpgroup);
            consumer.skip(ranges.block.begin - ranges.cluster.begin, false);
            consumer.skip(ranges.own.begin - ranges.block.begin, tile.ping_pong);
            q.wait_full();
            let q_smem = smem + (q.stage * tile.consumers + warpgroup) * tile.q_bytes();
            let query = K::Query::load(q_smem, lanes);
            let view = View { blocks: ranges.own };
            consumer.attend(&query, view, &q, &inbox);
            let place = inbox.tile();
            // Worked out again rather than kept.
            let sequence = inbox.sequence(params, place);
            if params.band.upper < Band::OPEN {
                // Without a border on the right all ranges end with the last block.
                let ranges = Ranges::new(launch, tile, &sequence, place, warpgroup);
                consumer.skip(ranges.block.end - ranges.own.end, tile.ping_pong);
                consumer.skip(ranges.cluster.end - ranges.block.end, false);
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
    const TILE: WgmmaTile = K::TILE;

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

    /// From the first block's scores to the last block's output.
    ///
    /// # Safety
    /// As [`consume`]; Q has arrived.
    #[inline(always)]
    unsafe fn attend(&mut self, query: &K::Query, view: View, q: &Ring, inbox: &Inbox) {
        let blocks = view.blocks;
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
            self.softmax(view, blocks.begin, inbox);
            self.pack();

            let (fast_begin, fast_end) = if self.plain() {
                blocks.unmasked(Self::TILE.block_n)
            } else {
                (blocks.end, blocks.end)
            };
            // The block before `next` has its probabilities packed and its PV still to come.
            let mut next = blocks.begin + 1;
            // Blocks masked on the left, blocks without a mask, blocks masked on the right.
            let mut stop = fast_begin;
            loop {
                while next < stop {
                    self.step_online(query, view, next, inbox);
                    next += 1;
                }
                if stop == blocks.end {
                    break;
                }
                while next < fast_end {
                    self.step_max_free(query);
                    next += 1;
                }
                stop = blocks.end;
            }

            if !Self::TILE.q_in_registers {
                mbarrier::arrive_if(self.lanes.lane == 0, q.empty());
            }
            // O += P V of the last block.
            self.v.wait_full();
            self.output();
            self.acc_o.wait::<0>();
            self.release_v();
        }
    }

    /// Whether scores enter the softmax as they are, up to a positive factor.
    #[inline(always)]
    fn plain(&self) -> bool {
        let params = self.launch.params;
        params.softcap <= 0.0 && params.softmax_scale > 0.0 && params.alibi_slopes == 0
    }

    /// Moves on by one block: S = Q Kᵀ of block `next` beside O += P V of the one before, then the online
    /// softmax, with masks where the block needs them.
    #[inline(always)]
    unsafe fn step_online(&mut self, query: &K::Query, view: View, next: u32, inbox: &Inbox) {
        // SAFETY: forwarded to the caller.
        unsafe {
            self.multiply(query);
            self.release_k();
            let rescale = self.softmax(view, next, inbox);
            self.finish_output();
            scale_rows(&mut self.acc_o, rescale);
            self.pack();
        }
    }

    /// Takes in a block in which a row of this warp outgrew its reference: by moving the reference, or, if the row may
    /// have outgrown f32, by the online softmax.
    #[inline(always)]
    unsafe fn tame(&mut self, query: &K::Query, sums: PerRow) {
        let Self { lanes, k, .. } = *self;
        // SAFETY: forwarded to the caller; the whole warp takes the same branch.
        unsafe {
            let factor = if warp::any(!(sums[0] <= HUGE_SUM && sums[1] <= HUGE_SUM)) {
                let k_smem = self.k_smem.offset(k.stage * Self::TILE.k_bytes());
                let k_smem = k_smem.address(self.launch.smem);
                rescore::<K::Element, _, S>(&Self::TILE, query, &mut self.acc_s, k_smem, lanes);
                // One lane releases Q and K, which all have read.
                warp::sync_warp();
                let factor = self.rows.update(&mut self.acc_s, self.scale_log2);
                if Self::PACKS_EARLY {
                    self.pack();
                }
                factor
            } else {
                self.rows.add(sums);
                let factor = self.rows.lower(sums);
                if Self::PACKS_EARLY {
                    self.scale_packed(factor);
                } else {
                    scale_rows(&mut self.acc_s, factor);
                }
                factor
            };
            scale_rows(&mut self.acc_o, factor);
            self.k.release(lanes.lane, Self::TILE.cluster);
        }
    }

    /// Whether the max-free step rounds probabilities as soon as it has them, which hides the rounding under other
    /// exponentials. It can where PV is done with the last ones, and where none that [`Self::tame`] can still save is
    /// rounded to ∞.
    const PACKS_EARLY: bool = !Self::TILE.overlap && K::Element::WIDE;

    /// As [`Self::step_online`] for a block without masks, under the references of the block before.
    #[inline(always)]
    unsafe fn step_max_free(&mut self, query: &K::Query) {
        // SAFETY: forwarded to the caller.
        unsafe {
            self.multiply(query);
            let sums = self.rows.exponentiate(&mut self.acc_s, self.scale_log2);
            if Self::PACKS_EARLY {
                self.pack();
            }
            let large = warp::any(!(sums[0] <= LARGE_SUM && sums[1] <= LARGE_SUM));
            // K of this block stays if its scores may be needed again. That this is asked here also keeps ptxas from
            // moving exponentials behind the wait for O.
            self.k
                .release_if(!large, self.lanes.lane, Self::TILE.cluster);
            self.finish_output();
            if large {
                self.tame(query, sums);
            } else {
                self.rows.add(sums);
            }
            self.k.advance();
            if !Self::PACKS_EARLY {
                self.pack();
            }
        }
    }

    /// Issues S = Q Kᵀ of the next block and O += P V of the present one, and waits for S.
    #[inline(always)]
    unsafe fn multiply(&mut self, query: &K::Query) {
        let tile = Self::TILE;
        // SAFETY: forwarded to the caller.
        unsafe {
            if tile.overlap {
                self.k.wait_full();
                if tile.ping_pong {
                    self.turns.take();
                }
                self.scores(query);
                self.v.wait_full();
                self.output();
                if tile.ping_pong {
                    self.turns.hand_over();
                }
                self.acc_s.wait::<1>();
            } else {
                self.v.wait_full();
                if tile.ping_pong {
                    self.turns.take();
                }
                self.output();
                self.k.wait_full();
                self.scores(query);
                if tile.ping_pong {
                    self.turns.hand_over();
                }
                self.acc_o.wait::<0>();
                self.acc_s.wait::<0>();
                self.release_v();
            }
        }
    }

    /// Waits for O += P V, unless [`Self::multiply`] has.
    #[inline(always)]
    unsafe fn finish_output(&mut self) {
        if Self::TILE.overlap {
            // SAFETY: forwarded to the caller.
            unsafe {
                self.acc_o.wait::<0>();
                self.release_v();
            }
        }
    }

    /// Starts S = Q Kᵀ.
    #[inline(always)]
    unsafe fn scores(&mut self, query: &K::Query) {
        let k = self.k_smem.offset(self.k.stage * Self::TILE.k_bytes());
        // SAFETY: forwarded to the caller.
        unsafe { query.scores(&mut self.acc_s, k) };
    }

    /// Starts O += P V.
    #[inline(always)]
    unsafe fn output(&mut self) {
        let v = self.v_smem.offset(self.v.stage * Self::TILE.v_bytes());
        // SAFETY: forwarded to the caller.
        unsafe { K::Element::multiply_add(&mut self.acc_o, &self.p_frag, v, self.accumulate) };
        // Hidden from the optimiser, which would make a second copy of the loop for its first round.
        self.accumulate = opaque(1);
    }

    /// Transforms and masks the scores of block `n_block` where needed, and turns them into probabilities.
    #[inline(always)]
    unsafe fn softmax(&mut self, view: View, n_block: u32, inbox: &Inbox) -> PerRow {
        let View { blocks } = view;
        let key_begin = n_block * Self::TILE.block_n;
        let right = blocks.needs_right_mask(key_begin, Self::TILE.block_n);
        let left = blocks.needs_left_mask(key_begin);
        let plain = self.plain();
        let mut scale_log2 = self.scale_log2;
        // SAFETY: forwarded to the caller.
        unsafe {
            if right || left || !plain {
                // What only such blocks need is worked out here rather than kept.
                let place = inbox.tile();
                let sequence = inbox.sequence(self.launch.params, place);
                let warpgroup = opaque(thread_idx_x()) / WARPGROUP - 1;
                let row = row_begin(self.launch, &Self::TILE, place, warpgroup) + self.lanes.row();
                if !plain {
                    scale_log2 = self.transform(place, &sequence, row, key_begin);
                }
                let keys = Keys {
                    lanes: self.lanes,
                    row,
                    packing: self.launch.packing(),
                    key_begin,
                    sequence: &sequence,
                };
                if right {
                    keys.hide_right(&mut self.acc_s);
                }
                if left {
                    keys.hide_left(&mut self.acc_s);
                }
            }
            self.rows.update(&mut self.acc_s, scale_log2)
        }
    }

    /// Applies a softcap, a slope or a scale that is not positive; returns what is left of the scale, in bits.
    #[inline(always)]
    unsafe fn transform(
        &mut self,
        place: Tile,
        sequence: &Sequence,
        row: u32,
        key_begin: u32,
    ) -> f32 {
        // Slopes come with packs of one head, so there is one slope, and a row is a query.
        let head = self.launch.query_head(place, 0);
        // SAFETY: forwarded to the caller; the tile's batch entry and head exist.
        let transform = unsafe { ScoreTransform::new(self.launch.params, place.batch, head, 0.0) };
        let corner = sequence.seq_kv as i32 - sequence.seq_q as i32;
        let distance = (row as i32 + corner) - (key_begin + self.lanes.col()) as i32;
        let scores = core::array::from_mut(&mut self.acc_s);
        transform.apply(
            scores,
            |_| distance,
            |register| col(register) - below(register),
        );
        transform.scale_log2
    }

    /// Rounds the probabilities to the left operand of P V.
    #[inline(always)]
    fn pack(&mut self) {
        let mut i = 0;
        while i < P {
            self.p_frag[i] = K::Element::pack(self.acc_s[2 * i], self.acc_s[2 * i + 1]);
            i += 1;
        }
    }

    /// Multiplies the rounded probabilities by their rows' factors, powers of two.
    #[inline(always)]
    fn scale_packed(&mut self, factor: PerRow) {
        let mut i = 0;
        while i < P {
            let [low, high] = K::Element::unpack(self.p_frag[i]);
            let factor = factor[i % 2];
            self.p_frag[i] = K::Element::pack(low * factor, high * factor);
            i += 1;
        }
    }

    #[inline(always)]
    unsafe fn release_k(&mut self) {
        // SAFETY: forwarded to the caller.
        unsafe { self.k.release(self.lanes.lane, Self::TILE.cluster) };
        self.k.advance();
    }

    #[inline(always)]
    unsafe fn release_v(&mut self) {
        // SAFETY: forwarded to the caller.
        unsafe { self.v.release(self.lanes.lane, Self::TILE.cluster) };
        self.v.advance();
    }
}
