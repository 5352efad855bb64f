//! Checks and counts that accompany execution.

mod async_order;
mod clock;
mod counting;
mod global_order;
mod global_past;
mod grids;
mod published;
mod races;
mod scopes;
mod shadow;
mod shared_order;
mod sync;
mod threads;

pub(crate) use global_order::Mark;
pub(crate) use global_past::GLOBAL_IN_FLIGHT;
pub(crate) use grids::Complete;
pub(crate) use published::Published;
pub(crate) use races::Races;

use crate::exec::LANES;
use crate::ir::{Order, Scope};
pub(crate) use shadow::Kind;

/// One warp's access to memory.
pub(crate) struct Touch<'a> {
    /// Address of each active lane.
    pub(crate) at: &'a [u64; LANES],
    pub(crate) mask: u32,
    /// Bytes a lane touches.
    pub(crate) bytes: u32,
    pub(crate) write: bool,
    pub(crate) order: Order,
    /// Scope of an access that is not weak.
    pub(crate) scope: Scope,
}

impl Touch<'_> {
    /// Lanes that touch `address`, active or not.
    fn lanes_at(&self, address: u64) -> u32 {
        let mut mask = 0;
        for (lane, &at) in self.at.iter().enumerate() {
            mask |= u32::from(at == address) << lane;
        }
        mask
    }

    /// Whether others touch what the first lane does: many do in kernels that broadcast.
    fn repeats_first(&self) -> bool {
        let first = self.at[self.mask.trailing_zeros() as usize % LANES];
        (self.mask & self.lanes_at(first)).count_ones() > 1
    }
}

fn kind_of(order: Order) -> Kind {
    match order {
        Order::Weak => Kind::Plain,
        _ => Kind::Strong,
    }
}
