//! A node's state: steps to chunks, chunks to groups and supers.

use cuda_std::thread::sync_threads;
use cuda_std::warp::{any, sync_warp, uniform};

use super::climb::Partials;
use super::codes::{NanCodes, Scales, of_head};
use super::loader::{KvLoader, report};
use super::merge::merge_warps;
use super::step::{QFragments, WarpState, complete, copy_q, mask_scores, wait};
use super::tile::{ALL_POSITIONS, Tile};
use super::work::{Word, draw};
use super::{DecodeKernel, State};
use crate::abi::CacheFault;
use crate::config::decode::DecodeConfig;
use crate::layout::key_tree::SUPER;
use crate::math::{exp2, fma};
use crate::tile::black_box;

/// Merges the state of the same rows over the keys after `into`'s. The one place where states meet, so that whoever merges
/// them gets the same bits.
#[inline(always)]
pub fn fold<const HALVES: usize, const O_COLS: usize>(
    into: &mut State<HALVES, O_COLS>,
    other: &State<HALVES, O_COLS>,
) {
    for i in 0..HALVES {
        let [ours, theirs] = into.rows[i].merge(&other.rows[i]);
        let (ours, theirs) = (exp2(0.5 * ours), exp2(0.5 * theirs));
        for col in 0..O_COLS {
            let other = other.acc_o[i][col] * theirs;
            into.acc_o[i][col] = fma(other, theirs, into.acc_o[i][col] * ours * ours);
        }
    }
}

/// The state of the item's node, for keys that the queries at `position` see.
///
/// # Safety
/// As [`decode`](super::decode); the whole block calls it with the same tile, and nobody accesses shared memory.
#[inline(always)]
pub unsafe fn reduce<
    K: DecodeKernel,
    const HALVES: usize,
    const O_COLS: usize,
    const D_STEPS: usize,
    const S_COLS: usize,
    const KEPT: usize,
>(
    tile: &Tile<'_>,
    position: u32,
) -> State<HALVES, O_COLS> {
    let config = K::CONFIG;
    let (begin, end) = tile.steps();
    let (begin, end) = (uniform(begin), uniform(end));
    let mut ring = Ring::new(KvLoader::new(tile, (begin, end)), config);
    let stage = tile.slot_address(config.slots() - 1);
    // It arrives while Q does.
    let k_scale = of_head(tile, &tile.scales.k);
    copy_q(tile, stage);
    let q = ring.fill(|| QFragments::<HALVES, D_STEPS>::load::<K, KEPT>(k_scale, stage));
    if position == ALL_POSITIONS {
        // Its answer is waited for while K and V are on their way.
        draw(&tile.params());
    }
    let (mut warp, mut node) = (WarpState::new(), State::new());
    let mut nan = NanCodes::new();
    let mut step = begin;
    while step < end {
        let mut products = [[[0.0; S_COLS]; 2]; 2];
        for part in 0..config.parts() {
            wait::<KEPT>();
            q.add_products::<K, S_COLS>(&mut products, tile, ring.slot, part);
            ring.refill(part);
        }
        let mut scores = complete(&products);
        let scales = Scales::of_keys(tile, &ring.loader.scales());
        if config.is_e4m3 {
            q.scale(tile, &mut scores, &scales);
        }
        mask_scores::<K::Element, HALVES, S_COLS>(tile, step, &mut scores);
        let p = warp.add_scores::<K, S_COLS>(tile, &mut scores, &scales);
        step += 1;
        let last = config.parts() - 1;
        for part in 0..last {
            wait::<KEPT>();
            warp.add_output::<K>(tile, &p, (ring.slot, part), &mut nan);
            ring.refill(config.parts() + part);
        }
        wait::<KEPT>();
        warp.add_output::<K>(tile, &p, (ring.slot, last), &mut nan);
        if step.is_multiple_of(config.chunk_steps()) || step == end {
            if config.is_e4m3 && !config.has_cvt {
                nan.apply(&mut warp);
                nan = NanCodes::new();
            }
            let chunk = merge_warps::<K, HALVES, O_COLS, D_STEPS>(
                tile,
                &mut warp,
                of_head(tile, &tile.scales.v),
                ring.slot,
            );
            add_chunk(tile, &mut node, chunk, (step, end), position);
            warp = WarpState::new();
            if any(step < end) {
                // Nobody reads the slot any more.
                sync_threads();
            }
        }
        if any(step < end) {
            ring.refill(config.parts() + last);
        }
    }
    // What has been copied ahead is nothing: no group that is still open has a copy.
    let is_bad = tile.get(Word::IsBad) != 0;
    if is_bad {
        report(tile, CacheFault::BadLength);
    }
    // The last barrier of a chunk, or of Q, has shown what was found before it.
    if tile.get(Word::IsPoisoned) != 0 || is_bad {
        for row in &mut node.rows {
            row.row_sum = f32::NAN;
        }
    }
    node
}

/// Folds a chunk, which ends with step `step`, into the item's state, of which `end` is the end.
///
/// # Safety
/// As [`reduce`].
#[inline(always)]
unsafe fn add_chunk<const HALVES: usize, const O_COLS: usize>(
    tile: &Tile<'_>,
    node: &mut State<HALVES, O_COLS>,
    chunk: State<HALVES, O_COLS>,
    (step, end): (u32, u32),
    position: u32,
) {
    let level = uniform(tile.get(Word::Level));
    if level == 0 {
        *node = chunk;
    } else {
        fold(node, &chunk);
    }
    let group_steps = group_steps(tile.config);
    if level == SUPER && (step.is_multiple_of(group_steps) || step == end) {
        let (begin, _) = tile.steps();
        let is_first = step - begin <= group_steps - begin % group_steps;
        add_group(tile, node, position, is_first, step == end);
    }
}

/// Steps of a group.
#[inline(always)]
const fn group_steps(config: DecodeConfig) -> u32 {
    config.chunk_steps() << config.tree().group_shift
}

/// Folds a group's state into that of the item, a super, which lies in the item's partial result between groups: there is no
/// room for both in registers. After the last group `group` is the item's state, and otherwise that of nothing.
///
/// # Safety
/// As [`reduce`].
#[inline(always)]
unsafe fn add_group<const HALVES: usize, const O_COLS: usize>(
    tile: &Tile<'_>,
    group: &mut State<HALVES, O_COLS>,
    position: u32,
    is_first: bool,
    is_last: bool,
) {
    let (partials, has_row) = (Partials::new(tile), tile.has_rows(position));
    let mut node = State::<HALVES, O_COLS>::new();
    if !is_first {
        node = partials.load(tile.slot(), &has_row);
    }
    fold(&mut node, group);
    if is_last {
        *group = node;
    } else {
        partials.store(tile.slot(), &node, &has_row);
        *group = State::new();
    }
}

/// A warp's way round the ring of K and V, from part to part.
struct Ring<'a> {
    loader: KvLoader<'a>,
    config: DecodeConfig,
    /// Where the part lies that is next computed on.
    slot: u32,
}

impl<'a> Ring<'a> {
    #[inline(always)]
    fn new(loader: KvLoader<'a>, config: DecodeConfig) -> Self {
        Self {
            loader,
            config,
            slot: 0,
        }
    }

    /// Starts copying into all slots, into the last after `free_last`.
    ///
    /// # Safety
    /// As [`reduce`].
    #[inline(always)]
    unsafe fn fill<T>(&mut self, free_last: impl FnOnce() -> T) -> T {
        let last = self.config.slots() - 1;
        let parts = 2 * self.config.parts() as u32;
        let mut slot = 0;
        while slot < black_box(last) {
            self.copy_early(slot % parts, slot);
            slot += 1;
        }
        let staged = free_last();
        self.loader.copy_part((last % parts) as usize, last);
        staged
    }

    /// Starts copying part `index` of a step, a number that is not known when this is compiled: into a slot before the last.
    #[inline(always)]
    unsafe fn copy_early(&mut self, index: u32, slot: u32) {
        let early = self.config.slots() as usize - 1;
        let parts = (2 * self.config.parts()).min(early);
        for known in 0..parts {
            if index == known as u32 {
                self.loader.copy_part(known, slot);
            }
        }
    }

    /// Goes on to the next part, and starts copying into where part `index` of the step has been.
    ///
    /// # Safety
    /// The warp, all lanes of which reach the same call, is done with that part.
    #[inline(always)]
    unsafe fn refill(&mut self, index: usize) {
        let slots = self.config.slots();
        let ahead = (index + slots as usize) % (2 * self.config.parts());
        sync_warp();
        self.loader.copy_part(ahead, self.slot);
        self.slot = if self.slot + 1 == slots {
            0
        } else {
            self.slot + 1
        };
    }
}
