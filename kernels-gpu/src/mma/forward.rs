//! Forward attention by `mma.sync`: the FlashAttention-2 loop (Dao 2023, algorithm 1).
//!
//! | who | does |
//! |---|---|
//! | block | owns `block_m` query rows of one head; walks the key blocks its rows can see |
//! | warp | owns `16 · warp_tiles` of the rows, all keys of a block and all head dimensions: nothing is exchanged between warps |
//! | every thread | copies its share of the next block of K and V with `cp.async` while computing on the current one |
//!
//! ```text
//! shared memory   stage 0, stage 1   K [block_n][head_dim], V [block_n][head_dim]
//!                 q_smem             [block_m][head_dim]; in stage 1 where Q moves to registers. The output tile
//!                                    takes its place in the end.
//!                 tile info          the tile's numbers
//! ```
//!
//! Accumulators, row states and fragments take nearly all of a thread's 255 registers. So nothing else that is the same
//! for a whole tile stays in one: it is read from shared memory or the parameters where it is needed ([`super::context`]).
//! The kernel branches only on warp-uniform votes: ptxas then proves the loop convergent.
//!
//! All tiles are swizzled ([`crate::layout::swizzle`]). One barrier a block of keys: it shows the block that has
//! arrived, and that nobody reads the one before it any more.
//!
//! A tile takes the fast path first, and the exact path if that overflows ([`Attempt`], [`crate::tile::non_finite`]).

use cuda_std::thread::{block_idx_x, sync_threads_or};
use cuda_std::warp::{any, lane_id};

use super::accumulator::{Accumulator, Row};
use super::context::{TileContext, WarpView};
use super::epilogue::Destination;
use super::gemm::{LaneAddress, QFragments, qk};
use super::kv_loader::KvLoader;
use super::non_finite::NonFiniteMask;
use super::tile_info::TileInfo;
use super::{Arithmetic, MmaKernel, ieee};
use crate::abi::ForwardParams;
use crate::layout::swizzle::row_bytes;
use crate::modifiers::Modifiers;
use crate::score::ScoreTransform;
use crate::tile::black_box;
use crate::tile::grid::{BlockCoord, TileGrid};
use crate::tile::l2::sections_of_queries;
use crate::tile::softmax::largest;

/// One pass over all tiles of the launch.
///
/// # Safety
/// `params` describes live allocations that hold every element it can address, and the launch has the
/// instance's block size and shared memory.
#[inline(always)]
pub unsafe fn forward<
    K: MmaKernel,
    const ROWS: usize,
    const S_COLS: usize,
    const O_COLS: usize,
    const K_STEPS: usize,
>(
    params: &ForwardParams,
    modifiers: &K::Modifiers,
) {
    const {
        assert!(
            K::Modifiers::IS_NONE || !K::Element::IEEE_WHEN_EXACT,
            "f32's own arithmetic knows no hidden or dropped pairs"
        );
    }
    let attention = &params.attention;
    let block_m = K::CONFIG.block_m() as u32;
    let tiles = TileGrid::new(attention.batch, attention.heads_q, attention.seq_q, block_m);
    // Where tiles differ in length, all heads' last ones would wait for the last head's longest.
    let sections = sections_of_queries(attention, K::Element::BYTES, tiles.m_blocks());
    let coord = tiles.get_by_sections(block_idx_x(), sections);
    // SAFETY: forwarded to the caller; the launch has a block for each tile.
    unsafe { forward_tile::<K, ROWS, S_COLS, O_COLS, K_STEPS>(params, modifiers, coord) };
}

/// How a tile is computed: one of three ways, of which each has the next for what it cannot do. Two flags rather than an
/// enum, as a flag is a predicate for the whole loop and an enum a register.
#[derive(Clone, Copy)]
struct Attempt {
    /// Whether each block's scores are compared with the maxima before they are used.
    is_checked: bool,
    is_exact: bool,
}

impl Attempt {
    /// The fast path. Rows that have a maximum keep it, stale ([`crate::tile::row_state`]), while their sums stay in
    /// range, and keys that are masked out rely on 0 · v = 0. Both go wrong only by making an output or a sum ∞ or NaN.
    const FAST: Self = Self {
        is_checked: false,
        is_exact: false,
    };

    /// The attempt after one that overflowed. For f16, whose probabilities overflow at 2¹⁶ times the maximum's, first
    /// the fast path once more with each block's scores checked; for f32 with the online softmax; then the exact path: the
    /// online softmax, and V without its non-finite elements, or f32's own arithmetic. What overflows there does so because of the inputs.
    #[inline(always)]
    fn after_overflow<E: Arithmetic>(self) -> Self {
        Self {
            is_checked: true,
            // A value that overflows bf16 overflows f32's sums too, so that checking scores finds nothing new.
            is_exact: self.is_checked || (E::LARGEST_EXPONENT.is_none() && !E::IEEE_WHEN_EXACT),
        }
    }

    /// Whether rows take the maximum of every block: the online softmax.
    #[inline(always)]
    fn is_online<E: Arithmetic>(self) -> bool {
        self.is_exact || (E::IEEE_WHEN_EXACT && self.is_checked)
    }
}

/// A sum or an output left f32's range, or is NaN.
struct Overflow;

/// Computes one tile of `o` and `lse`.
///
/// # Safety
/// As [`forward`]; the whole block must call it with the same tile.
#[inline(always)]
unsafe fn forward_tile<
    K: MmaKernel,
    const ROWS: usize,
    const S_COLS: usize,
    const O_COLS: usize,
    const K_STEPS: usize,
>(
    params: &ForwardParams,
    modifiers: &K::Modifiers,
    coord: BlockCoord,
) {
    let tile = TileContext::new(params, modifiers, K::CONFIG, coord);
    if tile.is_empty() {
        return;
    }
    let scale = tile.transform::<K::Element>();
    let mut attempt = Attempt::FAST;
    loop {
        let mut acc = Accumulator::<ROWS, O_COLS>::new();
        // A loop of its own, so that the other's registers do not serve both.
        let outcome = if K::Element::IEEE_WHEN_EXACT && attempt.is_exact {
            try_tile::<K, ROWS, S_COLS, O_COLS, K_STEPS, true>(&tile, &scale, attempt, &mut acc)
        } else {
            try_tile::<K, ROWS, S_COLS, O_COLS, K_STEPS, false>(&tile, &scale, attempt, &mut acc)
        };
        match outcome {
            Ok(()) => return store::<K, ROWS, O_COLS>(&tile, attempt, &acc),
            Err(Overflow) => attempt = attempt.after_overflow::<K::Element>(),
        }
    }
}

/// Accumulates the tile's blocks of keys; in f32's own arithmetic if `IEEE`.
///
/// # Safety
/// As [`forward_tile`].
#[inline(always)]
unsafe fn try_tile<
    K: MmaKernel,
    const ROWS: usize,
    const S_COLS: usize,
    const O_COLS: usize,
    const K_STEPS: usize,
    const IEEE: bool,
>(
    tile: &TileContext<K::Modifiers>,
    scale: &ScoreTransform,
    attempt: Attempt,
    acc: &mut Accumulator<ROWS, O_COLS>,
) -> Result<(), Overflow> {
    let mut q = QFragments::<K, ROWS, K_STEPS>::new();
    let mut kv = KvLoader::<K>::new(tile, non_finite_mask::<K>(tile, attempt));
    if tile.begin < tile.end {
        kv.load_first(&mut q);
    }
    let mut may_skip_max = false;
    let mut n_block = tile.begin;
    while n_block < tile.end {
        let next_block = tile.next(n_block);
        kv.wait(n_block, next_block);
        let lane = black_box(lane_id());
        let mut view = tile.warp_view(n_block);
        if K::CONFIG.stages == 1 {
            // All warps pass the barrier at V.
            view.needs_mask |= view.masked_out;
            view.masked_out = false;
        }
        let (k_smem, columns) = (kv.k_smem(), K::CONFIG.columns());

        if !view.masked_out {
            let v_smem = k_smem + K::CONFIG.operand_bytes();
            let v = K::Element::v_place(v_smem, columns, lane);

            // S = Q Kᵀ
            let mut acc_s = if IEEE {
                ieee::qk::<K, ROWS, S_COLS>(tile.warp_q(), k_smem, lane)
            } else {
                let k = LaneAddress::k(k_smem, columns, lane);
                qk::<K, ROWS, S_COLS, K_STEPS>(&q, tile.q_address(lane), k)
            };
            kv.wait_v(next_block);

            // softmax
            let block = ScoreBlock {
                n_block,
                lane,
                view,
                scale,
                attempt,
            };
            may_skip_max =
                block.softmax::<K, ROWS, S_COLS, O_COLS>(tile, acc, &mut acc_s, may_skip_max);

            // O += P V
            let kept = tile.kept::<ROWS, S_COLS>(n_block, lane);
            let Accumulator { rows, acc_o } = acc;
            let mut finish = |score: &mut f32, i: usize, j: usize| {
                rows[i].accumulate(score, scale.scale_log2);
                if !K::Modifiers::IS_NONE && kept[i] >> j & 1 == 0 {
                    *score = 0.0;
                }
            };
            if IEEE {
                for i in 0..ROWS {
                    for j in 0..S_COLS {
                        finish(&mut acc_s[i][j], i, j);
                    }
                }
                if view.needs_mask {
                    tile.mark_masked_out(&mut acc_s, n_block, lane);
                }
                ieee::pv::<K, ROWS, S_COLS, O_COLS>(acc_o, &acc_s, v_smem, lane);
            } else {
                K::Element::pv(acc_o, &mut acc_s, v, finish);
            }
            let limit = K::Element::STALE_SUM_LIMIT;
            may_skip_max = !any(!may_skip_max || Row::any_sum_reaches(&acc.rows, limit));
        }
        kv.advance();
        n_block = next_block;
    }
    // The barrier also frees the stages. The vote's result is known to be the same in all lanes, without which everything
    // in the loop over attempts would count as divergent.
    let overflowed = acc.has_overflowed() && !attempt.is_exact;
    if any(sync_threads_or(overflowed)) {
        Err(Overflow)
    } else {
        Ok(())
    }
}

/// The mask of the tile's non-finite elements of V, if the attempt takes them out.
#[inline(always)]
fn non_finite_mask<K: MmaKernel>(
    tile: &TileContext<K::Modifiers>,
    attempt: Attempt,
) -> Option<NonFiniteMask> {
    let mask = NonFiniteMask::new(tile.stages, K::CONFIG);
    (attempt.is_exact && !K::Element::IEEE_WHEN_EXACT).then_some(mask)
}

/// A block of scores, and how it is taken in.
struct ScoreBlock<'a> {
    n_block: u32,
    lane: u32,
    view: WarpView,
    /// The tile's transform, of which only `scale_log2` and `is_plain` are kept.
    scale: &'a ScoreTransform,
    attempt: Attempt,
}

impl ScoreBlock<'_> {
    /// Makes the rows' maxima fit for the block of `q · k` in `acc_s`, which become scores; leaves them stale if
    /// `may_skip_max` says that they may be and the block is in range. Returns whether the next block may leave them stale.
    ///
    /// # Safety
    /// All 32 lanes must reach the same call.
    #[inline(always)]
    unsafe fn softmax<K: MmaKernel, const ROWS: usize, const S_COLS: usize, const O_COLS: usize>(
        &self,
        tile: &TileContext<K::Modifiers>,
        acc: &mut Accumulator<ROWS, O_COLS>,
        acc_s: &mut [[f32; S_COLS]; ROWS],
        may_skip_max: bool,
    ) -> bool {
        let needs_mask = self.view.needs_mask;
        let mut in_range = may_skip_max && !needs_mask;
        if let Some(limit) = K::Element::LARGEST_EXPONENT
            && self.attempt.is_checked
        {
            let mut beyond = false;
            for i in 0..ROWS {
                beyond |= acc.rows[i].p_exceeds(largest(&acc_s[i]), self.scale.scale_log2, limit);
            }
            in_range &= !any(beyond);
        }
        if in_range {
            return may_skip_max;
        }
        let transform = tile.transform::<K::Element>();
        tile.finish_scores(acc_s, &transform, self.n_block, self.lane, needs_mask);
        acc.update_max(acc_s, &transform);
        // Transformed scores always take the online softmax.
        let mut may_skip_max = self.scale.is_plain && !self.attempt.is_online::<K::Element>();
        if K::Element::LARGEST_EXPONENT.is_some() {
            // A maximum over part of a block may be far below the next, for which f16 has no room.
            may_skip_max &= !needs_mask;
        }
        for row in &acc.rows {
            may_skip_max &= row.has_max();
        }
        may_skip_max
    }
}

/// Writes the tile's rows of `o` and `lse`.
///
/// # Safety
/// As [`forward_tile`].
#[inline(always)]
unsafe fn store<K: MmaKernel, const ROWS: usize, const O_COLS: usize>(
    tile: &TileContext<K::Modifiers>,
    attempt: Attempt,
    acc: &Accumulator<ROWS, O_COLS>,
) {
    let tile_row = tile.warp_row();
    let TileInfo {
        coord, sequence, ..
    } = tile.info();
    let destination = Destination {
        params: &tile.params(),
        modifiers: tile.modifiers,
        sequence,
        head: coord.head,
        row_begin: tile.m_begin() + tile_row,
        o_smem: tile.q_smem + tile_row * row_bytes(K::CONFIG.columns()),
        non_finite: non_finite_mask::<K>(tile, attempt),
        tile_row,
    };
    destination.store::<K, ROWS, O_COLS>(acc);
}
