//! `griddepcontrol.wait` (PTX ISA §9.7.13.13): the grid before is complete, and its memory visible.

use crate::exec::{State, WarpId};

/// Clusters of earlier grids that a thread knows to be complete: `from..to`, none if both are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Complete {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Complete {
    pub(crate) fn contains(self, cluster: u64) -> bool {
        (self.from..self.to).contains(&cluster)
    }

    /// The union of both; if they are not adjacent, the later one.
    pub(crate) fn join(&mut self, other: Self) {
        let later = if self.to < other.to { other } else { *self };
        let earlier = if self.to < other.to { *self } else { other };
        *self = later;
        if earlier.to >= later.from && earlier.to > 0 {
            self.from = earlier.from.min(later.from);
        }
    }
}

impl State<'_> {
    /// The lanes of `m` have waited for the grid before.
    pub(crate) fn grid_waited(&mut self, warp: WarpId, m: u32) {
        let complete = self.launch.wait_for_grids();
        if let Some(races) = self.races.as_deref_mut() {
            let mut fact = races.threads.nothing();
            fact.complete = complete;
            races.threads.acquire(warp, m, &fact);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(a: (u64, u64), b: (u64, u64)) -> (u64, u64) {
        let mut joined = Complete { from: a.0, to: a.1 };
        joined.join(Complete { from: b.0, to: b.1 });
        (joined.from, joined.to)
    }

    #[test]
    fn what_is_complete_adds_up() {
        for (a, b, both) in [
            ((0, 0), (0, 0), (0, 0)),
            ((0, 0), (4, 8), (4, 8)),
            ((0, 4), (4, 8), (0, 8)),
            ((0, 6), (4, 8), (0, 8)),
            ((0, 8), (4, 6), (0, 8)),
            ((0, 3), (4, 8), (4, 8)),
        ] {
            assert_eq!(joined(a, b), both);
            assert_eq!(joined(b, a), both);
        }
    }
}
