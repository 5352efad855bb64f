//! Branches and other control instructions (PTX ISA §9.7.12, §9.7.13.13, §9.7.19).

use super::builder::Builder;
use super::mods::Mods;
use super::{Decode, malformed, unsupported, want};
use crate::ir::Op;
use crate::ptx::ast::Operand;

impl<'a> Builder<'_, 'a> {
    pub(super) fn control(&mut self, mods: &mut Mods<'a>, o: &[Operand<'a>]) -> Decode<Op> {
        match mods.mnemonic {
            "bra" => {
                want(o, 1)?;
                mods.take("uni");
                let Operand::Name(name) = o[0] else {
                    return Err(malformed("`bra` needs a label"));
                };
                Ok(Op::Bra {
                    target: self.label(name)?,
                })
            }
            "brx" => {
                want(o, 2)?;
                mods.take("uni");
                if !mods.take("idx") {
                    return Err(unsupported("`brx` without `.idx`"));
                }
                let Operand::Name(list) = o[1] else {
                    return Err(malformed("`brx.idx` needs a `.branchtargets` label"));
                };
                let targets = self
                    .branch_targets(list)?
                    .into_iter()
                    .map(|name| self.label(name))
                    .collect::<Decode<_>>()?;
                Ok(Op::BrxIdx {
                    index: self.src32(&o[0])?,
                    targets,
                })
            }
            "exit" => Ok(Op::Exit),
            "trap" => Ok(Op::Trap),
            "brkpt" => Ok(Op::Nop),
            "nanosleep" => {
                mods.take("u32");
                Ok(Op::Nanosleep)
            }
            "griddepcontrol" => {
                if mods.take("wait") {
                    Ok(Op::GridDepWait)
                } else if mods.take("launch_dependents") {
                    Ok(Op::GridDepLaunch)
                } else {
                    Err(unsupported("this `griddepcontrol`"))
                }
            }
            other => Err(unsupported(format!("instruction `{other}`"))),
        }
    }
}
