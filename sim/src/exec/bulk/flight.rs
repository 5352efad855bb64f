//! Operations in flight.

use crate::exec::WarpId;
use crate::exec::mbarrier::Key;
use crate::ir::{RmwOp, RmwTy};
use crate::tensor_map::TensorMap;

/// A bulk store's group, numbered by the issuing thread.
pub(super) type Group = u32;

/// Source and destination of an asynchronous operation.
#[derive(Clone, Debug)]
pub(super) enum Cargo {
    /// Tensor box → the same shared offset of each target CTA.
    TensorLoad {
        map: TensorMap,
        coords: [i32; 5],
        dst: u64,
        targets: Vec<Key>,
    },
    /// Global bytes → shared.
    Load {
        src: u64,
        bytes: u32,
        dst: u64,
        targets: Vec<Key>,
    },
    /// Own shared bytes → another CTA's.
    SharedToCluster {
        src: usize,
        bytes: u32,
        to: (u32, u64),
        target: Key,
    },
    /// Shared bytes → global.
    Store {
        group: Group,
        src: usize,
        bytes: u32,
        dst: u64,
        reduce: Option<(RmwOp, RmwTy)>,
    },
    TensorStore {
        group: Group,
        map: TensorMap,
        coords: [i32; 5],
        src: u64,
        reduce: Option<RmwOp>,
    },
    /// `cp.async.mbarrier.arrive`: the thread's copies before it, then an arrival.
    CopyArrival { copies: usize, target: Key },
}

/// An operation in flight, and who issued it where.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    pub(super) warp: WarpId,
    pub(super) lane: usize,
    /// The issuing instruction, for errors.
    pub(super) pc: u32,
    pub(super) cargo: Cargo,
    /// A store whose source has been read: the bytes of its box.
    pub(super) captured: Option<Vec<u8>>,
}

impl Flight {
    /// Who issued it.
    pub(crate) fn issuer(&self) -> WarpId {
        self.warp
    }

    /// The group of a store by this thread.
    pub(super) fn group_of(&self, warp: WarpId, lane: usize) -> Option<Group> {
        match self.cargo {
            Cargo::Store { group, .. } | Cargo::TensorStore { group, .. }
                if self.warp == warp && self.lane == lane =>
            {
                Some(group)
            }
            _ => None,
        }
    }

    /// Completes by an mbarrier: may land at any time.
    pub(crate) fn is_load(&self) -> bool {
        !matches!(self.cargo, Cargo::Store { .. } | Cargo::TensorStore { .. })
    }

    /// CTA ranks whose shared memory it still needs.
    pub(super) fn uses(&self) -> Vec<u32> {
        match &self.cargo {
            Cargo::TensorLoad { targets, .. } | Cargo::Load { targets, .. } => {
                targets.iter().map(|t| t.0).collect()
            }
            Cargo::SharedToCluster { to, .. } => vec![self.warp.cta, to.0],
            Cargo::Store { .. } | Cargo::TensorStore { .. } if self.captured.is_none() => {
                vec![self.warp.cta]
            }
            Cargo::CopyArrival { .. } => vec![self.warp.cta],
            _ => Vec::new(),
        }
    }
}
