//! Reports the accesses of asynchronous operations to the race check.

use super::boxes::rows;
use super::flight::{Cargo, Flight};
use crate::checks::{GLOBAL_IN_FLIGHT, Kind, Mark};
use crate::decode::SHARED_BASE;
use crate::exec::mbarrier::Key;
use crate::exec::{State, WarpId};
use crate::fault::Exec;
use crate::ir::Scope;
use crate::tensor_map::TensorMap;

/// Byte of shared memory of a shared address.
fn byte(address: u64) -> usize {
    (address - u64::from(SHARED_BASE)) as usize
}

impl State<'_> {
    /// An operation is issued: the memory that it will access must be free, and stays in use.
    pub(super) fn flight_issued(&mut self, flight: &Flight) -> Exec<()> {
        if self.races.is_none() {
            return Ok(());
        }
        let by = (flight.warp, flight.lane);
        match &flight.cargo {
            Cargo::TensorLoad {
                map,
                coords,
                dst,
                targets,
            } => {
                for (address, bytes) in inside(map, coords) {
                    self.global_touch(by.0, by.1, address, bytes, &Mark::ASYNC_READ)?;
                }
                for &key in targets {
                    let range = (byte(*dst), map.box_bytes() as usize);
                    self.async_write_begins(by, key.0, range, key)?;
                }
            }
            Cargo::Load {
                src,
                bytes,
                dst,
                targets,
            } => {
                let size = u64::from(*bytes);
                self.global_touch(by.0, by.1, *src, size, &Mark::ASYNC_READ)?;
                for &key in targets {
                    let range = (byte(*dst), *bytes as usize);
                    self.async_write_begins(by, key.0, range, key)?;
                }
            }
            Cargo::SharedToCluster {
                src,
                bytes,
                to: (rank, dst),
                target,
            } => {
                if let Some(agent) = self.mbarrier_agent(*target) {
                    let until = self.mbarriers[target].phase + 1;
                    self.async_read_begins(by, (*src, *bytes as usize), agent, until)?;
                }
                self.async_write_begins(by, *rank, (byte(*dst), *bytes as usize), *target)?;
            }
            Cargo::Store {
                group,
                src,
                bytes,
                dst,
                reduce,
            } => {
                self.store_reads(by, (*src, *bytes as usize), *group)?;
                self.store_writes(by, *dst, u64::from(*bytes), reduce.is_some())?;
            }
            Cargo::TensorStore {
                group,
                map,
                coords,
                src,
                reduce,
            } => {
                self.store_reads(by, (byte(*src), map.box_bytes() as usize), *group)?;
                for (address, bytes) in inside(map, coords) {
                    self.store_writes(by, address, bytes, reduce.is_some())?;
                }
            }
            Cargo::CopyArrival { .. } => {}
        }
        Ok(())
    }

    fn store_reads(&mut self, by: (WarpId, usize), range: (usize, usize), group: u32) -> Exec<()> {
        match self.bulk_agent(by.0, by.1) {
            Some(agent) => self.async_read_begins(by, range, agent, group + 1),
            None => Ok(()),
        }
    }

    fn store_writes(
        &mut self,
        by: (WarpId, usize),
        address: u64,
        bytes: u64,
        reduces: bool,
    ) -> Exec<()> {
        // Reductions are atomic with each other (PTX ISA §9.7.9.25.4.2: relaxed, `.gpu`); both are in use until
        // waited for.
        let mark = Mark {
            write: true,
            kind: if reduces { Kind::Strong } else { Kind::Async },
            scope: Scope::Gpu,
            time: Some(GLOBAL_IN_FLIGHT),
        };
        self.global_touch(by.0, by.1, address, bytes, &mark)
    }

    /// The bytes for the CTA and mbarrier of `key` are in place.
    pub(super) fn flight_landed(&mut self, flight: &Flight, key: Key) -> Exec<()> {
        let Some(phase) = self.mbarriers.get(&key).map(|m| m.phase) else {
            return Ok(());
        };
        let (rank, dst, bytes) = match &flight.cargo {
            Cargo::TensorLoad { map, dst, .. } => (key.0, *dst, map.box_bytes() as usize),
            Cargo::Load { dst, bytes, .. } => (key.0, *dst, *bytes as usize),
            Cargo::SharedToCluster { to, bytes, .. } => (to.0, to.1, *bytes as usize),
            _ => return Ok(()),
        };
        self.async_write_lands(rank, (byte(dst), bytes), key, phase);
        Ok(())
    }

    /// A store has been waited for and its bytes are in global memory.
    pub(super) fn store_delivered(&mut self, flight: &Flight) {
        let (warp, lane) = (flight.warp, flight.lane);
        match &flight.cargo {
            Cargo::Store {
                dst, bytes, reduce, ..
            } => {
                self.global_landed(warp, lane, *dst, u64::from(*bytes), reduce.is_some());
            }
            Cargo::TensorStore {
                map,
                coords,
                reduce,
                ..
            } => {
                for (address, bytes) in inside(map, coords) {
                    self.global_landed(warp, lane, address, bytes, reduce.is_some());
                }
            }
            _ => {}
        }
    }
}

/// Global ranges a box covers inside its tensor.
fn inside(map: &TensorMap, coords: &[i32; 5]) -> Vec<(u64, u64)> {
    rows(map, coords)
        .filter(|row| row.first < row.last)
        .map(|row| (row.address, (row.last - row.first) * map.ty.bytes()))
        .collect()
}
