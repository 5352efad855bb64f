//! `wgmma.mma_async` (PTX ISA §9.7.15): issued by the four warps of a warpgroup, performed when one
//! of them waits.
//!
//! Warp w of the warpgroup holds rows 16w to 16w + 15 of D (and of A, if it comes from registers),
//! laid out as [`super::mma`] lays out its fragments, eight columns to every four f32 registers.

use super::descriptor::Descriptor;
use super::element::{element, to_f16x2, to_f32};
use crate::decode::SHARED_BASE;
use crate::exec::regs::{LANES, Regs, lanes};
use crate::exec::warp::Wait;
use crate::exec::{State, Warp, WarpId};
use crate::fault::{Exec, FaultKind};
use crate::ir::{MmaTy, Op, Reg, Wgmma, WgmmaA};

/// Warps of a warpgroup, rows of a warp, rows of D.
const WARPS: usize = 4;
const WARP_ROWS: usize = 16;
const M: usize = WARPS * WARP_ROWS;
const MAX_K: usize = 16;

/// One `wgmma.mma_async` of a warpgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Issued {
    pc: u32,
    a: u64,
    b: u64,
    scale_d: bool,
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

fn tensor(message: impl Into<String>) -> FaultKind {
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

    fn multiply(&mut self, warps: &mut [Warp], op: &Wgmma, issued: Issued) -> Exec<()> {
        let cta = warps[0].id.cta;
        let (n, k) = (op.n as usize, op.k as usize);
        let sign = |negate: bool| if negate { -1.0 } else { 1.0 };
        let mut b = vec![0f64; MAX_K * n];
        self.read_matrix(cta, issued.b, op.ab, [n, k], op.trans_b, |col, kk, x| {
            b[kk * n + col] = x * sign(op.negate_b);
        })?;
        let mut a = vec![0f64; M * MAX_K];
        let negate = sign(op.negate_a);
        match &op.a {
            WgmmaA::Descriptor(_) => {
                self.read_matrix(cta, issued.a, op.ab, [M, k], op.trans_a, |row, kk, x| {
                    a[row * MAX_K + kk] = x * negate;
                })?;
            }
            WgmmaA::Registers(regs) => {
                for (w, warp) in warps.iter().enumerate() {
                    let rows = &mut a[w * WARP_ROWS * MAX_K..(w + 1) * WARP_ROWS * MAX_K];
                    fragment_a(&warp.regs, regs, op.ab, |row, kk, x| {
                        rows[row * MAX_K + kk] = x * negate;
                    });
                }
            }
        }
        for (w, warp) in warps.iter_mut().enumerate() {
            let rows = &a[w * WARP_ROWS * MAX_K..(w + 1) * WARP_ROWS * MAX_K];
            let mut acc = vec![0f64; WARP_ROWS * n];
            if issued.scale_d {
                load_accumulators(&warp.regs, op, &mut acc);
            }
            accumulate(&mut acc, rows, &b, n, k);
            store_accumulators(&mut warp.regs, op, &acc);
        }
        Ok(())
    }

    /// Calls `f(mn, k, element)` for every element of a matrix in shared memory.
    fn read_matrix(
        &self,
        cta: u32,
        bits: u64,
        ty: MmaTy,
        [extent, k]: [usize; 2],
        mn_major: bool,
        mut f: impl FnMut(usize, usize, f64),
    ) -> Exec<()> {
        let d = Descriptor::decode(bits).map_err(FaultKind::Unsupported)?;
        let elem = element_bytes(ty) as usize;
        let shared = &self.ctas[cta as usize].shared;
        for (mn, kk) in pieces(extent, k, elem, mn_major) {
            let at = d.address(mn as u64, kk as u64, elem as u64, mn_major);
            let start = self.shared_range(cta, at, PIECE as u64, PIECE as u64, 0)?;
            if self.launch.checks.uninitialised && !shared.is_written(start, PIECE as u32) {
                return Err(FaultKind::Uninitialised {
                    space: "shared",
                    address: at,
                    bytes: PIECE as u64,
                    detail: format!(
                        "element ({mn}, {kk}) of a matrix at byte {}",
                        at - u64::from(SHARED_BASE)
                    ),
                }
                .into());
            }
            for (i, raw) in shared.bytes_at(start, PIECE).chunks_exact(elem).enumerate() {
                let mut word = [0; 4];
                word[..elem].copy_from_slice(raw);
                let x = element(ty, u32::from_le_bytes(word), 0).into();
                if mn_major {
                    f(mn + i, kk, x);
                } else {
                    f(mn, kk + i, x);
                }
            }
        }
        Ok(())
    }
}

/// Bytes of a matrix that are contiguous in every layout.
const PIECE: usize = 16;

/// First element (mn, k) of each [`PIECE`] of a matrix; pieces run along the major dimension.
fn pieces(
    extent: usize,
    k: usize,
    elem: usize,
    mn_major: bool,
) -> impl Iterator<Item = (usize, usize)> {
    let t = PIECE / elem;
    let (step_mn, step_k) = if mn_major { (t, 1) } else { (1, t) };
    (0..extent)
        .step_by(step_mn)
        .flat_map(move |mn| (0..k).step_by(step_k).map(move |kk| (mn, kk)))
}

fn element_bytes(ty: MmaTy) -> u64 {
    if ty == MmaTy::Tf32 { 4 } else { 2 }
}

/// Calls `f(row, k, element)` for a warp's A fragment.
fn fragment_a(regs: &Regs, a: &[Reg], ty: MmaTy, mut f: impl FnMut(usize, usize, f64)) {
    for (i, &reg) in a.iter().enumerate() {
        let (down, block) = (8 * (i % 2), i / 2);
        for (lane, &v) in regs.get32(reg).iter().enumerate() {
            let (g, t) = (lane / 4, lane % 4);
            if ty == MmaTy::Tf32 {
                f(g + down, t + 4 * block, element(ty, v, 0).into());
            } else {
                for half in 0..2 {
                    f(
                        g + down,
                        2 * t + 8 * block + half,
                        element(ty, v, half).into(),
                    );
                }
            }
        }
    }
}

/// Row and column of accumulator element `i` (f32 numbering) of a lane.
fn accumulator_place(lane: usize, i: usize) -> (usize, usize) {
    let (g, t) = (lane / 4, lane % 4);
    (g + 8 * (i / 2 % 2), 8 * (i / 4) + 2 * t + i % 2)
}

fn load_accumulators(regs: &Regs, op: &Wgmma, acc: &mut [f64]) {
    let n = op.n as usize;
    for (r, &reg) in op.d.iter().enumerate() {
        for (lane, &v) in regs.get32(reg).iter().enumerate() {
            let mut put = |i: usize, x: f32| {
                let (row, col) = accumulator_place(lane, i);
                acc[row * n + col] = x.into();
            };
            if op.acc == MmaTy::F32 {
                put(r, f32::from_bits(v));
            } else {
                put(2 * r, element(MmaTy::F16, v, 0));
                put(2 * r + 1, element(MmaTy::F16, v, 1));
            }
        }
    }
}

fn store_accumulators(regs: &mut Regs, op: &Wgmma, acc: &[f64]) {
    let n = op.n as usize;
    let at = |lane: usize, i: usize| {
        let (row, col) = accumulator_place(lane, i);
        acc[row * n + col]
    };
    for (r, &reg) in op.d.iter().enumerate() {
        let v: [u32; LANES] = std::array::from_fn(|lane| {
            if op.acc == MmaTy::F32 {
                to_f32(at(lane, r))
            } else {
                to_f16x2(at(lane, 2 * r), at(lane, 2 * r + 1))
            }
        });
        regs.put32(reg, &v, u32::MAX);
    }
}

/// acc += rows · b, in order of k.
#[inline]
fn accumulate(acc: &mut [f64], rows: &[f64], b: &[f64], n: usize, k: usize) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: this CPU has AVX2.
        return unsafe { accumulate_avx2(acc, rows, b, n, k) };
    }
    accumulate_inline(acc, rows, b, n, k);
}

/// # Safety
/// The CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn accumulate_avx2(acc: &mut [f64], rows: &[f64], b: &[f64], n: usize, k: usize) {
    accumulate_inline(acc, rows, b, n, k);
}

#[inline(always)]
fn accumulate_inline(acc: &mut [f64], rows: &[f64], b: &[f64], n: usize, k: usize) {
    for (row, acc) in rows.chunks_exact(MAX_K).zip(acc.chunks_exact_mut(n)) {
        for (x, b) in row.iter().zip(b.chunks_exact(n)).take(k) {
            for (sum, y) in acc.iter_mut().zip(b) {
                *sum += x * y;
            }
        }
    }
}

/// A warp's own view of its `wgmma`s.
#[derive(Clone, Debug, Default)]
pub(crate) struct WarpWgmma {
    /// Operations issued.
    issued: u64,
    /// Groups committed.
    commits: u32,
    /// Operations issued up to each group that has not been waited for.
    groups: Vec<u64>,
    /// Registers of operations not waited for: operation number, register, is it an accumulator?
    busy: Vec<(u64, Reg, bool)>,
    /// Has a `wgmma.fence` been executed, and which registers were written since?
    fenced: bool,
    dirty: Vec<bool>,
}

impl WarpWgmma {
    pub(crate) fn commit(&mut self) {
        self.commits += 1;
        self.groups.push(self.issued);
    }

    /// Operations that must be performed to leave `pending` groups.
    fn due(&self, pending: u32) -> u64 {
        match self.groups.len().checked_sub(pending as usize) {
            None | Some(0) => 0,
            Some(n) => self.groups[n - 1],
        }
    }

    /// Forgets the groups waited for; returns how many groups are complete in all.
    fn waited(&mut self, pending: u32) -> u32 {
        let upto = self.due(pending);
        let n = self.groups.len().saturating_sub(pending as usize);
        self.groups.drain(..n);
        self.busy.retain(|&(op, ..)| op >= upto);
        self.commits - self.groups.len() as u32
    }

    pub(crate) fn fence(&mut self) {
        self.fenced = true;
        self.dirty.fill(false);
    }

    /// Is anything in flight?
    #[inline(always)]
    pub(crate) fn is_busy(&self) -> bool {
        !self.busy.is_empty()
    }

    /// Is the register in use by an operation in flight?
    pub(crate) fn uses(&self, reg: Reg) -> bool {
        self.busy.iter().any(|&(_, r, _)| r == reg)
    }

    /// The register was written by an ordinary instruction.
    #[inline(always)]
    pub(crate) fn wrote(&mut self, reg: Reg) {
        let reg = reg as usize;
        if reg >= self.dirty.len() {
            self.dirty.resize(reg + 1, false);
        }
        self.dirty[reg] = true;
    }
}

impl State<'_> {
    /// Checks the register rules of §9.7.15.6–7, and marks the operation's registers in use.
    fn wgmma_registers(&mut self, warp: &mut Warp, op: &Wgmma) -> Exec<()> {
        if self.races.is_none() {
            return Ok(());
        }
        let w = &mut warp.wgmma;
        if !w.fenced {
            return Err(tensor("no `wgmma.fence` before the first `wgmma.mma_async`").into());
        }
        let a: &[Reg] = match &op.a {
            WgmmaA::Registers(regs) => regs,
            WgmmaA::Descriptor(_) => &[],
        };
        let dirty = |r: &&Reg| w.dirty.get(**r as usize) == Some(&true);
        if op.d.iter().chain(a).find(dirty).is_some() {
            return Err(
                tensor("a register of A or D was written after the last `wgmma.fence`").into(),
            );
        }
        // Chained accumulation in the same registers is allowed; anything else must wait.
        let clash = |&(_, r, accumulates): &(u64, Reg, bool)| {
            a.contains(&r) && accumulates || op.d.contains(&r) && !accumulates
        };
        if w.busy.iter().any(clash) {
            return Err(FaultKind::AsyncInFlight(
                "a register of this `wgmma` belongs to one in flight".into(),
            )
            .into());
        }
        let number = w.issued;
        // One entry a register: the last operation to use it.
        w.busy
            .retain(|&(_, r, _)| !op.d.contains(&r) && !a.contains(&r));
        w.busy.extend(op.d.iter().map(|&r| (number, r, true)));
        w.busy.extend(a.iter().map(|&r| (number, r, false)));
        Ok(())
    }

    /// Registers of an ordinary instruction: none may be in use by a `wgmma` in flight.
    #[inline(always)]
    pub(in crate::exec) fn watch_registers(&mut self, warp: &mut Warp, m: u32) -> Exec<()> {
        let touched = &self.launch.touched[self.pc as usize];
        if warp.wgmma.is_busy() {
            let all = touched.reads.iter().chain(&touched.writes);
            if let Some(&reg) = all.clone().find(|&&r| warp.wgmma.uses(r)) {
                let lane = lanes(m).next().unwrap_or(0);
                let what = if touched.writes.contains(&reg) {
                    "written"
                } else {
                    "read"
                };
                return Err(FaultKind::AsyncInFlight(format!(
                    "a register of a `wgmma` in flight is {what} before `wgmma.wait_group`"
                ))
                .at(lane));
            }
        }
        for &reg in &touched.writes {
            warp.wgmma.wrote(reg);
        }
        Ok(())
    }
}
