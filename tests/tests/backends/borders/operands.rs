//! How operands lie, and how many components their rows have.

use ferroflash_testing::cases::Arrangement;
use kernels_gpu::config::wgmma::{HD192_V128, WgmmaConfig};
use kernels_gpu::instances::{Family, Instance, Operation};
use kernels_gpu::layout::fragment::TILE_N;
use kernels_gpu::layout::swizzle::VEC16_BYTES;

use super::places::{CUT, DIAGONALS, FEW_KEYS, PACKED, WHOLE};
use super::{Scores, is_of_hopper, is_packed};

/// Components of q and of v that a kernel for `most` is given: fewer where the last vec16 of a row, or TMA's box, is to be cut, each time by
/// another number, so that plain and bent scores together cut it in every way.
pub(super) fn components(
    instance: &Instance,
    most: [u32; 2],
    scores: Scores,
    [number, shift]: [usize; 2],
) -> [usize; 2] {
    let most = most.map(|most| most as usize);
    if scores == Scores::Poisoned && is_of_hopper(instance) {
        // Few of v, and then few of q and k, so that of whole pairs of columns a lane has one operand's alone: as few as are not another
        // kernel's.
        const FEW: usize = 40;
        const NARROWER: WgmmaConfig = HD192_V128;
        let [qk, v] = most;
        let has_narrower = qk == NARROWER.head_dim as usize;
        return match shift {
            CUT if has_narrower && v == qk => [qk - 8, NARROWER.head_dim_v as usize + 8],
            CUT => [qk - 8, FEW],
            _ if has_narrower && v < qk => [qk - 8, v],
            _ => [FEW, v],
        };
    }
    if instance.family == Family::Simt {
        // The kernels of dk and dv and of dq, whose numbers follow each other, have one problem.
        let turn = number / 2;
        // Of what is copied and stored by elements, the last vec16 of a row is cut in each way at one of the places.
        let even = 2 * (turn % 2);
        match (scores, shift) {
            // Rows end in the last and the first of the parts that they are copied in.
            (_, 1) => return [most[0] - 4 + even, 12 + 2 * (turn / 2 % 2)],
            // And the other way round.
            (Scores::Bent, PACKED) => return [14 - even, most[1] - 2],
            // Few, as which pairs are seen does not depend on them.
            (_, DIAGONALS) => return [13 - even, most[1]],
            (_, FEW_KEYS) => return most.map(|most| most - 3),
            (_, PACKED) => return most.map(|most| most - 1),
            _ => return most,
        }
    }
    let cuts = VEC16_BYTES as usize / instance.dtype.bytes() - 1;
    let of_scores = match scores {
        Scores::Plain => 0,
        Scores::Bent => 4,
        _ => 1,
    };
    let of_shift = match shift {
        CUT => 1,
        FEW_KEYS => 2,
        DIAGONALS => 3,
        _ => 0,
    };
    let cut = match (instance.family, shift) {
        // Three units, of the four that a warp has at most.
        (_, WHOLE) => 3 * TILE_N,
        (Family::Wgmma, CUT) => 8,
        (Family::Mma, 1 | CUT | FEW_KEYS | DIAGONALS) => 1 + (of_scores + of_shift) % cuts,
        _ => 0,
    };
    most.map(|most| most - cut)
}

/// Rows of `dims` components of which each begins at a multiple of 16 bytes, as those of `head_dim` do.
pub(super) fn cut_rows(head_dim: u32, dims: usize) -> Arrangement {
    Arrangement {
        padding: [0, 0, 0, head_dim as usize - dims],
        ..Arrangement::BSHD
    }
}

/// Rows of `dims` components that begin anywhere.
pub(super) fn odd_rows(dims: usize) -> Arrangement {
    // Not as far apart as rows of a few components more.
    let padding = if (dims + 3).is_multiple_of(4) { 4 } else { 3 };
    Arrangement {
        padding: [1, 0, 2, padding],
        ..Arrangement::ODD_ROWS
    }
}

/// How q, k and v lie, of which rows have `dims` components and are `usual`, and then o. Every other time one of the inputs, and o, have other things between
/// their elements or rows: a kernel has a fast way to copy rows of which every operand asks whether it is open. What Hopper's kernels
/// copy are rows of whole pieces of 16 bytes.
pub(super) fn arrangements(
    instance: &Instance,
    scores: Scores,
    shift: usize,
    (dims, usual): ([usize; 3], [Arrangement; 3]),
) -> ([Arrangement; 3], Option<Arrangement>) {
    // Then rows end within what is copied by elements; those that are copied again, where values are not finite, by vec16s.
    let is_poisoned = scores == Scores::Poisoned;
    let is_simt = instance.family == Family::Simt;
    // Of what is stored by elements, too, one more would be behind the last of the tensor.
    let o = is_simt.then_some(Arrangement::ODD_ROWS);
    if shift == FEW_KEYS && !is_of_hopper(instance) && !is_poisoned {
        return (dims.map(odd_rows), o);
    }
    let mut inputs = usual;
    if is_simt && !is_poisoned {
        // Copied by elements, each of which asks whether it is there: where rows end behind a whole vec16, one more would be behind the last
        // of the operand. At the diagonals V is copied by whole vec16s.
        match shift {
            PACKED => inputs.fill(Arrangement::ALIGNED_COLUMNS),
            DIAGONALS => inputs[..2].fill(Arrangement::ALIGNED_COLUMNS),
            _ => {}
        }
    }
    let turn = 2 * scores as usize + shift / 2;
    let others = dims.map(|dims| match turn / 3 % 2 {
        _ if is_of_hopper(instance) => Arrangement::ALIGNED_ROWS,
        0 => Arrangement::ALIGNED_COLUMNS,
        _ => odd_rows(dims),
    });
    if !scores.lie_apart(shift) {
        if instance.family == Family::Mma && !scores.is_grown() && !is_poisoned {
            // The third's rows are whole, as the fast way wants them; the next one's are too, and of them the first is aligned.
            inputs[turn % 3] = others[turn % 3];
            inputs[(turn + 1) % 3] = Arrangement::ODD_DISTANCES;
            if shift == DIAGONALS {
                // Both operands of scores, cut in the way in which they are otherwise where the scale is 0.
                inputs[..2].copy_from_slice(&others[..2]);
            }
        }
        return (inputs, o.filter(|_| matches!(shift, PACKED | DIAGONALS)));
    }
    if !is_of_hopper(instance) {
        // Each operand asks for itself, and at no other place do they lie apart in several blocks, or are cut in as many ways.
        inputs = others;
    } else if is_packed(instance) != Some(true) {
        inputs[turn % 3] = others[turn % 3];
        if (scores, shift) == (Scores::Bent, CUT) {
            // V, and d_o as it, cut.
            inputs[2] = others[2];
        }
    }
    (inputs, Some(others[2]))
}

/// How dq, dk and dv lie: in places of their own where o does.
pub(super) fn gradients(instance: &Instance, shift: usize) -> Option<[Arrangement; 3]> {
    const ROWS: Arrangement = Arrangement::ODD_ROWS;
    const COLUMNS: Arrangement = Arrangement::COLUMNS;
    match shift {
        _ if instance.operation == Operation::Forward => None,
        1 | 3 if is_of_hopper(instance) => Some([Arrangement::ALIGNED_ROWS; 3]),
        1 => Some([ROWS, COLUMNS, ROWS]),
        3 => Some([COLUMNS, ROWS, COLUMNS]),
        PACKED | FEW_KEYS | DIAGONALS if instance.family == Family::Simt => Some([ROWS; 3]),
        _ => None,
    }
}
