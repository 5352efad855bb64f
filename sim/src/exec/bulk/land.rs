//! Landing: moves the bytes of a copy and tells the waiting threads.

use super::boxes::rows;
use super::flight::{Cargo, Flight};
use crate::decode::SHARED_BASE;
use crate::exec::mbarrier::Key;
use crate::exec::rmw::apply;
use crate::exec::{State, Warp};
use crate::fault::{Exec, FaultKind};
use crate::ir::{RmwOp, RmwTy, Scope};
use crate::tensor_map::{OutOfBoundsFill, TensorMap, TensorMapType};

impl State<'_> {
    /// Lands flight `index`, which completes by an mbarrier.
    pub(in crate::exec) fn land(&mut self, index: usize) -> Exec<()> {
        let flight = self.flights.swap_remove(index);
        self.pc = flight.pc;
        let lane = flight.lane;
        match &flight.cargo {
            Cargo::TensorLoad {
                map,
                coords,
                dst,
                targets,
            } => {
                let data = self.load_box(map, coords, lane)?;
                for &(rank, mbar) in targets {
                    for piece in 0..data.len() / 16 {
                        let at = map.swizzle.apply(dst + 16 * piece as u64);
                        let start = self.shared_range(rank, at, 16, 16, lane)?;
                        self.ctas[rank as usize]
                            .shared
                            .write_bytes(start, &data[16 * piece..16 * piece + 16]);
                    }
                    self.landed(&flight, (rank, mbar), data.len() as u64)?;
                }
            }
            Cargo::Load {
                src,
                bytes,
                dst,
                targets,
            } => {
                let data = self.global_bytes(*src, u64::from(*bytes), lane)?;
                for &(rank, mbar) in targets {
                    let start = self.shared_range(rank, *dst, u64::from(*bytes), 16, lane)?;
                    self.ctas[rank as usize].shared.write_bytes(start, &data);
                    self.landed(&flight, (rank, mbar), data.len() as u64)?;
                }
            }
            Cargo::SharedToCluster {
                src,
                bytes,
                to: (rank, dst),
                target,
            } => {
                let data = self.shared_bytes(flight.warp.cta, *src, *bytes as usize, lane)?;
                let start = self.shared_range(*rank, *dst, u64::from(*bytes), 16, lane)?;
                self.ctas[*rank as usize].shared.write_bytes(start, &data);
                self.landed(&flight, *target, data.len() as u64)?;
            }
            Cargo::CopyArrival { copies, target } => {
                self.finish_copies(flight.warp, lane, *copies)?;
                self.mbarrier_releases(flight.warp, *target, lane, Scope::Cta);
                self.completes_by_copy(*target);
                self.arrive(*target, 1, false, lane)?;
            }
            Cargo::Store { .. } | Cargo::TensorStore { .. } => {
                unreachable!("stores complete by group")
            }
        }
        Ok(())
    }

    /// A load's bytes are in place: history first, then the mbarrier.
    fn landed(&mut self, flight: &Flight, key: Key, bytes: u64) -> Exec<()> {
        self.flight_landed(flight, key)?;
        self.completes_by_copy(key);
        self.complete_tx(key, bytes as i64, flight.lane)
    }

    fn global_bytes(&self, src: u64, bytes: u64, lane: usize) -> Exec<Vec<u8>> {
        let (owner, offset) = self.global_range(src, bytes, 1, lane)?;
        let mut data = vec![0; bytes as usize];
        for (i, byte) in data.iter_mut().enumerate() {
            let at = offset + i as u64;
            if self.launch.checks.uninitialised && !owner.is_written(at, 1) {
                return Err(FaultKind::Uninitialised {
                    space: "global",
                    address: src + i as u64,
                    bytes: 1,
                    detail: self.launch.view.describe(src + i as u64),
                }
                .at(lane));
            }
            *byte = owner.load(at, 1) as u8;
        }
        Ok(data)
    }

    fn shared_bytes(&self, rank: u32, start: usize, bytes: usize, lane: usize) -> Exec<Vec<u8>> {
        let shared = &self.ctas[rank as usize].shared;
        for at in start..start + bytes {
            if self.launch.checks.uninitialised && !shared.is_written(at, 1) {
                return Err(FaultKind::Uninitialised {
                    space: "shared",
                    address: at as u64 + u64::from(SHARED_BASE),
                    bytes: 1,
                    detail: format!("byte {at} of shared memory"),
                }
                .at(lane));
            }
        }
        Ok(shared.bytes_at(start, bytes).to_vec())
    }

    /// The bytes of a box as they lie in shared memory without swizzle.
    fn load_box(&self, map: &TensorMap, coords: &[i32; 5], lane: usize) -> Exec<Vec<u8>> {
        let elem = map.ty.bytes();
        let mut data = vec![0; map.box_bytes() as usize];
        if map.fill == OutOfBoundsFill::Nan {
            let nan = map.ty.nan().to_le_bytes();
            for element in data.chunks_exact_mut(elem as usize) {
                element.copy_from_slice(&nan[..elem as usize]);
            }
        }
        for row in rows(map, coords) {
            if row.first == row.last {
                continue;
            }
            let bytes = (row.last - row.first) * elem;
            let start = (row.offset + row.first * elem) as usize;
            let source = self.global_bytes(row.address, bytes, lane)?;
            data[start..start + source.len()].copy_from_slice(&source);
        }
        Ok(data)
    }

    /// Reads a store's source: afterwards its shared memory is free.
    fn capture(&mut self, index: usize) -> Exec<()> {
        let flight = self.flights[index].clone();
        if flight.captured.is_some() {
            return Ok(());
        }
        self.pc = flight.pc;
        let (cta, lane) = (flight.warp.cta, flight.lane);
        let data = match &flight.cargo {
            Cargo::Store { src, bytes, .. } => {
                self.shared_bytes(cta, *src, *bytes as usize, lane)?
            }
            Cargo::TensorStore {
                map, coords, src, ..
            } => {
                let mut data = vec![0; map.box_bytes() as usize];
                let elem = map.ty.bytes();
                for row in rows(map, coords) {
                    // Only what lands inside the tensor has to exist.
                    let (from, to) = (row.first * elem, row.last * elem);
                    for byte in from..to {
                        let at = map.swizzle.apply(src + row.offset + byte);
                        let start = self.shared_range(cta, at, 1, 1, lane)?;
                        data[(row.offset + byte) as usize] =
                            self.shared_bytes(cta, start, 1, lane)?[0];
                    }
                }
                data
            }
            _ => return Ok(()),
        };
        self.flights[index].captured = Some(data);
        Ok(())
    }

    /// Writes a captured store to global memory.
    fn deliver(&mut self, flight: &Flight) -> Exec<()> {
        let Some(data) = &flight.captured else {
            return Ok(());
        };
        self.pc = flight.pc;
        let lane = flight.lane;
        match &flight.cargo {
            Cargo::Store { dst, reduce, .. } => {
                self.write_global(*dst, data, *reduce, lane)?;
            }
            Cargo::TensorStore {
                map,
                coords,
                reduce,
                ..
            } => {
                let elem = map.ty.bytes();
                let reduce = reduce.zip(rmw_ty(map.ty));
                for row in rows(map, coords) {
                    let from = (row.offset + row.first * elem) as usize;
                    let to = (row.offset + row.last * elem) as usize;
                    if from < to {
                        self.write_global(row.address, &data[from..to], reduce, lane)?;
                    }
                }
            }
            _ => {}
        }
        self.store_delivered(flight);
        Ok(())
    }

    fn write_global(
        &self,
        dst: u64,
        data: &[u8],
        reduce: Option<(RmwOp, RmwTy)>,
        lane: usize,
    ) -> Exec<()> {
        let (owner, offset) = self.global_range(dst, data.len() as u64, 1, lane)?;
        let Some((f, ty)) = reduce else {
            owner.write_bytes(offset, data);
            return Ok(());
        };
        let size = ty.bytes();
        for (i, element) in data.chunks_exact(size as usize).enumerate() {
            let mut raw = [0; 8];
            raw[..element.len()].copy_from_slice(element);
            let at = offset + i as u64 * u64::from(size);
            if self.launch.checks.uninitialised && !owner.is_written(at, size) {
                return Err(FaultKind::Uninitialised {
                    space: "global",
                    address: owner.base + at,
                    bytes: size.into(),
                    detail: "a reduction reads its destination".into(),
                }
                .at(lane));
            }
            owner.update(at, size, |old| {
                apply(f, ty, [old, u64::from_le_bytes(raw), 0], true)
            });
        }
        Ok(())
    }

    /// `cp.async.bulk.wait_group{.read} pending` by one thread.
    pub(super) fn wait_bulk(
        &mut self,
        warp: &Warp,
        lane: usize,
        pending: u32,
        read_only: bool,
    ) -> Exec<()> {
        let pc = self.pc;
        let commits = warp.bulk_commits[lane];
        let due = |f: &Flight| {
            f.group_of(warp.id, lane)
                .is_some_and(|g| g.saturating_add(pending) < commits)
        };
        let mut mine: Vec<usize> = (0..self.flights.len())
            .filter(|&i| due(&self.flights[i]))
            .collect();
        self.shuffle(&mut mine);
        for &i in &mine {
            self.capture(i)?;
        }
        if !read_only {
            mine.sort_unstable_by(|a, b| b.cmp(a));
            for i in mine {
                let flight = self.flights.swap_remove(i);
                self.deliver(&flight)?;
            }
        }
        self.pc = pc;
        self.bulk_waited(warp.id, lane, commits.saturating_sub(pending));
        Ok(())
    }

    /// A CTA's last warp has exited: nothing may still use its shared memory.
    pub(in crate::exec) fn flights_at_exit(&mut self, cta: u32) -> Exec<()> {
        let pc = self.pc;
        while let Some(i) = self.flights.iter().position(|f| f.uses().contains(&cta)) {
            self.pc = self.flights[i].pc;
            if self.races.is_some() {
                let what = self.launch.kernel.opcode(self.pc).to_owned();
                return Err(FaultKind::AsyncInFlight(format!(
                    "CTA {:?} ends while `{what}` still uses its shared memory",
                    self.ctas[cta as usize].id
                ))
                .at(self.flights[i].lane));
            }
            if self.flights[i].is_load() {
                self.land(i)?;
            } else {
                self.capture(i)?;
            }
        }
        self.pc = pc;
        Ok(())
    }

    /// The cluster is done: stores that were read but not waited for become visible now.
    pub(in crate::exec) fn flights_at_end(&mut self) -> Exec<()> {
        while let Some(flight) = self.flights.pop() {
            self.deliver(&flight)?;
        }
        Ok(())
    }
}

/// The type a reduction by a map works on; 8- and 16-bit integers have none.
pub(super) fn rmw_ty(ty: TensorMapType) -> Option<RmwTy> {
    Some(match ty {
        TensorMapType::U32 => RmwTy::U32,
        TensorMapType::S32 => RmwTy::S32,
        TensorMapType::U64 => RmwTy::U64,
        TensorMapType::S64 => RmwTy::S64,
        TensorMapType::F16 => RmwTy::F16,
        TensorMapType::Bf16 => RmwTy::Bf16,
        TensorMapType::F32 => RmwTy::F32,
        TensorMapType::F64 => RmwTy::F64,
        TensorMapType::U8 | TensorMapType::U16 => return None,
    })
}
