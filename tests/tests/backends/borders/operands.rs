//! How operands lie, and how many components their rows have.

use ferroflash_testing::cases::Arrangement;
use kernels_gpu::instances::{Family, Instance, Operation};
use kernels_gpu::layout::fragment::TILE_N;
use kernels_gpu::layout::swizzle::VEC16_BYTES;

use super::places::{CUT, DIAGONALS, FEW_KEYS, PACKED, WHOLE, hides_blocks};
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
    if instance.family == Family::Simt {
        // The kernels of dk and dv and of dq, whose numbers follow each other, have one problem.
        let turn = number / 2;
        // Of rows that are copied by elements, a vec16 is cut behind 0 and 2 of its four by turns, and elsewhere behind 1 or 3.
        let even = 2 * (turn % 2);
        match (scores, shift) {
            // Rows end in the last and the first of the parts that they are copied in.
            (_, 1) => return [most[0] - 4 + even, 12 + 2 * (turn / 2 % 2)],
            // And the other way round.
            (Scores::Bent, PACKED) => return [14 - even, most[1] - 2],
            // Few, as which pairs are seen does not depend on them.
            (_, DIAGONALS) => return [12, most[1]],
            (_, FEW_KEYS) => return most.map(|most| most - 1 - 2 * (turn / 2 % 2)),
            _ => {}
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
        _ => 0,
    };
    let cut = match (instance.family, shift) {
        // Three units, of the four that a warp has at most.
        (_, WHOLE) => 3 * TILE_N,
        (Family::Wgmma, CUT) => 8,
        (Family::Mma, 1 | CUT | FEW_KEYS) | (Family::Simt, PACKED) => {
            1 + (of_scores + of_shift) % cuts
        }
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
    if shift == FEW_KEYS && !is_of_hopper(instance) && !is_poisoned {
        return (dims.map(odd_rows), None);
    }
    let mut inputs = usual;
    if hides_blocks(instance, scores, shift) {
        // Where they end behind a whole vec16, an element more would be behind the last of the operand.
        inputs[..2].fill(Arrangement::ALIGNED_COLUMNS);
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
        }
        return (inputs, None);
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
        _ => None,
    }
}
