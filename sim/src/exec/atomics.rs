//! `atom` and `red`.

use super::access::get;
use super::cluster::State;
use super::place::{Memory, addresses, group_by_memory};
use super::regs::lanes;
use super::rmw::apply;
use super::warp::Warp;
use crate::checks::Touch;
use crate::fault::{Exec, FaultKind};
use crate::ir::AtomOp;

impl State<'_> {
    /// Lanes act one after the other, lowest first: one of the orders PTX allows.
    pub(super) fn atomic(&mut self, warp: &mut Warp, m: u32, op: &AtomOp) -> Exec<()> {
        let at = addresses(&warp.regs, &op.addr);
        let elem = op.ty.bytes();
        let bytes = elem * op.a.len() as u32;
        let cta = warp.id.cta;
        group_by_memory(op.space, &at, m, cta, |memory, mask, at| {
            match memory {
                Memory::Global => self.count_global(at, mask, bytes),
                Memory::Shared(_) => self.count_shared(at, mask, bytes),
                _ => {}
            }
            let touch = Touch {
                at,
                mask,
                bytes,
                write: true,
                order: op.order,
                scope: op.scope,
            };
            // Kept until the lanes have acted.
            let launch = self.launch;
            let is_checked = memory == Memory::Global && self.races.is_some();
            let mut locations = is_checked.then(|| launch.published.lock());
            self.atomic_order(warp.id, &touch, memory, locations.as_deref_mut())?;
            for lane in lanes(mask) {
                for i in 0..op.a.len() {
                    let a = get(warp, op.a[i], lane);
                    let b = op.b.map_or(0, |b| get(warp, b, lane));
                    let flushes = memory == Memory::Global;
                    let f = |old| apply(op.f, op.ty, [old, a, b], flushes);
                    let step = u64::from(elem) * i as u64;
                    let old = match memory {
                        Memory::Global => {
                            let (owner, offset) =
                                self.global_range(at[lane], bytes.into(), bytes.into(), lane)?;
                            self.check_written_global(owner, offset + step, at[lane], elem, lane)?;
                            owner.update(offset + step, elem, f)
                        }
                        Memory::Shared(_) if op.a.len() > 1 => {
                            return Err(FaultKind::OutOfBounds {
                                space: memory.name(),
                                address: at[lane],
                                bytes: bytes.into(),
                                detail: "atomic vectors work on global memory only".into(),
                            }
                            .at(lane));
                        }
                        Memory::Shared(rank) => {
                            let start = self.shared_range(
                                rank,
                                at[lane],
                                bytes.into(),
                                bytes.into(),
                                lane,
                            )? + step as usize;
                            self.check_written_shared(rank, start, at[lane], elem, lane)?;
                            let shared = &mut self.ctas[rank as usize].shared;
                            let old = shared.load(start, elem);
                            shared.store(start, elem, f(old));
                            old
                        }
                        Memory::Local | Memory::Param => {
                            return Err(FaultKind::OutOfBounds {
                                space: memory.name(),
                                address: at[lane],
                                bytes: bytes.into(),
                                detail: "atomics work on global and shared memory".into(),
                            }
                            .at(lane));
                        }
                    };
                    if let Some(&d) = op.dst.get(i) {
                        if d.wide {
                            warp.regs.r64[d.reg as usize].0[lane] = old;
                        } else {
                            warp.regs.r32[d.reg as usize].0[lane] = old as u32;
                        }
                    }
                }
            }
            self.progress();
            Ok(())
        })
    }

    fn check_written_global(
        &self,
        owner: &crate::memory::global::Allocation,
        offset: u64,
        address: u64,
        bytes: u32,
        lane: usize,
    ) -> Exec<()> {
        if self.launch.checks.uninitialised && !owner.is_written(offset, bytes) {
            let detail = self.launch.view.describe(address);
            let error = super::access::uninitialised("global", address, bytes.into(), detail, lane);
            return Err(error);
        }
        Ok(())
    }

    fn check_written_shared(
        &self,
        rank: u32,
        start: usize,
        address: u64,
        bytes: u32,
        lane: usize,
    ) -> Exec<()> {
        let shared = &self.ctas[rank as usize].shared;
        if self.launch.checks.uninitialised && !shared.is_written(start, bytes) {
            let detail = format!("byte {start} of shared memory");
            let error = super::access::uninitialised("shared", address, bytes.into(), detail, lane);
            return Err(error);
        }
        Ok(())
    }
}
