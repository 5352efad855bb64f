//! The 32-bit registers of an instruction, for the checks of asynchronous operations.

use super::operands::{Operands, Place};
use super::{Op, Reg};

/// 32-bit registers of one instruction. The `wgmma` operations themselves touch none here.
#[derive(Clone, Debug, Default)]
pub struct Touched {
    pub reads: Vec<Reg>,
    pub writes: Vec<Reg>,
}

impl Touched {
    /// The registers of `op`.
    pub fn of(op: &Op) -> Self {
        if matches!(op, Op::Wgmma(_)) {
            return Self::default();
        }
        let Operands { reads, writes } = Operands::of(op);
        let narrow = |places: Vec<Place>| {
            let reg = |place| match place {
                Place::R32(reg) => Some(reg),
                Place::R64(_) | Place::Pred(_) | Place::Carry => None,
            };
            places.into_iter().filter_map(reg).collect()
        };
        Self {
            reads: narrow(reads),
            writes: narrow(writes),
        }
    }
}
