//! Operands → register indices, predicates and addresses.

use super::builder::Builder;
use super::scope::{Class, Symbol};
use super::{Decode, malformed, unsupported};
use crate::ir::kernel::{LaneMask, Preset};
use crate::ir::{Addr, IntTy, PRED_SINK, Pred, Reg, SINK, Slot, Space, Width};
use crate::ptx::ast::Operand;

/// A special register that is fixed for a warp, and whether it is 64 bits wide.
fn special(name: &str) -> Option<(Preset, bool)> {
    let axis = |s: &str| match s {
        "x" => Some(0u8),
        "y" => Some(1),
        "z" => Some(2),
        _ => None,
    };
    if let Some((base, dim)) = name.rsplit_once('.') {
        let i = axis(dim)?;
        let preset = match base {
            "%tid" => Preset::Tid(i),
            "%ntid" => Preset::Ntid(i),
            "%ctaid" => Preset::Ctaid(i),
            "%nctaid" => Preset::Nctaid(i),
            "%clusterid" => Preset::ClusterId(i),
            "%nclusterid" => Preset::NClusterId(i),
            "%cluster_ctaid" => Preset::ClusterCtaid(i),
            "%cluster_nctaid" => Preset::ClusterNctaid(i),
            _ => return None,
        };
        return Some((preset, false));
    }
    let preset = match name {
        "%laneid" => Preset::LaneId,
        "%warpid" => Preset::WarpId,
        "%nwarpid" => Preset::NWarpId,
        "%lanemask_eq" => Preset::LaneMask(LaneMask::Eq),
        "%lanemask_le" => Preset::LaneMask(LaneMask::Le),
        "%lanemask_lt" => Preset::LaneMask(LaneMask::Lt),
        "%lanemask_ge" => Preset::LaneMask(LaneMask::Ge),
        "%lanemask_gt" => Preset::LaneMask(LaneMask::Gt),
        "%cluster_ctarank" => Preset::ClusterCtaRank,
        "%cluster_nctarank" => Preset::ClusterNctaRank,
        "%smid" => Preset::SmId,
        "%nsmid" => Preset::NSmId,
        "%dynamic_smem_size" => Preset::DynamicSharedBytes,
        "%total_smem_size" => Preset::TotalSharedBytes,
        "%gridid" => return Some((Preset::GridId, true)),
        "WARP_SZ" => Preset::Value(32),
        _ => return None,
    };
    Some((preset, false))
}

impl<'a> Builder<'_, 'a> {
    fn symbol_preset(&mut self, name: &str, wide: bool, offset: i64) -> Decode<Option<Preset>> {
        let Some(mut symbol) = self.symbol(name) else {
            return Ok(None);
        };
        if let Symbol::ModuleShared(index) = symbol {
            symbol = self.module_shared_offset(index)?;
        }
        let value = |base: u32| Preset::Value(i64::from(base).wrapping_add(offset) as u64);
        Ok(Some(match symbol {
            Symbol::Global(_) if !wide => {
                return Err(malformed(format!("address of `{name}` needs 64 bits")));
            }
            Symbol::Global(variable) => Preset::Global { variable, offset },
            Symbol::DynamicShared if offset == 0 => Preset::DynamicSharedBase,
            Symbol::DynamicShared => {
                return Err(unsupported(
                    "offset to a dynamic shared array in an operand",
                ));
            }
            Symbol::Shared(at) => Preset::Shared(i64::from(at).wrapping_add(offset) as u64),
            Symbol::Local(at) | Symbol::Param(at) => value(at),
            Symbol::ModuleShared(_) => unreachable!("resolved above"),
        }))
    }

    fn named(&mut self, name: &'a str, wide: bool) -> Decode<Reg> {
        if let Some((class, reg)) = self.register(name) {
            let want = if wide { Class::R64 } else { Class::R32 };
            if class != want {
                return Err(malformed(format!(
                    "`{name}` is a {} register, the instruction wants {} bits",
                    match class {
                        Class::R32 => "32-bit",
                        Class::R64 => "64-bit",
                        Class::Pred => "predicate",
                    },
                    if wide { 64 } else { 32 }
                )));
            }
            return Ok(reg);
        }
        if let Some((preset, is_wide)) = special(name) {
            if is_wide && !wide {
                return Err(unsupported(format!("narrow read of `{name}`")));
            }
            return Ok(self.preset(wide, preset));
        }
        if let Some(preset) = self.symbol_preset(name, wide, 0)? {
            return Ok(self.preset(wide, preset));
        }
        if name.starts_with('%') && self.scopes.iter().all(|s| s.find(name).is_none()) {
            return Err(malformed(format!("unknown register `{name}`")));
        }
        Err(malformed(format!("unknown name `{name}`")))
    }

    pub(super) fn src32(&mut self, operand: &Operand<'a>) -> Decode<Reg> {
        match *operand {
            Operand::Name(name) => self.named(name, false),
            Operand::Int(value) => Ok(self.const32(value as u32)),
            Operand::F32(bits) => Ok(self.const32(bits)),
            Operand::F64(bits) => Ok(self.const32((f64::from_bits(bits) as f32).to_bits())),
            _ => Err(malformed("expected a 32-bit register or constant")),
        }
    }

    /// A source of a 16-bit operation: a constant is cut to 16 bits.
    pub(super) fn src16(&mut self, operand: &Operand<'a>) -> Decode<Reg> {
        match *operand {
            Operand::Int(value) => Ok(self.const32(value as u32 & 0xffff)),
            _ => self.src32(operand),
        }
    }

    pub(super) fn src64(&mut self, operand: &Operand<'a>) -> Decode<Reg> {
        match *operand {
            Operand::Name(name) => self.named(name, true),
            Operand::Int(value) | Operand::F64(value) => Ok(self.const64(value)),
            _ => Err(malformed("expected a 64-bit register or constant")),
        }
    }

    pub(super) fn src_int(&mut self, t: IntTy, operand: &Operand<'a>) -> Decode<Reg> {
        match t.bits() {
            16 => self.src16(operand),
            32 => self.src32(operand),
            _ => self.src64(operand),
        }
    }

    pub(super) fn src(&mut self, width: Width, operand: &Operand<'a>) -> Decode<Reg> {
        match width {
            Width::W32 => self.src32(operand),
            Width::W64 => self.src64(operand),
        }
    }

    pub(super) fn dst(&mut self, width: Width, operand: &Operand<'a>) -> Decode<Reg> {
        match *operand {
            Operand::Sink => Ok(SINK),
            Operand::Name(name) => match (self.register(name), width) {
                (Some((Class::R32, reg)), Width::W32) | (Some((Class::R64, reg)), Width::W64) => {
                    Ok(reg)
                }
                (Some(_), _) => Err(malformed(format!(
                    "`{name}` has the wrong width for this destination"
                ))),
                (None, _) => Err(malformed(format!("unknown register `{name}`"))),
            },
            _ => Err(malformed("expected a destination register")),
        }
    }

    pub(super) fn dst32(&mut self, operand: &Operand<'a>) -> Decode<Reg> {
        self.dst(Width::W32, operand)
    }

    pub(super) fn dst64(&mut self, operand: &Operand<'a>) -> Decode<Reg> {
        self.dst(Width::W64, operand)
    }

    pub(super) fn dst_int(&mut self, t: IntTy, operand: &Operand<'a>) -> Decode<Reg> {
        self.dst(t.width(), operand)
    }

    pub(super) fn dst_pred(&mut self, operand: &Operand<'a>) -> Decode<Reg> {
        match *operand {
            Operand::Sink => Ok(PRED_SINK),
            Operand::Name(name) => self.pred_name(name, true),
            _ => Err(malformed("expected a predicate register")),
        }
    }

    /// The predicate register `name`; `_` is allowed as a destination.
    pub(super) fn pred_name(&mut self, name: &'a str, destination: bool) -> Decode<Reg> {
        if destination && name == "_" {
            return Ok(PRED_SINK);
        }
        match self.register(name) {
            Some((Class::Pred, reg)) => Ok(reg),
            Some(_) => Err(malformed(format!("`{name}` is not a predicate"))),
            None => Err(malformed(format!("unknown predicate `{name}`"))),
        }
    }

    pub(super) fn pred(&mut self, operand: &Operand<'a>) -> Decode<Pred> {
        let (name, negated) = match *operand {
            Operand::Name(name) => (name, false),
            Operand::Not(name) => (name, true),
            Operand::Int(value) => {
                return Ok(Pred {
                    negated: value == 0,
                    ..Pred::TRUE
                });
            }
            _ => return Err(malformed("expected a predicate")),
        };
        Ok(Pred {
            reg: self.pred_name(name, false)?,
            negated,
        })
    }

    /// Width of the register an operand names, or `None` for constants and the sink.
    pub(super) fn width_of(&mut self, operand: &Operand<'a>) -> Decode<Option<Width>> {
        match *operand {
            Operand::Name(name) => Ok(match self.register(name) {
                Some((Class::R32, _)) => Some(Width::W32),
                Some((Class::R64, _)) => Some(Width::W64),
                Some((Class::Pred, _)) => {
                    return Err(malformed(format!("`{name}` is a predicate")));
                }
                None => None,
            }),
            _ => Ok(None),
        }
    }

    /// A source whose register may be wider than the type needs (PTX ISA §9.4.1).
    pub(super) fn slot_src(&mut self, bytes: u64, operand: &Operand<'a>) -> Decode<Slot> {
        let wide = self
            .width_of(operand)?
            .map_or(bytes == 8, |w| w == Width::W64);
        let reg = if wide {
            self.src64(operand)?
        } else {
            self.src32(operand)?
        };
        Ok(Slot { reg, wide })
    }

    pub(super) fn slot_dst(&mut self, bytes: u64, operand: &Operand<'a>) -> Decode<Slot> {
        let wide = self
            .width_of(operand)?
            .map_or(bytes == 8, |w| w == Width::W64);
        let width = if wide { Width::W64 } else { Width::W32 };
        Ok(Slot {
            reg: self.dst(width, operand)?,
            wide,
        })
    }

    /// Registers of a `{…}` list, or of a single register.
    pub(super) fn list<'o>(operand: &'o Operand<'a>) -> &'o [Operand<'a>] {
        match operand {
            Operand::Vector(items) => items,
            single => std::slice::from_ref(single),
        }
    }

    /// The address a memory operand names, plus the space a symbol forces on it.
    pub(super) fn address(&mut self, operand: &Operand<'a>) -> Decode<(Addr, Option<Space>)> {
        let Operand::Memory(base, offset, rest) = operand else {
            return Err(malformed("expected a memory operand `[…]`"));
        };
        if !rest.is_empty() {
            return Err(malformed("unexpected coordinates in a memory operand"));
        }
        self.address_of(base, *offset)
    }

    pub(super) fn address_of(
        &mut self,
        base: &Operand<'a>,
        offset: i64,
    ) -> Decode<(Addr, Option<Space>)> {
        let fixed = |reg| Addr {
            base: reg,
            wide: true,
            offset,
        };
        match *base {
            Operand::Int(value) => {
                let reg = self.const64(value);
                Ok((fixed(reg), None))
            }
            Operand::Name(name) => {
                if let Some((class, base)) = self.register(name) {
                    if class == Class::Pred {
                        return Err(malformed(format!("`{name}` is not an address")));
                    }
                    let wide = class == Class::R64;
                    return Ok((Addr { base, wide, offset }, None));
                }
                let space = match self.symbol(name) {
                    Some(Symbol::Global(_)) => Space::Global,
                    Some(Symbol::ModuleShared(_) | Symbol::Shared(_) | Symbol::DynamicShared) => {
                        Space::Shared
                    }
                    Some(Symbol::Local(_)) => Space::Local,
                    Some(Symbol::Param(_)) => Space::Param,
                    None => return Err(malformed(format!("unknown address `{name}`"))),
                };
                let preset = self
                    .symbol_preset(name, true, 0)?
                    .ok_or_else(|| malformed("unknown symbol"))?;
                let reg = self.preset(true, preset);
                Ok((fixed(reg), Some(space)))
            }
            _ => Err(malformed("expected a register, symbol or constant address")),
        }
    }
}
