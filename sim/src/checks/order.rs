//! Happens-before bookkeeping: one hook for every event that orders or touches memory.

use crate::exec::{LANES, Memory, PendingCopy, State, Warp};
use crate::fault::Exec;
use crate::ir::{Fence, Order, Scope};

/// One warp's access to memory.
pub(crate) struct Touch<'a> {
    /// Address of each active lane.
    pub(crate) at: &'a [u64; LANES],
    pub(crate) mask: u32,
    /// Bytes a lane touches.
    pub(crate) bytes: u32,
    pub(crate) write: bool,
    pub(crate) order: Order,
    pub(crate) scope: Scope,
}

impl State<'_> {
    pub(crate) fn global_access(&mut self, _warp: &Warp, _touch: &Touch<'_>) -> Exec<()> {
        Ok(())
    }

    pub(crate) fn shared_access(
        &mut self,
        _warp: &Warp,
        _touch: &Touch<'_>,
        _rank: u32,
    ) -> Exec<()> {
        Ok(())
    }

    pub(crate) fn atomic_order(
        &mut self,
        _warp: &Warp,
        _touch: &Touch<'_>,
        _memory: Memory,
    ) -> Exec<()> {
        Ok(())
    }

    pub(crate) fn copy_issued(
        &mut self,
        _warp: &Warp,
        _m: u32,
        _at: &[u64; LANES],
        _bytes: u32,
    ) -> Exec<()> {
        Ok(())
    }

    pub(crate) fn copy_done(&mut self, _warp: &Warp, _copy: &PendingCopy) -> Exec<()> {
        Ok(())
    }

    pub(crate) fn barrier_arrives(&mut self, _warp: &Warp, _m: u32, _id: u32) {}

    pub(crate) fn barrier_opens(&mut self, _cta: u32, _id: u32) {}

    pub(crate) fn barrier_synchronises(&mut self, _warp: &Warp, _m: u32, _id: u32) {}

    pub(crate) fn warp_synchronises(&mut self, _warp: &Warp, _mask: u32) {}

    pub(crate) fn fence(&mut self, _warp: &Warp, _m: u32, _fence: Fence) {}
}
