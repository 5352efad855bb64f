//! The product of a `wgmma`: operands from shared memory and registers, and the accumulation.

use super::descriptor::Descriptor;
use super::element::{element, to_f16x2, to_f32};
use super::wgmma::{Issued, M, WARP_ROWS};
use crate::decode::SHARED_BASE;
use crate::exec::regs::{LANES, Regs};
use crate::exec::{State, Warp};
use crate::fault::{Exec, FaultKind};
use crate::ir::{MmaTy, Reg, Wgmma, WgmmaA};

const MAX_K: usize = 16;

impl State<'_> {
    pub(super) fn multiply(&mut self, warps: &mut [Warp], op: &Wgmma, issued: Issued) -> Exec<()> {
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
pub(super) const PIECE: usize = 16;

/// First element (mn, k) of each [`PIECE`] of a matrix; pieces run along the major dimension.
pub(super) fn pieces(
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

pub(super) fn element_bytes(ty: MmaTy) -> u64 {
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
