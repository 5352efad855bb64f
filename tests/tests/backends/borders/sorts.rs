//! The options of single pairs that kernels for modifiers are given.

use ferroflash::DType;
use ferroflash_testing::cases::ModifierSpec;
use ferroflash_tests::schedules::of_text;
use kernels_gpu::instances::{Family, Instance, Operation};

use super::Scores;
use super::places::{DIAGONALS, FEW_KEYS, hides_blocks};

/// What kernels for modifiers are given, and those for the gradient by a bias: every modifier, of which shifts take turns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    Bias,
    Documents,
    Mask,
    Chunks,
    Dropout,
}

impl Sort {
    const ALL: [Self; 5] = [
        Self::Bias,
        Self::Documents,
        Self::Mask,
        Self::Chunks,
        Self::Dropout,
    ];

    /// One in turn, so that a kernel has each of them at some shift, and at another where scores are others; where scores grow one that hides
    /// nothing, so that it is the growth by which a tile is computed again.
    pub(super) fn of(instance: &Instance, scores: Scores, shift: usize) -> Self {
        if shift == DIAGONALS {
            // One that leaves it to the band what is seen, and one that asks for more, but shows all that the band does.
            return match scores {
                Scores::Plain if instance.is_for(true) => Self::Bias,
                _ => Self::Chunks,
            };
        }
        let turn = of_text(instance.name) + scores as usize + shift;
        if scores.is_grown() {
            // By turns, whose shifts are 1 and 3.
            return [Self::Bias, Self::Dropout][turn / 2 % 2].on(instance);
        }
        Self::ALL[turn % Self::ALL.len()].on(instance)
    }

    /// Itself, or another that hides nothing, if the kernel is not for a bias.
    fn on(self, instance: &Instance) -> Self {
        match self {
            Self::Bias if !instance.is_for(true) => Self::Dropout,
            sort => sort,
        }
    }
}

/// Options of a sort that `instance` is for, as well as `scores` are.
pub(super) fn modifiers(
    instance: &Instance,
    scores: Scores,
    shift: usize,
    sort: Sort,
) -> ModifierSpec {
    let has_copies = !instance.is_for(false);
    let needs_bias = instance.operation == Operation::BackwardBias || has_copies;
    let is_modified = instance.name.ends_with("_modified") || needs_bias;
    // What is copied has 16 bits.
    let of_bias = if has_copies {
        [DType::F16, DType::Bf16][shift % 2]
    } else {
        DType::F32
    };
    let takes = |wanted: Sort| is_modified && sort == wanted;
    let hides_blocks = hides_blocks(instance, scores, shift);
    // Of few keys a block, or the documents, would hide all.
    let has_few_keys = shift == FEW_KEYS && instance.family != Family::Simt;
    let block = if has_few_keys { [8, 8] } else { [32, 48] };
    let shows_documents = !hides_blocks && !has_few_keys;
    let chunk = if shift == DIAGONALS { 1 << 10 } else { 40 };
    ModifierSpec {
        bias: (takes(Sort::Bias) || needs_bias).then_some(([false; 3], of_bias)),
        // Documents and chunks would hide the first blocks as well.
        documents: (takes(Sort::Documents) && shows_documents).then_some((20, false)),
        dilation: takes(Sort::Documents).then_some(3),
        mask: takes(Sort::Mask).then_some(([false; 3], 30)),
        // By which a block is seen before one that is hidden.
        prefix: (takes(Sort::Mask) || is_modified && hides_blocks).then_some((15, false)),
        chunk: (takes(Sort::Chunks) && !hides_blocks).then_some(chunk),
        blocks: (takes(Sort::Chunks) && shift != DIAGONALS).then_some(block),
        dropout: takes(Sort::Dropout).then_some(0.2),
        ..ModifierSpec::default()
    }
}
