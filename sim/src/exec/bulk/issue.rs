//! Issuing bulk copies: operands checked, order checked, then in flight.

use super::boxes::{Row, rows};
use super::flight::{Cargo, Flight};
use super::land::rmw_ty;
use crate::decode::SHARED_BASE;
use crate::exec::mbarrier::Key;
use crate::exec::place::{Memory, address, classify, locate, misaligned};
use crate::exec::regs::lanes;
use crate::exec::{State, Warp};
use crate::fault::{Exec, FaultKind};
use crate::ir::{Addr, BulkOp, Space};
use crate::tensor_map::{TENSOR_MAP_BYTES, TensorMap};

/// Alignment and granule of linear bulk copies (PTX ISA §9.7.9.25.4.1).
const BULK_ALIGN: u64 = 16;
/// Alignment of a tensor box in shared memory, and of a tensor map (PTX ISA §9.7.9.25.5.2).
const BOX_ALIGN: u64 = 128;
/// Bytes of which the place of a box in a row is a multiple.
const BOX_PIECE: i64 = 16;
const MAP_ALIGN: u64 = 64;

impl State<'_> {
    pub(in crate::exec) fn bulk(&mut self, warp: &mut Warp, m: u32, op: &BulkOp) -> Exec<()> {
        match op {
            BulkOp::Commit => {
                for lane in lanes(m) {
                    warp.bulk_commits[lane] += 1;
                }
            }
            BulkOp::Wait { pending, read_only } => {
                for lane in lanes(m) {
                    self.wait_bulk(warp, lane, *pending, *read_only)?;
                }
            }
            BulkOp::Prefetch => {}
            BulkOp::PrefetchTensor { map } => {
                for lane in lanes(m) {
                    self.tensor_map(warp, map, lane)?;
                }
            }
            // Each executing thread issues a copy of its own.
            _ => {
                for lane in lanes(m) {
                    self.issue(warp, lane, op)?;
                }
            }
        }
        Ok(())
    }

    /// Reads the 128 bytes a map operand points at.
    fn tensor_map(&self, warp: &Warp, addr: &Addr, lane: usize) -> Exec<TensorMap> {
        let at = address(&warp.regs, addr, lane);
        let mut bytes = [0; TENSOR_MAP_BYTES];
        let size = TENSOR_MAP_BYTES as u64;
        match classify(Space::Generic, at) {
            (Memory::Param, offset) => {
                let params = &self.launch.params;
                let limit = params.len() as u32;
                let start = Self::small_range("param", limit, offset, size, MAP_ALIGN, lane)?;
                bytes.copy_from_slice(&params[start..start + TENSOR_MAP_BYTES]);
            }
            (Memory::Global, at) => {
                let (owner, offset) = self.global_range(at, size, MAP_ALIGN, lane)?;
                for (i, byte) in bytes.iter_mut().enumerate() {
                    *byte = owner.load(offset + i as u64, 1) as u8;
                }
            }
            (memory, _) => {
                return Err(FaultKind::Tensor(format!(
                    "a tensor map cannot lie in {} memory",
                    memory.name()
                ))
                .at(lane));
            }
        }
        TensorMap::decode(&bytes).map_err(|e| FaultKind::Tensor(e.to_string()).at(lane))
    }

    /// Shared address of the executing CTA, aligned.
    fn own_shared(
        &self,
        warp: &Warp,
        addr: &Addr,
        bytes: u64,
        align: u64,
        lane: usize,
    ) -> Exec<u64> {
        let (cta, at) = (warp.id.cta, address(&warp.regs, addr, lane));
        let (_, offset) = locate(Space::Shared, at, cta, lane)?;
        self.shared_range(cta, offset, bytes, align, lane)?;
        Ok(offset)
    }

    /// Destination offset and completion objects of a load: its own CTA's (all that `own` allows), one CTA
    /// named by the address, or every CTA of a multicast mask.
    #[expect(clippy::too_many_arguments, reason = "one copy, spelled out")]
    fn load_targets(
        &self,
        warp: &Warp,
        own: bool,
        [dst, mbar]: [&Addr; 2],
        multicast: Option<u32>,
        bytes: u64,
        align: u64,
        lane: usize,
    ) -> Exec<(u64, Vec<Key>)> {
        let at = address(&warp.regs, dst, lane);
        let space = if own {
            Space::Shared
        } else {
            Space::SharedCluster
        };
        let (Memory::Shared(rank), offset) = locate(space, at, warp.id.cta, lane)? else {
            unreachable!("a shared address is shared memory");
        };
        let (mbar_rank, mbar_at) = self.mbarrier_operand(warp, space, mbar, lane)?;
        let ranks: Vec<u32> = match multicast {
            None if mbar_rank != rank => {
                return Err(FaultKind::Tensor(format!(
                    "destination in CTA rank {rank}, mbarrier in CTA rank {mbar_rank}"
                ))
                .at(lane));
            }
            None => vec![rank],
            Some(reg) => {
                let mask = warp.regs.get32(reg)[lane] & 0xffff;
                if mask == 0 || mask >> self.ctas.len() != 0 {
                    return Err(FaultKind::Tensor(format!(
                        "multicast mask {mask:#06x} in a cluster of {} CTAs",
                        self.ctas.len()
                    ))
                    .at(lane));
                }
                (0..self.ctas.len() as u32)
                    .filter(|r| mask >> r & 1 == 1)
                    .collect()
            }
        };
        let mut targets = Vec::new();
        for rank in ranks {
            self.shared_range(rank, offset, bytes, align, lane)?;
            let key = (rank, mbar_at);
            self.mbarrier_range(key, lane)?;
            if !self.mbarriers.contains_key(&key) {
                return Err(FaultKind::Mbarrier(format!(
                    "shared address {mbar_at:#x} of CTA rank {rank} holds no initialised mbarrier"
                ))
                .at(lane));
            }
            targets.push(key);
        }
        Ok((offset, targets))
    }

    fn coordinates(warp: &Warp, coords: &[u32], map: &TensorMap, lane: usize) -> Exec<[i32; 5]> {
        if coords.len() != map.dims.len() {
            return Err(FaultKind::Tensor(format!(
                "{} coordinates for a map of rank {}",
                coords.len(),
                map.dims.len()
            ))
            .at(lane));
        }
        let mut at = [0; 5];
        for (c, &reg) in at.iter_mut().zip(coords) {
            *c = warp.regs.get32(reg)[lane] as i32;
        }
        // An H200 reports an illegal instruction here (tried together with the kernels of golden/).
        let begin = i64::from(at[0]) * map.ty.bytes() as i64;
        if begin % BOX_PIECE != 0 {
            let message =
                format!("the box begins at byte {begin} of a row, not a multiple of {BOX_PIECE}");
            return Err(FaultKind::Tensor(message).at(lane));
        }
        Ok(at)
    }

    fn issue(&mut self, warp: &Warp, lane: usize, op: &BulkOp) -> Exec<()> {
        let group = warp.bulk_commits[lane];
        let cargo = match op {
            BulkOp::TensorLoad {
                own,
                dst,
                map,
                coords,
                mbar,
                multicast,
            } => {
                let map = self.tensor_map(warp, map, lane)?;
                let coords = Self::coordinates(warp, coords, &map, lane)?;
                check_rows(&map, lane)?;
                let (dst, targets) = self.load_targets(
                    warp,
                    *own,
                    [dst, mbar],
                    *multicast,
                    map.box_bytes(),
                    BOX_ALIGN,
                    lane,
                )?;
                Cargo::TensorLoad {
                    map,
                    coords,
                    dst,
                    targets,
                }
            }
            BulkOp::Load {
                own,
                dst,
                src,
                bytes,
                mbar,
                multicast,
            } => {
                let bytes = self.linear_size(warp, *bytes, lane)?;
                let src = address(&warp.regs, src, lane);
                self.global_range(src, bytes.into(), BULK_ALIGN, lane)?;
                let (dst, targets) = self.load_targets(
                    warp,
                    *own,
                    [dst, mbar],
                    *multicast,
                    bytes.into(),
                    BULK_ALIGN,
                    lane,
                )?;
                Cargo::Load {
                    src,
                    bytes,
                    dst,
                    targets,
                }
            }
            BulkOp::SharedToCluster {
                dst,
                src,
                bytes,
                mbar,
            } => {
                let bytes = self.linear_size(warp, *bytes, lane)?;
                let src = self.own_shared(warp, src, bytes.into(), BULK_ALIGN, lane)?;
                let at = address(&warp.regs, dst, lane);
                let (dst_at, targets) = self.load_targets(
                    warp,
                    false,
                    [dst, mbar],
                    None,
                    bytes.into(),
                    BULK_ALIGN,
                    lane,
                )?;
                let (Memory::Shared(rank), _) = classify(Space::SharedCluster, at) else {
                    unreachable!("a shared address is shared memory");
                };
                Cargo::SharedToCluster {
                    src: (src - u64::from(SHARED_BASE)) as usize,
                    bytes,
                    to: (rank, dst_at),
                    target: targets[0],
                }
            }
            BulkOp::Store {
                dst,
                src,
                bytes,
                reduce,
            } => {
                let bytes = self.linear_size(warp, *bytes, lane)?;
                let dst = address(&warp.regs, dst, lane);
                self.global_range(dst, bytes.into(), BULK_ALIGN, lane)?;
                let src = self.own_shared(warp, src, bytes.into(), BULK_ALIGN, lane)?;
                Cargo::Store {
                    group,
                    src: (src - u64::from(SHARED_BASE)) as usize,
                    bytes,
                    dst,
                    reduce: *reduce,
                }
            }
            BulkOp::TensorStore {
                map,
                coords,
                src,
                reduce,
            } => {
                let map = self.tensor_map(warp, map, lane)?;
                let coords = Self::coordinates(warp, coords, &map, lane)?;
                check_rows(&map, lane)?;
                // As above.
                if coords.iter().any(|&c| c < 0) {
                    let message = "a store begins before the tensor".to_owned();
                    return Err(FaultKind::Tensor(message).at(lane));
                }
                if reduce.is_some() && rmw_ty(map.ty).is_none() {
                    let message = format!("no reduction of {:?} elements exists", map.ty);
                    return Err(FaultKind::Tensor(message).at(lane));
                }
                let src = self.own_shared(warp, src, map.box_bytes(), BOX_ALIGN, lane)?;
                Cargo::TensorStore {
                    group,
                    map,
                    coords,
                    src,
                    reduce: *reduce,
                }
            }
            BulkOp::Commit
            | BulkOp::Wait { .. }
            | BulkOp::Prefetch
            | BulkOp::PrefetchTensor { .. } => return Ok(()),
        };
        let flight = Flight {
            warp: warp.id,
            lane,
            pc: self.pc,
            cargo,
            captured: None,
        };
        self.count_cargo(&flight.cargo);
        self.flight_issued(&flight)?;
        self.flights.push(flight);
        Ok(())
    }

    /// Counts the global memory that a copy reads or writes.
    fn count_cargo(&mut self, cargo: &Cargo) {
        match cargo {
            Cargo::TensorLoad { map, coords, .. } | Cargo::TensorStore { map, coords, .. } => {
                let elem = map.ty.bytes();
                let inside = |row: Row| (row.address, (row.last - row.first) * elem);
                self.count_ranges(rows(map, coords).map(inside));
            }
            Cargo::Load { src, bytes, .. } => {
                self.count_ranges(std::iter::once((*src, (*bytes).into())));
            }
            Cargo::Store { dst, bytes, .. } => {
                self.count_ranges(std::iter::once((*dst, (*bytes).into())));
            }
            Cargo::SharedToCluster { .. } | Cargo::CopyArrival { .. } => {}
        }
    }

    fn linear_size(&self, warp: &Warp, bytes: u32, lane: usize) -> Exec<u32> {
        let bytes = warp.regs.get32(bytes)[lane];
        if bytes == 0 || !u64::from(bytes).is_multiple_of(BULK_ALIGN) {
            return Err(misaligned(
                "size of a bulk copy",
                bytes.into(),
                BULK_ALIGN,
                lane,
            ));
        }
        Ok(bytes)
    }

    /// `cp.async.mbarrier.arrive`: lands after the thread's copies issued so far.
    pub(in crate::exec) fn fly_copy_arrival(
        &mut self,
        warp: crate::exec::WarpId,
        lane: usize,
        target: Key,
    ) {
        let copies = self.copies[warp.number as usize]
            .iter()
            .filter(|c| usize::from(c.lane) == lane)
            .count();
        self.flights.push(Flight {
            warp,
            lane,
            pc: self.pc,
            cargo: Cargo::CopyArrival { copies, target },
            captured: None,
        });
    }
}

/// The rows of a swizzled box fill the swizzle span: how shorter ones are spaced is not documented.
fn check_rows(map: &TensorMap, lane: usize) -> Exec<()> {
    let row = map.row_bytes();
    if map.swizzle != crate::tensor_map::Swizzle::None && row != map.swizzle.span() {
        return Err(FaultKind::Unsupported(format!(
            "a box row of {row} bytes under a swizzle of {} bytes",
            map.swizzle.span()
        ))
        .at(lane));
    }
    Ok(())
}
