//! Matrix instructions and register reallocation (PTX ISA §9.7.14, §9.7.15, §9.7.19.5).

use super::builder::Builder;
use super::memory::space;
use super::mods::Mods;
use super::{Decode, malformed, unsupported, want};
use crate::ir::{MatrixMove, Mma, MmaTy, Op, Reg, Space, Wgmma, WgmmaA};
use crate::ptx::ast::{Operand, Ty};

fn mma_ty(mods: &mut Mods<'_>) -> Decode<MmaTy> {
    match mods.ty()? {
        Ty::F16 => Ok(MmaTy::F16),
        Ty::Bf16 => Ok(MmaTy::Bf16),
        Ty::Tf32 => Ok(MmaTy::Tf32),
        Ty::F32 => Ok(MmaTy::F32),
        _ => Err(unsupported("this matrix element type")),
    }
}

/// `.mMnNkK`.
fn shape(mods: &mut Mods<'_>) -> Decode<(u32, u32, u32)> {
    mods.find(|s| {
        let (m, rest) = s.strip_prefix('m')?.split_once('n')?;
        let (n, k) = rest.split_once('k')?;
        Some((m.parse().ok()?, n.parse().ok()?, k.parse().ok()?))
    })
    .ok_or_else(|| unsupported("no matrix shape"))
}

fn imm(operand: &Operand<'_>) -> Decode<i64> {
    match operand {
        Operand::Int(value) => Ok(*value as i64),
        _ => Err(malformed("expected an integer constant")),
    }
}

impl<'a> Builder<'_, 'a> {
    fn regs32(&mut self, operand: &Operand<'a>, n: usize, dst: bool) -> Decode<Box<[Reg]>> {
        let list = Self::list(operand);
        if list.len() != n {
            return Err(malformed(format!(
                "{n} registers expected, {} given",
                list.len()
            )));
        }
        list.iter()
            .map(|o| if dst { self.dst32(o) } else { self.src32(o) })
            .collect()
    }

    pub(super) fn tensor(&mut self, mods: &mut Mods<'a>, o: &[Operand<'a>]) -> Decode<Op> {
        match mods.mnemonic {
            "ldmatrix" => self.matrix_move(mods, o, true),
            "stmatrix" => self.matrix_move(mods, o, false),
            "mma" => self.mma(mods, o),
            "wgmma" => self.wgmma(mods, o),
            _ => {
                want(o, 1)?;
                sync_aligned(mods)?;
                let increase = mods.take("inc");
                if !increase && !mods.take("dec") {
                    return Err(unsupported("this `setmaxnreg`"));
                }
                mods.ty()?;
                let count = imm(&o[0])?;
                if !(24..=256).contains(&count) || count % 8 != 0 {
                    return Err(malformed(format!(
                        "`setmaxnreg` count {count} is not a multiple of 8 in 24…256"
                    )));
                }
                Ok(Op::SetMaxNReg {
                    count: count as u32,
                    increase,
                })
            }
        }
    }

    fn matrix_move(&mut self, mods: &mut Mods<'a>, o: &[Operand<'a>], load: bool) -> Decode<Op> {
        want(o, 2)?;
        sync_aligned(mods)?;
        if !mods.take("m8n8") {
            return Err(unsupported("this matrix shape"));
        }
        let count = mods
            .find(|m| match m {
                "x1" => Some(1),
                "x2" => Some(2),
                "x4" => Some(4),
                _ => None,
            })
            .ok_or_else(|| unsupported("no matrix count"))?;
        let trans = mods.take("trans");
        let place = space(mods);
        if mods.ty()? != Ty::B16 {
            return Err(unsupported("matrix elements other than b16"));
        }
        let (regs, address) = if load { (&o[0], &o[1]) } else { (&o[1], &o[0]) };
        let (addr, symbol) = self.address(address)?;
        let place = self.settle_space(place, symbol)?;
        if !matches!(place, Space::Generic | Space::Shared) {
            return Err(unsupported("matrix move outside shared memory"));
        }
        let matrix = Box::new(MatrixMove {
            addr,
            trans,
            generic: place == Space::Generic,
            regs: self.regs32(regs, count, load)?,
        });
        Ok(if load {
            Op::LdMatrix(matrix)
        } else {
            Op::StMatrix(matrix)
        })
    }

    fn mma(&mut self, mods: &mut Mods<'a>, o: &[Operand<'a>]) -> Decode<Op> {
        want(o, 4)?;
        sync_aligned(mods)?;
        let (m, n, k) = shape(mods)?;
        if !(mods.take("row") && mods.take("col")) {
            return Err(unsupported("operand layouts other than row.col"));
        }
        let (d, a, b, c) = (mma_ty(mods)?, mma_ty(mods)?, mma_ty(mods)?, mma_ty(mods)?);
        let known = (m, n) == (16, 8)
            && match a {
                MmaTy::F16 | MmaTy::Bf16 => k == 8 || k == 16,
                MmaTy::Tf32 => k == 4 || k == 8,
                MmaTy::F32 => false,
            };
        let acc = d == MmaTy::F32 || (d == MmaTy::F16 && a == MmaTy::F16);
        if !known || a != b || c != d || !acc {
            return Err(unsupported("this matrix multiplication"));
        }
        // Elements of A a thread holds: 16·k/32; of B: 8·k/32; packed two to a register for 16 bits.
        let per_reg = if a == MmaTy::Tf32 { 1 } else { 2 };
        let (na, nb) = (16 * k / 32 / per_reg, (8 * k / 32 / per_reg).max(1));
        let nd = if d == MmaTy::F32 { 4 } else { 2 };
        Ok(Op::Mma(Box::new(Mma {
            k,
            ab: a,
            acc: d,
            d: self.regs32(&o[0], nd, true)?,
            a: self.regs32(&o[1], na as usize, false)?,
            b: self.regs32(&o[2], nb as usize, false)?,
            c: self.regs32(&o[3], nd, false)?,
        })))
    }

    fn wgmma(&mut self, mods: &mut Mods<'a>, o: &[Operand<'a>]) -> Decode<Op> {
        sync_aligned(mods)?;
        if mods.take("fence") {
            want(o, 0)?;
            return Ok(Op::WgmmaFence);
        }
        if mods.take("commit_group") {
            want(o, 0)?;
            return Ok(Op::WgmmaCommit);
        }
        if mods.take("wait_group") {
            want(o, 1)?;
            let pending = u32::try_from(imm(&o[0])?).unwrap_or(u32::MAX);
            return Ok(Op::WgmmaWait { pending });
        }
        if !mods.take("mma_async") {
            return Err(unsupported("this `wgmma`"));
        }
        let (m, n, k) = shape(mods)?;
        let (d, a, b) = (mma_ty(mods)?, mma_ty(mods)?, mma_ty(mods)?);
        let depth = if a == MmaTy::Tf32 { 8 } else { 16 };
        let acc = d == MmaTy::F32 || (d == MmaTy::F16 && a == MmaTy::F16);
        if m != 64
            || n == 0
            || n > 256
            || !n.is_multiple_of(8)
            || k != depth
            || a != b
            || !acc
            || a == MmaTy::F32
        {
            return Err(unsupported("this warpgroup matrix multiplication"));
        }
        let from_registers = matches!(o.get(1), Some(Operand::Vector(_)));
        // Transposes exist for 16-bit types: both for SS, B's only for RS.
        let trans = match (a == MmaTy::Tf32, from_registers) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => 2,
        };
        want(o, 6 + trans)?;
        let nd = if d == MmaTy::F32 { n / 2 } else { n / 4 } as usize;
        let scale = |o: &Operand<'_>| match imm(o)? {
            1 => Ok(false),
            -1 => Ok(true),
            _ => Err(malformed("a scale must be 1 or -1")),
        };
        let flag = |o: Option<&Operand<'_>>| match o.map(imm).transpose()? {
            None | Some(0) => Ok(false),
            Some(1) => Ok(true),
            Some(_) => Err(malformed("a transpose flag must be 0 or 1")),
        };
        let a_source = if from_registers {
            WgmmaA::Registers(self.regs32(&o[1], 4, false)?)
        } else {
            WgmmaA::Descriptor(self.src64(&o[1])?)
        };
        Ok(Op::Wgmma(Box::new(Wgmma {
            n,
            k,
            ab: a,
            acc: d,
            d: self.regs32(&o[0], nd, true)?,
            a: a_source,
            b: self.src64(&o[2])?,
            scale_d: self.pred(&o[3])?,
            negate_a: scale(&o[4])?,
            negate_b: scale(&o[5])?,
            trans_a: if trans == 2 { flag(o.get(6))? } else { false },
            trans_b: flag(o.get(5 + trans).filter(|_| trans > 0))?,
        })))
    }
}

fn sync_aligned(mods: &mut Mods<'_>) -> Decode<()> {
    if mods.take("sync") && mods.take("aligned") {
        Ok(())
    } else {
        Err(unsupported("form without `.sync.aligned`"))
    }
}
