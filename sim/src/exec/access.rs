//! Loads and stores.

use super::cluster::State;
use super::place::{Memory, addresses, group_by_memory};
use super::regs::{LANES, lanes};
use super::warp::Warp;
use crate::checks::Touch;
use crate::fault::{Exec, FaultKind};
use crate::ir::{LdSt, Slot};

/// Largest piece whose "was it written" bits are looked up at once.
const PIECE: u32 = 16;

/// Puts a loaded element into one lane of its register.
#[inline(always)]
fn put(warp: &mut Warp, slot: Slot, lane: usize, value: u64) {
    if slot.wide {
        warp.regs.r64[slot.reg as usize].0[lane] = value;
    } else {
        warp.regs.r32[slot.reg as usize].0[lane] = value as u32;
    }
}

/// One lane of a source register.
#[inline(always)]
pub(super) fn get(warp: &Warp, slot: Slot, lane: usize) -> u64 {
    if slot.wide {
        warp.regs.r64[slot.reg as usize].0[lane]
    } else {
        warp.regs.r32[slot.reg as usize].0[lane].into()
    }
}

#[inline(always)]
fn sign_extend(value: u64, bytes: u32, signed: bool) -> u64 {
    if signed {
        let shift = 64 - 8 * bytes;
        ((value << shift) as i64 >> shift) as u64
    } else {
        value
    }
}

fn touch<'a>(at: &'a [u64; LANES], mask: u32, op: &LdSt, write: bool) -> Touch<'a> {
    Touch {
        at,
        mask,
        bytes: op.bytes(),
        write,
        order: op.order,
        scope: op.scope,
    }
}

pub(super) fn uninitialised(
    space: &'static str,
    address: u64,
    bytes: u64,
    detail: String,
    lane: usize,
) -> Box<crate::fault::Raise> {
    FaultKind::Uninitialised {
        space,
        address,
        bytes,
        detail,
    }
    .at(lane)
}

impl State<'_> {
    pub(super) fn load(&mut self, warp: &mut Warp, m: u32, op: &LdSt) -> Exec<()> {
        let at = addresses(&warp.regs, &op.addr);
        let cta = warp.id.cta;
        group_by_memory(
            op.space,
            &at,
            m,
            cta,
            |memory, mask, offsets| match memory {
                Memory::Global => self.load_global(warp, mask, offsets, op),
                Memory::Shared(rank) => self.load_shared(warp, mask, offsets, op, rank),
                Memory::Local => self.load_local(warp, mask, offsets, op),
                Memory::Param => self.load_param(warp, mask, offsets, op),
            },
        )
    }

    fn load_global(
        &mut self,
        warp: &mut Warp,
        mask: u32,
        at: &[u64; LANES],
        op: &LdSt,
    ) -> Exec<()> {
        let (bytes, elem) = (op.bytes(), op.elem_bytes);
        self.count_global(at, mask, bytes);
        // Order first: that something has not arrived yet says more than that it is not there.
        self.global_access(warp.id, &touch(at, mask, op, false))?;
        for lane in lanes(mask) {
            let (owner, offset) = self.global_range(at[lane], bytes.into(), bytes.into(), lane)?;
            let written = (0..bytes.div_ceil(PIECE))
                .all(|i| owner.is_written(offset + u64::from(i * PIECE), bytes.min(PIECE)));
            if !written && self.launch.checks.uninitialised {
                let detail = self.launch.view.describe(at[lane]);
                return Err(uninitialised(
                    "global",
                    at[lane],
                    bytes.into(),
                    detail,
                    lane,
                ));
            }
            for (i, &slot) in op.slots.iter().enumerate() {
                let value = owner.load(offset + u64::from(elem) * i as u64, elem);
                put(warp, slot, lane, sign_extend(value, elem, op.signed));
            }
        }
        self.global_loaded(warp.id, &touch(at, mask, op, false));
        Ok(())
    }

    fn load_shared(
        &mut self,
        warp: &mut Warp,
        mask: u32,
        at: &[u64; LANES],
        op: &LdSt,
        rank: u32,
    ) -> Exec<()> {
        let (bytes, elem) = (op.bytes(), op.elem_bytes);
        self.count_shared(at, mask, bytes);
        let mut starts = [0; LANES];
        for lane in lanes(mask) {
            starts[lane] = self.shared_range(rank, at[lane], bytes.into(), bytes.into(), lane)?;
        }
        self.shared_access(warp.id, &touch(at, mask, op, false), rank)?;
        for lane in lanes(mask) {
            let start = starts[lane];
            let shared = &self.ctas[rank as usize].shared;
            if self.launch.checks.uninitialised && !shared.is_written(start, bytes) {
                let detail = format!("byte {start} of shared memory");
                return Err(uninitialised(
                    "shared",
                    at[lane],
                    bytes.into(),
                    detail,
                    lane,
                ));
            }
        }
        let shared = &self.ctas[rank as usize].shared;
        for (i, &slot) in op.slots.iter().enumerate() {
            let ahead = elem as usize * i;
            if elem == 4 && !slot.wide {
                // Nearly all are: a register at a time.
                let register = &mut warp.regs.r32[slot.reg as usize].0;
                for lane in lanes(mask) {
                    register[lane] = shared.word(starts[lane] + ahead);
                }
                continue;
            }
            for lane in lanes(mask) {
                let value = shared.load(starts[lane] + ahead, elem);
                put(warp, slot, lane, sign_extend(value, elem, op.signed));
            }
        }
        Ok(())
    }

    fn load_local(&mut self, warp: &mut Warp, mask: u32, at: &[u64; LANES], op: &LdSt) -> Exec<()> {
        let (bytes, elem) = (op.bytes(), op.elem_bytes);
        let limit = self.launch.kernel.local_bytes;
        for lane in lanes(mask) {
            let start =
                Self::small_range("local", limit, at[lane], bytes.into(), bytes.into(), lane)?;
            if self.launch.checks.uninitialised && !warp.local.is_written(lane, start, bytes) {
                let detail = format!("byte {start} of the thread's local memory");
                return Err(uninitialised("local", at[lane], bytes.into(), detail, lane));
            }
            for (i, &slot) in op.slots.iter().enumerate() {
                let value = warp.local.load(lane, start + elem as usize * i, elem);
                put(warp, slot, lane, sign_extend(value, elem, op.signed));
            }
        }
        Ok(())
    }

    fn load_param(&mut self, warp: &mut Warp, mask: u32, at: &[u64; LANES], op: &LdSt) -> Exec<()> {
        let (bytes, elem) = (op.bytes(), op.elem_bytes);
        let params = &self.launch.params;
        for lane in lanes(mask) {
            let limit = params.len() as u32;
            let start =
                Self::small_range("param", limit, at[lane], bytes.into(), bytes.into(), lane)?;
            for (i, &slot) in op.slots.iter().enumerate() {
                let from = start + elem as usize * i;
                let mut raw = [0; 8];
                raw[..elem as usize].copy_from_slice(&params[from..from + elem as usize]);
                let value = u64::from_le_bytes(raw);
                put(warp, slot, lane, sign_extend(value, elem, op.signed));
            }
        }
        Ok(())
    }

    /// Lanes whose store is not a repetition of an earlier lane's: one value written by several lanes
    /// of an instruction is no race among them.
    fn first_writers(&self, warp: &Warp, mask: u32, at: &[u64; LANES], op: &LdSt) -> u32 {
        if self.races.is_none() {
            return mask;
        }
        let mut neighbours = lanes(mask).zip(lanes(mask).skip(1));
        if neighbours.all(|(a, b)| at[a] < at[b]) {
            return mask;
        }
        let mut first = mask;
        for lane in lanes(mask) {
            let same = |&before: &usize| {
                at[before] == at[lane]
                    && op
                        .slots
                        .iter()
                        .all(|&s| get(warp, s, before) == get(warp, s, lane))
            };
            if lanes(mask & ((1 << lane) - 1)).any(|before| same(&before)) {
                first &= !(1 << lane);
            }
        }
        first
    }

    pub(super) fn store(&mut self, warp: &mut Warp, m: u32, op: &LdSt) -> Exec<()> {
        let at = addresses(&warp.regs, &op.addr);
        let (bytes, elem) = (op.bytes(), op.elem_bytes);
        let cta = warp.id.cta;
        group_by_memory(op.space, &at, m, cta, |memory, mask, at| {
            match memory {
                Memory::Global => {
                    self.count_global(at, mask, bytes);
                    let first = self.first_writers(warp, mask, at, op);
                    self.global_access(warp.id, &touch(at, first, op, true))?;
                    for lane in lanes(mask) {
                        let (owner, offset) =
                            self.global_range(at[lane], bytes.into(), bytes.into(), lane)?;
                        for (i, &slot) in op.slots.iter().enumerate() {
                            let value = get(warp, slot, lane);
                            owner.store(offset + u64::from(elem) * i as u64, elem, value);
                        }
                    }
                }
                Memory::Shared(rank) => {
                    self.count_shared(at, mask, bytes);
                    for lane in lanes(mask) {
                        self.shared_range(rank, at[lane], bytes.into(), bytes.into(), lane)?;
                    }
                    let first = self.first_writers(warp, mask, at, op);
                    self.shared_access(warp.id, &touch(at, first, op, true), rank)?;
                    for lane in lanes(mask) {
                        let start =
                            self.shared_range(rank, at[lane], bytes.into(), bytes.into(), lane)?;
                        let shared = &mut self.ctas[rank as usize].shared;
                        for (i, &slot) in op.slots.iter().enumerate() {
                            let value = get(warp, slot, lane);
                            shared.store(start + elem as usize * i, elem, value);
                        }
                    }
                }
                Memory::Local => {
                    let limit = self.launch.kernel.local_bytes;
                    for lane in lanes(mask) {
                        let start = Self::small_range(
                            "local",
                            limit,
                            at[lane],
                            bytes.into(),
                            bytes.into(),
                            lane,
                        )?;
                        for (i, &slot) in op.slots.iter().enumerate() {
                            let value = get(warp, slot, lane);
                            warp.local
                                .store(lane, start + elem as usize * i, elem, value);
                        }
                    }
                }
                Memory::Param => {
                    let lane = mask.trailing_zeros() as usize;
                    return Err(FaultKind::OutOfBounds {
                        space: memory.name(),
                        address: at[lane],
                        bytes: bytes.into(),
                        detail: "kernel parameters are read-only".into(),
                    }
                    .at(lane));
                }
            }
            Ok(())
        })
    }
}
