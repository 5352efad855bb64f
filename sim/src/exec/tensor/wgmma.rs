//! `wgmma.mma_async` (PTX ISA §9.7.15): issued by the four warps of a warpgroup, performed when one
//! of them waits.
//!
//! Warp w of the warpgroup holds rows 16w to 16w + 15 of D (and of A, if it comes from registers),
//! laid out as [`super::mma`] lays out its fragments, eight columns to every four f32 registers.

use super::descriptor::Descriptor;
use super::product::ROWS;
use super::wgmma_product::{PIECE, element_bytes, pieces};
use crate::exec::warp::Wait;
use crate::exec::{State, Warp, WarpId};
use crate::fault::{Exec, FaultKind};
use crate::ir::{Op, Reg, Wgmma, WgmmaA};

/// Warps of a warpgroup, and rows of D.
pub(super) const WARPS: usize = 4;
pub(super) const M: usize = WARPS * ROWS;

/// One `wgmma.mma_async` of a warpgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Issued {
    pub(super) pc: u32,
    pub(super) a: u64,
    pub(super) b: u64,
    pub(super) scale_d: bool,
}

/// The operations of a warpgroup that have not been performed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Warpgroup {
    queue: Vec<Issued>,
    /// Number of operations performed; `queue[0]` is the next.
    done: u64,
    /// Operations each warp has issued.
    issued: [u64; WARPS],
}

impl Warpgroup {
    /// Have all warps issued their part of the first `upto` operations?
    pub(crate) fn ready(&self, upto: u64) -> bool {
        self.issued.iter().all(|&n| n >= upto)
    }

    pub(crate) fn describe(&self, upto: u64) -> String {
        format!(
            "waits for wgmma {upto}: the warps of the warpgroup have issued {:?}",
            self.issued
        )
    }
}

pub(super) fn tensor(message: impl Into<String>) -> FaultKind {
    FaultKind::Tensor(message.into())
}

impl State<'_> {
    pub(crate) fn warpgroup(&mut self, warp: WarpId) -> &mut Warpgroup {
        let per_cta = (self.launch.warps as usize).div_ceil(WARPS);
        &mut self.warpgroups[warp.cta as usize * per_cta + warp.index as usize / WARPS]
    }

    pub(crate) fn warpgroup_of(&self, warp: WarpId) -> &Warpgroup {
        let per_cta = (self.launch.warps as usize).div_ceil(WARPS);
        &self.warpgroups[warp.cta as usize * per_cta + warp.index as usize / WARPS]
    }

    /// One warp issues its part.
    pub(in crate::exec) fn wgmma_issue(&mut self, warp: &mut Warp, op: &Wgmma) -> Exec<()> {
        if warp.live != u32::MAX || (warp.id.index / 4 + 1) * 4 > self.launch.warps {
            return Err(tensor("`wgmma` needs a warpgroup of four whole warps").into());
        }
        let uniform64 = |reg: Reg| {
            let v = warp.regs.get64(reg);
            if v.iter().all(|x| x == &v[0]) {
                Ok(v[0])
            } else {
                Err(tensor(
                    "a matrix descriptor differs between the lanes of a warp",
                ))
            }
        };
        let scale_d = match warp.regs.test(op.scale_d) {
            u32::MAX => true,
            0 => false,
            _ => return Err(tensor("scale-d differs between the lanes of a warp").into()),
        };
        let mut issued = Issued {
            pc: self.pc,
            a: 0,
            b: uniform64(op.b)?,
            scale_d,
        };
        if let WgmmaA::Descriptor(reg) = op.a {
            issued.a = uniform64(reg)?;
        }
        self.wgmma_registers(warp, op)?;
        let id = warp.id;
        let group = self.warpgroup(id);
        let place = (group.issued[id.index as usize % WARPS] - group.done) as usize;
        group.issued[id.index as usize % WARPS] += 1;
        match group.queue.get(place) {
            None => group.queue.push(issued),
            Some(first) if *first == issued => {}
            Some(_) => {
                return Err(tensor(
                    "the warps of a warpgroup issue different `wgmma`s, descriptors or scale-d",
                )
                .into());
            }
        }
        warp.wgmma.issued += 1;
        self.wgmma_order(warp, op, issued)
    }

    /// Tells the race check what the operation reads from shared memory.
    fn wgmma_order(&mut self, warp: &Warp, op: &Wgmma, issued: Issued) -> Exec<()> {
        let Some(agent) = self.wgmma_agent(warp.id) else {
            return Ok(());
        };
        let until = warp.wgmma.commits + 1;
        let mut operands = vec![(issued.b, op.n as usize, op.trans_b)];
        if let WgmmaA::Descriptor(_) = op.a {
            operands.push((issued.a, M, op.trans_a));
        }
        let elem = element_bytes(op.ab);
        for (bits, extent, mn_major) in operands {
            let d = Descriptor::decode(bits).map_err(FaultKind::Unsupported)?;
            for (mn, k) in pieces(extent, op.k as usize, elem as usize, mn_major) {
                let at = d.address(mn as u64, k as u64, elem, mn_major);
                let start = self.shared_range(warp.id.cta, at, PIECE as u64, PIECE as u64, 0)?;
                self.async_read_begins((warp.id, 0), (start, PIECE), agent, until)?;
            }
        }
        Ok(())
    }

    /// `wgmma.wait_group`: what to wait for, unless everything has been performed.
    pub(in crate::exec) fn wgmma_wait(
        &mut self,
        warp: &mut Warp,
        m: u32,
        pending: u32,
    ) -> Exec<Option<Wait>> {
        let upto = warp.wgmma.due(pending);
        if self.warpgroup(warp.id).done < upto {
            return Ok(Some(Wait::Wgmma { issued: upto }));
        }
        let groups = warp.wgmma.waited(pending);
        self.wgmma_waited(warp.id, m, groups);
        Ok(None)
    }

    /// Performs the first `upto` operations of a warpgroup, whose warps are `warps`.
    pub(in crate::exec) fn wgmma_perform(&mut self, warps: &mut [Warp], upto: u64) -> Exec<()> {
        let id = warps[0].id;
        while self.warpgroup(id).done < upto {
            let group = self.warpgroup(id);
            let issued = group.queue.remove(0);
            group.done += 1;
            self.pc = issued.pc;
            let launch = self.launch;
            if let Op::Wgmma(op) = &launch.kernel.code[issued.pc as usize].op {
                self.multiply(warps, op, issued)?;
            }
        }
        Ok(())
    }
}
