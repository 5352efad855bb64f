//! What is done to the scores of problems in which every pair counts.

use ferroflash_testing::cases::InputKind;
use kernels_gpu::instances::{Family, Instance, Operation};

use super::is_of_hopper;
use super::places::{CUT, DIAGONALS, FEW_KEYS, HEADS, PACKED};

/// What is done to scores.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scores {
    /// Products, times the scale.
    Plain,
    /// A cap that bends half of them, at one shift none, and at two there is none; slopes, but at one of those, and a scale that turns
    /// their order round.
    Bent,
    /// A cap, alone, which Hopper's kernels have own code for: one that no score reaches half of, as far as their polynomial goes; and,
    /// where rows see few keys, one that bends half of them.
    Capped,
    /// All 0, as the scale is: of what is hidden 0 times −∞ must not come.
    Flat,
    /// Products of which two of sixteen rows' grow so much along the keys that a kernel computes the tile again, its other rows too.
    Grown,
    /// The same for kernels that begin with the last keys.
    Fallen,
    /// Products, and a V that has NaN and infinities in some components of many rows, hidden ones too.
    Poisoned,
}

impl Scores {
    pub(super) fn kind(self, shift: usize) -> InputKind {
        match self {
            // But at one shift, so that log-sum-exps have either sign: what lies beyond a border outweighs all that is seen.
            Self::Plain if shift != 0 => InputKind::Low,
            Self::Plain | Self::Bent | Self::Capped | Self::Flat => InputKind::Random,
            Self::Grown => InputKind::GrowingSome,
            Self::Fallen => InputKind::FallingSome,
            Self::Poisoned => InputKind::Scattered,
        }
    }

    /// Whether kernels for their dtypes alone are given them, and forward.
    fn is_stress(self) -> bool {
        self.is_grown() || self == Self::Poisoned
    }

    /// Whether a tile is computed again for them, for which it must not matter how rows are copied or where keys end.
    pub(super) fn is_grown(self) -> bool {
        matches!(self, Self::Grown | Self::Fallen)
    }

    /// Whether keys end with a block, and operands lie in other ways than usual: at every other place.
    pub(super) fn lie_apart(self, shift: usize) -> bool {
        !shift.is_multiple_of(2) && !self.is_grown()
    }

    /// Whether they are more than products times a positive scale.
    pub(super) fn is_changed(self) -> bool {
        matches!(self, Self::Bent | Self::Flat)
    }

    /// Whether fp32 kernels are left out, which would take three quarters of the time, and in which other shifts notice as much.
    fn is_cheaper_without_simt(self, shift: usize) -> bool {
        match self {
            Self::Plain => matches!(shift, 0 | CUT),
            Self::Bent => !matches!(shift, PACKED | DIAGONALS),
            Self::Flat => true,
            _ => false,
        }
    }

    /// The softcap at a shift.
    pub(super) fn softcap(self, shift: usize) -> Option<f32> {
        match self {
            // So far above all scores that what tanh loses of small numbers shows.
            Self::Bent if shift == 1 => Some(1000.0),
            Self::Bent if !matches!(shift, CUT | FEW_KEYS) => Some(1.5),
            Self::Capped if shift == FEW_KEYS => Some(1.5),
            Self::Capped => Some(11.0),
            _ => None,
        }
    }

    /// Whether problems with such scores are given to `instance` at a shift.
    pub(super) fn suits(self, instance: &Instance, shift: usize) -> bool {
        if instance.family == Family::Simt && self.is_cheaper_without_simt(shift) {
            return false;
        }
        let is_forward = instance.operation == Operation::Forward;
        if shift == HEADS && !is_of_hopper(instance) {
            return false;
        }
        let is_modified = instance.name.ends_with("_modified");
        if shift == DIAGONALS && (is_of_hopper(instance) || self == Self::Bent && !is_modified) {
            return false;
        }
        if self == Self::Capped {
            // Others bend scores as they do where half of them are bent.
            return is_forward && is_of_hopper(instance) && !is_modified;
        }
        !self.is_stress() || is_forward && self.kind(shift).suits(instance.dtype)
    }
}
