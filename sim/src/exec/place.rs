//! Addresses: which memory each lane means, in bounds and aligned.

use super::cluster::State;
use super::regs::{LANES, Regs, lanes};
use super::window;
use crate::decode::SHARED_BASE;
use crate::fault::{Exec, FaultKind, Raise};
use crate::ir::{Addr, Space};

/// The memory some lanes of an access mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    Global,
    /// Shared memory of a CTA of the cluster, by rank.
    Shared(u32),
    Local,
    Param,
}

impl Memory {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::Shared(_) => "shared",
            Self::Local => "local",
            Self::Param => "param",
        }
    }
}

/// `base + offset` of every lane; a 32-bit base wraps at 32 bits.
pub(super) fn addresses(regs: &Regs, addr: &Addr) -> [u64; LANES] {
    if addr.wide {
        regs.get64(addr.base)
            .map(|a| a.wrapping_add(addr.offset as u64))
    } else {
        regs.get32(addr.base)
            .map(|a| u64::from(a.wrapping_add(addr.offset as u32)))
    }
}

/// One lane's [`addresses`].
pub(super) fn address(regs: &Regs, addr: &Addr, lane: usize) -> u64 {
    if addr.wide {
        regs.get64(addr.base)[lane].wrapping_add(addr.offset as u64)
    } else {
        u64::from(regs.get32(addr.base)[lane].wrapping_add(addr.offset as u32))
    }
}

/// The memory an address of `space` means, and the offset in it.
#[inline(always)]
pub(super) fn classify(space: Space, address: u64) -> (Memory, u64) {
    match space {
        Space::Global | Space::Const => (Memory::Global, address),
        Space::Shared | Space::SharedCluster => shared(address),
        Space::Local => (Memory::Local, address),
        Space::Param => (Memory::Param, address),
        Space::Generic => match address {
            a if a >= window::END => (Memory::Global, a),
            a if a >= window::PARAM => (Memory::Param, a - window::PARAM),
            a if a >= window::LOCAL => (Memory::Local, a - window::LOCAL),
            a if a >= window::SHARED => shared(a - window::SHARED),
            a => (Memory::Global, a),
        },
    }
}

/// A shared window address.
#[inline(always)]
fn shared(address: u64) -> (Memory, u64) {
    let rank = u32::try_from(address >> window::RANK_SHIFT).unwrap_or(u32::MAX);
    (Memory::Shared(rank), address & (window::of_rank(1) - 1))
}

/// As [`classify`], of an address that a thread of CTA `cta` uses: `.shared::cta` reaches that CTA's memory alone.
#[inline(always)]
pub(super) fn locate(space: Space, address: u64, cta: u32, lane: usize) -> Exec<(Memory, u64)> {
    let (memory, offset) = classify(space, address);
    match memory {
        Memory::Shared(rank) if space == Space::Shared && rank != cta => {
            Err(of_another_cta(address, rank, cta, lane))
        }
        _ => Ok((memory, offset)),
    }
}

#[cold]
fn of_another_cta(address: u64, rank: u32, cta: u32, lane: usize) -> Box<Raise> {
    FaultKind::AnotherCta { address, rank, cta }.at(lane)
}

impl State<'_> {
    /// Checks that `bytes` at `offset` of a CTA's shared memory exist and are aligned to `align`;
    /// returns the byte index.
    #[inline(always)]
    pub(crate) fn shared_range(
        &self,
        cta: u32,
        offset: u64,
        bytes: u64,
        align: u64,
        lane: usize,
    ) -> Exec<usize> {
        let owner = self.ctas.get(cta as usize);
        let size = owner.map(|c| c.shared.bytes());
        if owner.is_some_and(|c| c.warps_left == 0) {
            return Err(FaultKind::OutOfBounds {
                space: "shared",
                address: offset,
                bytes,
                detail: format!("CTA rank {cta} of the cluster has exited"),
            }
            .at(lane));
        }
        let start = offset.wrapping_sub(SHARED_BASE.into());
        match size {
            Some(size) if start <= size && bytes <= size - start => {}
            _ => {
                return Err(FaultKind::OutOfBounds {
                    space: "shared",
                    address: offset,
                    bytes,
                    detail: match size {
                        None => format!("the cluster has no CTA of rank {cta}"),
                        Some(size) => {
                            format!("offset {} of {size} bytes of shared memory", start as i64)
                        }
                    },
                }
                .at(lane));
            }
        }
        if !offset.is_multiple_of(align) {
            return Err(misaligned("shared", offset, align, lane));
        }
        Ok(start as usize)
    }

    /// The allocation and offset of a global access.
    #[inline(always)]
    pub(crate) fn global_range(
        &self,
        address: u64,
        bytes: u64,
        align: u64,
        lane: usize,
    ) -> Exec<(&crate::memory::global::Allocation, u64)> {
        if let Some(owner) = self.launch.view.owner(address) {
            let offset = address - owner.base;
            if offset <= owner.bytes && bytes <= owner.bytes - offset {
                if !address.is_multiple_of(align) {
                    return Err(misaligned("global", address, align, lane));
                }
                return Ok((owner, offset));
            }
        }
        Err(FaultKind::OutOfBounds {
            space: "global",
            address,
            bytes,
            detail: self.launch.view.describe(address),
        }
        .at(lane))
    }

    /// Checks a local (`limit` = bytes a thread) or parameter range.
    #[inline(always)]
    pub(super) fn small_range(
        space: &'static str,
        limit: u32,
        offset: u64,
        bytes: u64,
        align: u64,
        lane: usize,
    ) -> Exec<usize> {
        if offset > u64::from(limit) || bytes > u64::from(limit) - offset {
            return Err(FaultKind::OutOfBounds {
                space,
                address: offset,
                bytes,
                detail: format!("{limit} bytes exist"),
            }
            .at(lane));
        }
        if !offset.is_multiple_of(align) {
            return Err(misaligned(space, offset, align, lane));
        }
        Ok(offset as usize)
    }
}

pub(super) fn misaligned(space: &'static str, address: u64, align: u64, lane: usize) -> Box<Raise> {
    FaultKind::Misaligned {
        space,
        address,
        align,
    }
    .at(lane)
}

/// The lanes of `mask`, grouped by the memory they mean (most accesses have one group).
pub(super) fn group_by_memory(
    space: Space,
    addresses: &[u64; LANES],
    mask: u32,
    cta: u32,
    mut f: impl FnMut(Memory, u32, &[u64; LANES]) -> Exec<()>,
) -> Exec<()> {
    let mut rest = mask;
    while rest != 0 {
        let first = rest.trailing_zeros() as usize;
        let (memory, _) = locate(space, addresses[first], cta, first)?;
        let mut group = 0;
        let mut offsets = [0; LANES];
        for lane in lanes(rest) {
            let (m, offset) = classify(space, addresses[lane]);
            if m == memory {
                group |= 1 << lane;
                offsets[lane] = offset;
            }
        }
        f(memory, group, &offsets)?;
        rest &= !group;
    }
    Ok(())
}
