//! Where borders lie, of blocks and of what rows see. A problem's place is a number, its shift.

use ferroflash::Mask;
use ferroflash_testing::cases::Lengths;
use ferroflash_tests::schedules::of_text;
use kernels_gpu::config::wgmma::WARPGROUP_ROWS;
use kernels_gpu::instances::{Family, Instance};

use super::{Scores, is_of_hopper};

/// A shift of packed sequences, of which the last begins behind another, and of two heads, where any kernel takes them.
pub const PACKED: usize = 2;
/// A shift at which operands have a few components less, so that the last vec16 of a row is cut; fp32 kernels have those among packed ones.
pub const CUT: usize = 3;
/// A shift of so few keys that a tile of rows and more see none.
pub const FEW_KEYS: usize = 4;
/// A shift at which rows see all keys before theirs and two blocks behind, so that tiles of any size see blocks whole, and operands have so
/// many components less that a warp has units of columns that do not exist: it shows in counts of instructions alone.
pub const WHOLE: usize = 5;
/// A shift of few rows of two batch entries, two KV heads and two query heads each, which Hopper's copies name in coordinates of their own.
pub(super) const HEADS: usize = 6;
/// A shift of packed sequences whose diagonals lie so far apart that both borders go through nearly every element that a thread of any
/// tile has, of whichever side the tile keeps.
pub(super) const DIAGONALS: usize = 8;

/// The keys that rows see: those beside their own; or so many before it that the first ones lie in another block than the last, or that
/// there is no first one, and many blocks are seen whole. None is far behind it.
///
/// A thread has rows 8 apart and every fourth pair of columns, and the last block of a tile is the one that its last row needs: which
/// elements of which blocks a border goes through depends on where it is. Shifts move both borders, by 8 and by half a block.
pub(super) fn mask(instance: &Instance, scores: Scores, shift: usize) -> Mask {
    if let Some(row) = last_seeing_row(instance, scores, shift) {
        let lower = Some(few_keys(instance, scores) as i32 - 1 - row as i32);
        return Mask::Band { lower, upper: None };
    }
    if shift == DIAGONALS {
        let [left, right] = [12, 4].map(Some);
        return Mask::Window { left, right };
    }
    if shift == FEW_KEYS {
        let [left, right] = match instance.family {
            // So that each row of a thread sees keys of four of its columns, which kernels ask for together.
            Family::Simt => [32; 2],
            _ => [17, 0],
        }
        .map(Some);
        return Mask::Window { left, right };
    }
    let (block, eight) = (instance.block_n, 8 * (shift as u32 / 2));
    if shift == WHOLE || has_many_blocks(instance, shift) {
        // With many, warpgroups begin with different blocks: in all tiles of a block, not its last alone.
        let left = has_many_blocks(instance, shift).then_some(4 * block + 30);
        let right = Some(2 * block);
        return Mask::Window { left, right };
    }
    // Threads of fp32 kernels have rows 8 or 16 apart, and keys 16 apart.
    let is_simt = instance.family == Family::Simt && !hides_blocks(instance, scores, shift);
    if is_simt && matches!(shift, 1 | PACKED) {
        let [left, right] = match shift {
            1 => [block, 12 + block / 2],
            _ => [49, 52],
        }
        .map(Some);
        return Mask::Window { left, right };
    }
    if scores == Scores::Poisoned && shift == CUT {
        // So few that they do not explain every component that is not finite.
        let [left, right] = [17, 12].map(Some);
        return Mask::Window { left, right };
    }
    let half = shift as u32 % 2 * (block / 2);
    let left = match (scores, shift) {
        (Scores::Bent | Scores::Capped, 1) => None,
        // The last block that is taken is then one that is seen whole, which is computed again.
        (Scores::Fallen, _) => None,
        (Scores::Bent, _) | (_, 0) => Some(17 + eight + half),
        _ => Some(block + 17 + eight + half),
    };
    let right = Some(12 + eight + half);
    Mask::Window { left, right }
}

/// Two tiles of rows, the second with a few, and three blocks of keys, the last with a few or, every other time, whole; four where rows
/// of a tile and tiles of a cluster may begin with different blocks, or once as many keys as rows, so that a cluster that takes all
/// tiles leaves blocks to others at every stage of its pipelines. Of packed sequences another is before them, or behind.
pub(super) fn lengths(
    instance: &Instance,
    scores: Scores,
    shift: usize,
    is_packed: bool,
) -> Lengths {
    const SHORT: (usize, usize) = (19, 23);
    let shortest = instance.wgmma().map_or(0, |config| config.min_rows);
    let rows = (instance.block_m * instance.cluster).max(instance.block_n);
    let rows = (rows + 9).max(shortest) as usize;
    let whole = match (instance.wgmma(), shift) {
        (None, WHOLE) => (instance.block_m / instance.block_n).max(2),
        (None, _) => 2,
        (Some(_), 0) => (rows as u32 / instance.block_n).max(3),
        (Some(_), _) if has_many_blocks(instance, shift) => 6,
        (Some(_), _) => 3,
    };
    let few = if scores.lie_apart(shift) { 0 } else { 9 };
    let keys = (whole * instance.block_n + few) as usize;
    let (rows, keys) = match shift {
        FEW_KEYS if instance.family == Family::Simt => (rows + 128, 64),
        FEW_KEYS => (2 * rows, few_keys(instance, scores)),
        HEADS => ((instance.block_n as usize + 9).max(shortest as usize), keys),
        _ => (rows, keys),
    };
    match (is_packed, shift) {
        (false, HEADS) => Lengths::Dense {
            batch: 2,
            seq_q: rows,
            seq_kv: keys,
        },
        (false, _) => Lengths::one(rows, keys),
        // Diagonals 24 keys apart, from one that the first queries see no key by to one by which no query sees the first keys.
        (true, DIAGONALS) => Lengths::Varlen(vec![(152, 136), (130, 138), (130, 162)]),
        // As many heads are worth few rows. The last has fewer than the first, and begins behind it, so that its first block is another if
        // it were as long.
        (true, PACKED) if !is_of_hopper(instance) => {
            let block = instance.block_n as usize;
            let [first, second] = match hides_blocks(instance, scores, shift) {
                // So long that every element of a thread is of a pair; and blocks of which the middle one is hidden.
                true => [151, 2 * block + 60],
                false => [23, block + 40],
            };
            Lengths::Varlen(vec![(158, first), (24, second), (3, 5)])
        }
        (true, PACKED) => Lengths::Varlen(vec![SHORT, (rows, keys)]),
        (true, _) => Lengths::Varlen(vec![(rows, keys), SHORT]),
    }
}

/// Of a forward kernel of Hopper's, the first row of a part of a tile, if it is to be the last one that sees a key, the last, and no other:
/// a range of keys that begins where it ends, in a block of keys behind the first that the tile sees. The part is a warpgroup's, a block's
/// or a cluster's by turns.
fn last_seeing_row(instance: &Instance, scores: Scores, shift: usize) -> Option<u32> {
    let config = instance.wgmma()?;
    let parts = [WARPGROUP_ROWS, config.block_m(), config.cluster_m()];
    let turn = of_text(instance.name) + scores as usize;
    let has_other_keys = matches!(scores, Scores::Bent | Scores::Capped | Scores::Flat);
    (shift == FEW_KEYS && has_other_keys && !config.cached).then(|| parts[turn % parts.len()])
}

/// Keys of a problem of few.
fn few_keys(instance: &Instance, scores: Scores) -> usize {
    const FEW: usize = 20;
    match last_seeing_row(instance, scores, FEW_KEYS) {
        Some(_) => instance.block_n as usize + FEW,
        None => FEW,
    }
}

/// Whether tiles see so many blocks of keys that the next tile is asked for before the last of them is loaded, of several tiles.
fn has_many_blocks(instance: &Instance, shift: usize) -> bool {
    shift == HEADS && instance.wgmma().is_some()
}

/// Whether blocks between seen ones are hidden: at the place alone where scores of fp32 kernels are bent.
pub(super) fn hides_blocks(instance: &Instance, scores: Scores, shift: usize) -> bool {
    instance.family == Family::Simt && (scores, shift) == (Scores::Bent, PACKED)
}
