//! `ldmatrix` and `stmatrix` of 8×8 matrices of 16-bit elements (PTX ISA §9.7.14.5.15–16).
//!
//! Lane `8·i + r` gives the address of row `r` of matrix `i`, 16 bytes. Lane `l` holds elements
//! `2·(l mod 4)` and the next of row `l / 4`; with `.trans`, of column `l / 4`.

use crate::checks::Touch;
use crate::exec::place::{Memory, addresses, locate};
use crate::exec::regs::{LANES, lanes};
use crate::exec::{State, Warp};
use crate::fault::{Exec, FaultKind};
use crate::ir::{MatrixMove, Order, Scope, Space};

/// Bytes of a matrix row.
const ROW_BYTES: u32 = 16;
/// Rows of a matrix.
const ROWS: usize = 8;

impl State<'_> {
    /// Checks the row addresses; returns the start of each row in the CTA's shared memory.
    fn matrix_rows(
        &mut self,
        warp: &Warp,
        op: &MatrixMove,
        write: bool,
    ) -> Exec<([usize; LANES], u32)> {
        let mask = u32::MAX >> (LANES - ROWS * op.regs.len());
        let space = if op.generic {
            Space::Generic
        } else {
            Space::Shared
        };
        let raw = addresses(&warp.regs, &op.addr);
        let mut at = [0; LANES];
        let mut starts = [0; LANES];
        for lane in lanes(mask) {
            match locate(space, raw[lane], warp.id.cta, lane)? {
                (Memory::Shared(rank), offset) if rank == warp.id.cta => {
                    at[lane] = offset;
                    let bytes = ROW_BYTES.into();
                    starts[lane] = self.shared_range(rank, offset, bytes, bytes, lane)?;
                }
                (memory, _) => {
                    return Err(FaultKind::OutOfBounds {
                        space: memory.name(),
                        address: raw[lane],
                        bytes: ROW_BYTES.into(),
                        detail: "a matrix row must lie in the CTA's own shared memory".into(),
                    }
                    .at(lane));
                }
            }
        }
        self.count_shared(&at, mask, ROW_BYTES);
        let touch = Touch {
            at: &at,
            mask,
            bytes: ROW_BYTES,
            write,
            order: Order::Weak,
            scope: Scope::Cta,
        };
        self.shared_access(warp.id, &touch, warp.id.cta)?;
        Ok((starts, mask))
    }

    pub(in crate::exec) fn ldmatrix(
        &mut self,
        warp: &mut Warp,
        m: u32,
        op: &MatrixMove,
    ) -> Exec<()> {
        let (starts, mask) = self.matrix_rows(warp, op, false)?;
        let shared = &self.ctas[warp.id.cta as usize].shared;
        for lane in lanes(mask) {
            if self.launch.checks.uninitialised && !shared.is_written(starts[lane], ROW_BYTES) {
                return Err(FaultKind::Uninitialised {
                    space: "shared",
                    address: addresses(&warp.regs, &op.addr)[lane],
                    bytes: ROW_BYTES.into(),
                    detail: format!("matrix row at byte {} of shared memory", starts[lane]),
                }
                .at(lane));
            }
        }
        for (i, &reg) in op.regs.iter().enumerate() {
            let rows: [[u16; ROWS]; ROWS] = std::array::from_fn(|r| {
                let start = starts[ROWS * i + r];
                std::array::from_fn(|c| shared.load(start + 2 * c, 2) as u16)
            });
            let value = std::array::from_fn(|lane| {
                let (major, minor) = (lane / 4, 2 * (lane % 4));
                let (low, high) = if op.trans {
                    (rows[minor][major], rows[minor + 1][major])
                } else {
                    (rows[major][minor], rows[major][minor + 1])
                };
                u32::from(low) | u32::from(high) << 16
            });
            warp.regs.put32(reg, &value, m);
        }
        Ok(())
    }

    pub(in crate::exec) fn stmatrix(&mut self, warp: &mut Warp, op: &MatrixMove) -> Exec<()> {
        let (starts, _) = self.matrix_rows(warp, op, true)?;
        let shared = &mut self.ctas[warp.id.cta as usize].shared;
        for (i, &reg) in op.regs.iter().enumerate() {
            let value = warp.regs.get32(reg);
            for (lane, &v) in value.iter().enumerate() {
                let (major, minor) = (lane / 4, 2 * (lane % 4));
                for half in 0..2 {
                    let (row, col) = if op.trans {
                        (minor + half, major)
                    } else {
                        (major, minor + half)
                    };
                    let start = starts[ROWS * i + row] + 2 * col;
                    shared.store(start, 2, u64::from(v >> (16 * half) & 0xffff));
                }
            }
        }
        Ok(())
    }
}
