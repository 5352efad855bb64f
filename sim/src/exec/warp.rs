//! A warp's control state: groups of lanes that run together, and where they meet again.
//!
//! A divergent branch splits its group in two and leaves a [`Meeting`] at the branch's reconvergence
//! point; a group that gets there joins it, and when every live lane has, one group goes on. Groups
//! of a warp are scheduled independently, so one may wait while another runs (PTX ISA §3.1: threads
//! of a warp make independent progress).

use super::regs::Regs;
use super::tensor::wgmma_registers::WarpWgmma;
use crate::ir::cfg::NEVER;
use crate::memory::local::Local;

/// Index of no meeting.
const NONE: u32 = u32::MAX;

/// The event that a group waits for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Wait {
    /// The generation of a named barrier to pass.
    Barrier { id: u32, generation: u64 },
    /// The lanes of `mask` to reach a `bar.warp.sync` of the same mask.
    WarpBarrier { mask: u32 },
    /// Other lanes of the warp at the same warp-wide instruction.
    Converge { mask: u32 },
    /// Phase `phase` of the mbarrier at a shared address to complete (then the instruction runs again).
    Mbarrier { cta: u32, at: u64, phase: u32 },
    /// The cluster barrier to pass a generation.
    Cluster { generation: u64 },
    /// The warpgroup's other warps to issue their part of the first `issued` `wgmma`s.
    Wgmma { issued: u64 },
    /// Registers to be released by another warp (`setmaxnreg.inc`).
    Registers { wanted: u32 },
}

/// Lanes that share a program counter.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub pc: u32,
    pub mask: u32,
    meeting: u32,
    pub wait: Option<Wait>,
    /// A `try_wait` whose time limit ran out: it returns false when run again.
    pub timed_out: bool,
}

impl Group {
    /// Does it wait for other lanes of its warp?
    pub(crate) fn is_stuck(&self) -> bool {
        matches!(
            self.wait,
            Some(Wait::Converge { .. } | Wait::WarpBarrier { .. })
        )
    }
}

#[derive(Clone, Debug)]
struct Meeting {
    pc: u32,
    /// Lanes expected, less those that exited.
    expected: u32,
    arrived: u32,
    parent: u32,
}

/// Which warp of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WarpId {
    /// CTA rank in the cluster.
    pub cta: u32,
    /// Warp number in the CTA.
    pub index: u32,
    /// Warp number in the cluster.
    pub number: u32,
}

/// A `cp.async` that has not been performed.
#[derive(Clone, Debug)]
pub(crate) struct PendingCopy {
    pub lane: u8,
    pub bytes: u8,
    pub src_bytes: u8,
    pub dst: u32,
    pub src: u64,
    /// The lane's commit number it belongs to.
    pub group: u32,
    /// The issuing instruction.
    pub pc: u32,
}

pub(crate) struct Warp {
    pub regs: Regs,
    pub local: Local,
    /// Lanes that exist and have not exited.
    pub live: u32,
    pub groups: Vec<Group>,
    meetings: Vec<Meeting>,
    free: Vec<u32>,
    pub id: WarpId,
    /// `cp.async.commit_group`s executed, by lane.
    pub commits: [u32; super::LANES],
    /// `cp.async.bulk.commit_group`s executed, by lane.
    pub bulk_commits: [u32; super::LANES],
    pub wgmma: WarpWgmma,
}

impl Warp {
    pub(crate) fn new(regs: Regs, local: Local, live: u32, id: WarpId) -> Self {
        Self {
            regs,
            local,
            live,
            groups: vec![Group {
                pc: 0,
                mask: live,
                meeting: NONE,
                wait: None,
                timed_out: false,
            }],
            meetings: Vec::new(),
            free: Vec::new(),
            id,
            commits: [0; super::LANES],
            bulk_commits: [0; super::LANES],
            wgmma: WarpWgmma::default(),
        }
    }

    /// Where group `g` stops to wait for its siblings.
    #[inline(always)]
    pub(crate) fn meeting_pc(&self, g: usize) -> u32 {
        match self.groups[g].meeting {
            NONE => NEVER,
            m => self.meetings[m as usize].pc,
        }
    }

    /// Splits group `g`, now at a branch that meets again at `meet`: the lanes of `taken` go to
    /// `target`, the rest to `next`.
    pub(crate) fn diverge(&mut self, g: usize, taken: u32, target: u32, next: u32, meet: u32) {
        let parent = self.groups[g].meeting;
        let mask = self.groups[g].mask;
        // A loop that sheds lanes meets at the same place each time: one meeting serves.
        let same = parent != NONE && self.meetings[parent as usize].pc == meet;
        let meeting = if meet == NEVER || same {
            parent
        } else {
            self.new_meeting(Meeting {
                pc: meet,
                expected: mask,
                arrived: 0,
                parent,
            })
        };
        let group = &mut self.groups[g];
        group.meeting = meeting;
        group.mask = mask & !taken;
        group.pc = next;
        self.groups.push(Group {
            pc: target,
            mask: taken,
            meeting,
            wait: None,
            timed_out: false,
        });
    }

    fn new_meeting(&mut self, meeting: Meeting) -> u32 {
        match self.free.pop() {
            Some(i) => {
                self.meetings[i as usize] = meeting;
                i
            }
            None => {
                self.meetings.push(meeting);
                self.meetings.len() as u32 - 1
            }
        }
    }

    /// Group `g` is at its meeting point: it joins. Removes the group, or turns it into the one that
    /// goes on if it was the last.
    pub(crate) fn arrive(&mut self, g: usize) {
        let m = self.groups[g].meeting;
        let meeting = &mut self.meetings[m as usize];
        meeting.arrived |= self.groups[g].mask;
        self.groups.swap_remove(g);
        self.release(m);
    }

    /// Lets the lanes of meeting `m` go on if all are there.
    fn release(&mut self, m: u32) {
        let meeting = &self.meetings[m as usize];
        if meeting.arrived != meeting.expected {
            return;
        }
        let (mask, pc, parent) = (meeting.arrived, meeting.pc, meeting.parent);
        self.free.push(m);
        if mask == 0 {
            if parent != NONE {
                self.release(parent);
            }
            return;
        }
        self.groups.push(Group {
            pc,
            mask,
            meeting: parent,
            wait: None,
            timed_out: false,
        });
    }

    /// Lanes of `mask` leave the kernel.
    pub(crate) fn exit(&mut self, g: usize, mask: u32) {
        self.live &= !mask;
        let mut m = self.groups[g].meeting;
        self.groups[g].mask &= !mask;
        let group_done = self.groups[g].mask == 0;
        let first = m;
        while m != NONE {
            self.meetings[m as usize].expected &= !mask;
            m = self.meetings[m as usize].parent;
        }
        if group_done {
            self.groups.swap_remove(g);
            if first != NONE {
                self.release(first);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warp() -> Warp {
        Warp::new(
            Regs::new(1, 1, 2),
            Local::new(0),
            u32::MAX,
            WarpId {
                cta: 0,
                index: 0,
                number: 0,
            },
        )
    }

    #[test]
    fn paths_meet_again() {
        let mut w = warp();
        w.diverge(0, 0xff, 10, 1, 20);
        assert_eq!(w.groups.len(), 2);
        w.groups[0].pc = 20;
        w.arrive(0);
        assert_eq!(w.groups.len(), 1);
        w.groups[0].pc = 20;
        w.arrive(0);
        assert_eq!((w.groups[0].mask, w.groups[0].pc), (u32::MAX, 20));
    }

    #[test]
    fn exited_lanes_are_not_waited_for() {
        let mut w = warp();
        w.diverge(0, 1, 10, 1, 20);
        w.arrive(0);
        w.exit(0, 1);
        assert_eq!(w.groups.len(), 1);
        assert_eq!((w.groups[0].mask, w.groups[0].pc), (u32::MAX - 1, 20));
        w.exit(0, u32::MAX - 1);
        assert!(w.groups.is_empty() && w.live == 0);
    }

    #[test]
    fn a_loop_that_sheds_lanes_uses_one_meeting() {
        let mut w = warp();
        for lane in 0..31 {
            w.diverge(0, 1 << lane, 20, 0, 20);
            let last = w.groups.len() - 1;
            w.arrive(last);
        }
        assert_eq!(w.meetings.len(), 1);
        w.arrive(0);
        assert_eq!(w.groups[0].mask, u32::MAX);
    }
}
