//! A node's state: steps to chunks, chunks to groups and supers.

use cuda_std::cp_async::wait_group;
use cuda_std::thread::sync_threads;
use cuda_std::warp::uniform;

use super::codes::NanCodes;
use super::loader::{KvLoader, report};
use super::step::{QFragments, Steps, add_output, wait_k};
use super::tile::{ALL_POSITIONS, Tile};
use super::work::{Word, draw};
use super::{DecodeKernel, State, climb};
use crate::abi::CacheFault;
use crate::config::decode::DecodeConfig;
use crate::math::{exp2, fma};
use crate::tile::black_box;
use crate::tile::kv_tree::{FAN_OUT_SHIFT, SUPER};

/// Merges the state of the same rows over the keys after `into`'s. The one place where states meet, so that whoever merges
/// them gets the same bits.
#[inline(always)]
pub fn fold<const O_COLS: usize>(into: &mut State<O_COLS>, other: &State<O_COLS>) {
    for i in 0..2 {
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
    const O_COLS: usize,
    const K_STEPS: usize,
    const S_COLS: usize,
    const KEPT: usize,
    const KEPT_V: usize,
>(
    tile: &Tile<'_>,
    position: u32,
) -> State<O_COLS> {
    let config = K::CONFIG;
    let mut ring = Ring::new(config);
    let (begin, end) = tile.steps();
    let (begin, end) = (uniform(begin), uniform(end));
    let mut loader = KvLoader::new(tile, (begin, end));
    let q = {
        // All slots but the last, which Q passes through.
        let mut slot = 0;
        while slot + 1 < black_box(config.slots()) {
            match slot % 2 {
                0 => loader.copy_k(slot),
                _ => loader.copy_v(slot),
            }
            slot += 1;
        }
        QFragments::<K_STEPS>::load(tile, tile.slot_address(slot))
    };
    if position == ALL_POSITIONS {
        // Its answer is waited for while K and V are on their way.
        draw(&tile.params());
    }
    let steps = Steps { tile };
    let (mut chunk, mut node) = (State::new(), State::new());
    let mut nan = NanCodes::new();
    let mut step = begin;
    while step < end {
        wait_k::<KEPT>();
        let mut scores = q.scores::<K, S_COLS>(tile, tile.slot_address(ring.k()));
        let scales = steps.scale_scores(ring.k(), &mut scores);
        steps.show_maxima::<K::Element, S_COLS>(step, &mut scores);
        sync_threads();
        if config.slots().is_multiple_of(2) {
            loader.copy_v(ring.last_v());
            loader.copy_k(ring.k());
        } else {
            loader.copy_k(ring.last_v());
            loader.copy_v(ring.k());
        }
        steps.show_probabilities::<K, O_COLS, S_COLS>(&mut scores, &scales, &mut chunk);
        wait_group::<KEPT_V>();
        sync_threads();
        add_output::<K, O_COLS>(tile, tile.slot_address(ring.v()), &mut chunk, &mut nan);
        ring.advance();
        step += 1;
        if step % config.chunk_steps() == 0 || step == end {
            if config.is_e4m3 {
                nan.apply(&mut chunk);
                nan = NanCodes::new();
            }
            let level = uniform(tile.get(Word::Level));
            if level == 0 {
                node = chunk;
            } else {
                fold(&mut node, &chunk);
            }
            if level == SUPER && (step % group_steps(config) == 0 || step == end) {
                let (begin, _) = tile.steps();
                let is_first = step - begin <= group_steps(config) - begin % group_steps(config);
                add_group(tile, &mut node, position, is_first, step == end);
            }
            chunk = State::new();
        }
    }
    // What has been copied ahead is nothing, but is waited for before shared memory is used otherwise.
    wait_group::<0>();
    let is_bad = tile.get(Word::IsBad) != 0;
    if is_bad {
        report(tile, CacheFault::BadLength);
    }
    // The last barrier of the loop, or of Q, has shown what was found before it.
    if tile.get(Word::IsPoisoned) != 0 || is_bad {
        for row in &mut node.rows {
            row.row_sum = f32::NAN;
        }
    }
    node
}

/// Steps of a group.
#[inline(always)]
const fn group_steps(config: DecodeConfig) -> u32 {
    config.chunk_steps() << FAN_OUT_SHIFT
}

/// Folds a group's state into that of the item, a super, which lies in the item's partial result between groups: there is no
/// room for both in registers. After the last group `group` is the item's state, and otherwise that of nothing.
///
/// # Safety
/// As [`reduce`].
#[inline(always)]
unsafe fn add_group<const O_COLS: usize>(
    tile: &Tile<'_>,
    group: &mut State<O_COLS>,
    position: u32,
    is_first: bool,
    is_last: bool,
) {
    let mut node = State::<O_COLS>::new();
    if !is_first {
        node = climb::load(tile, tile.slot(), position);
    }
    fold(&mut node, group);
    if is_last {
        *group = node;
    } else {
        climb::store(tile, tile.slot(), &node, position);
        *group = State::new();
    }
}

/// The ring of K and V: the slot of the present step's K; V follows it.
struct Ring {
    slot: u32,
    config: DecodeConfig,
}

impl Ring {
    #[inline(always)]
    fn new(config: DecodeConfig) -> Self {
        Self { slot: 0, config }
    }

    #[inline(always)]
    fn at(&self, slot: u32) -> u32 {
        let slots = self.config.slots();
        if slot >= slots { slot - slots } else { slot }
    }

    #[inline(always)]
    fn k(&self) -> u32 {
        self.at(self.slot)
    }

    #[inline(always)]
    fn v(&self) -> u32 {
        self.at(self.slot + 1)
    }

    /// V of the step before.
    #[inline(always)]
    fn last_v(&self) -> u32 {
        self.at(self.slot + self.config.slots() - 1)
    }

    #[inline(always)]
    fn advance(&mut self) {
        let next = self.slot + 2;
        let slots = self.config.slots();
        self.slot = if next >= slots { next - slots } else { next };
    }
}
