//! The product of a `wgmma`: operands from shared memory and registers, and the accumulation.

use super::descriptor::Descriptor;
use super::element::element;
use super::product::{self, Columns, ROWS, Rows};
use super::wgmma::{Issued, M, WARPS};
use crate::decode::SHARED_BASE;
use crate::exec::regs::LANES;
use crate::exec::vector::{MultiplyAdd, vectorised};
use crate::exec::{State, Warp};
use crate::fault::{Exec, FaultKind};
use crate::ir::{MmaTy, Wgmma, WgmmaA};

/// Bytes of a matrix that are contiguous in every layout.
pub(super) const PIECE: usize = 16;

/// Most elements of a piece.
const MOST: usize = PIECE / 2;

impl State<'_> {
    pub(super) fn multiply(&mut self, warps: &mut [Warp], op: &Wgmma, issued: Issued) -> Exec<()> {
        multiply(self, warps, op, issued)
    }

    /// Calls `f(mn, k, element)` for every element of a matrix in shared memory.
    #[inline(always)]
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
            let piece = elements(ty, shared.bytes_at(start, PIECE));
            for (i, &x) in piece[..PIECE / elem].iter().enumerate() {
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

/// The elements of a piece.
#[inline(always)]
fn elements(ty: MmaTy, raw: &[u8]) -> [f64; MOST] {
    let mut words = [0; MOST];
    if ty == MmaTy::Tf32 {
        for (word, raw) in words.iter_mut().zip(raw.as_chunks().0) {
            *word = u32::from_le_bytes(*raw);
        }
    } else {
        for (word, raw) in words.iter_mut().zip(raw.as_chunks().0) {
            *word = u16::from_le_bytes(*raw).into();
        }
    }
    words.map(|word| element(ty, word, 0).into())
}

vectorised! {
    /// Performs `op`, whose warps are `warps`.
    fn multiply(state: &mut State<'_>, warps: &mut [Warp], op: &Wgmma, issued: Issued) -> Exec<()> = multiply_inline;
}

#[inline(always)]
fn multiply_inline<A: MultiplyAdd>(
    state: &mut State<'_>,
    warps: &mut [Warp],
    op: &Wgmma,
    issued: Issued,
) -> Exec<()> {
    let cta = warps[0].id.cta;
    let (n, k) = (op.n as usize, op.k as usize);
    let sign = |negate: bool| if negate { -1.0 } else { 1.0 };
    let mut columns = Columns::new(n);
    let negate = sign(op.negate_b);
    state.read_matrix(cta, issued.b, op.ab, [n, k], op.trans_b, |col, kk, x| {
        columns.set(kk, col, x * negate);
    })?;
    let mut of_warps = [const { Rows::ZERO }; WARPS];
    if let WgmmaA::Descriptor(_) = op.a {
        let negate = sign(op.negate_a);
        state.read_matrix(cta, issued.a, op.ab, [M, k], op.trans_a, |row, kk, x| {
            of_warps[row / ROWS].set(row % ROWS, kk, x * negate);
        })?;
    }
    let mut acc = vec![[0.0; LANES]; n * ROWS / LANES];
    for (warp, rows) in warps.iter_mut().zip(&mut of_warps) {
        if let WgmmaA::Registers(a) = &op.a {
            *rows = Rows::of_fragment(&warp.regs, a, op.ab);
            if op.negate_a {
                rows.negate();
            }
        }
        if issued.scale_d {
            product::load(&warp.regs, &op.d, op.acc, &mut acc);
        } else {
            acc.fill([0.0; LANES]);
        }
        product::add::<A>(&mut acc, rows, &columns, k);
        product::store(&mut warp.regs, &op.d, op.acc, &acc, u32::MAX);
    }
    Ok(())
}

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
