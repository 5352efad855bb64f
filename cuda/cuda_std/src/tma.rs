//! Bulk tensor copies between global and shared memory (TMA).
//!
//! One thread starts the copy of a box of a 4-D or 5-D tensor that a tensor map describes; parts outside the tensor
//! read as zeros and are not written. PTX ISA, "Data Movement and Conversion Instructions: Tensor copy".
//! Coordinates are in elements, innermost dimension first.

use core::arch::asm;

/// The address of parameter `index` (a constant expression) of kernel `name`, a tensor map passed by value.
///
/// rustc would copy the parameter to local memory; the hardware wants it where the launch put it. The address is
/// computed at each use: two instructions are cheaper than a pair of registers that lives through the kernel.
#[macro_export]
macro_rules! tensor_map_parameter {
    ($name:ident $(; $suffix:ident)?, $index:expr) => {{
        let address: u64;
        // SAFETY: reads the address of the kernel's own parameter.
        unsafe {
            ::core::arch::asm!(
                concat!("{{ .reg .b64 t; mov.b64 t, ", stringify!($name), $("_", stringify!($suffix),)? "_param_{1}; cvta.param.u64 {0}, t; }}"),
                out(reg64) address, const $index, options(nomem, nostack)
            );
        }
        address
    }};
}

/// Fetches a tensor map ahead of its first use (`prefetch.tensormap`).
///
/// # Safety
/// `map` is the generic address of a tensor map.
#[inline(always)]
pub unsafe fn prefetch(map: u64) {
    // SAFETY: the caller vouches for the address.
    unsafe { asm!("prefetch.tensormap [{}];", in(reg64) map, options(nostack)) }
}

/// Starts copying `bytes` consecutive bytes from `global` to `shared`; they count at `barrier` (`cp.async.bulk`).
///
/// # Safety
/// Both addresses and `bytes` are multiples of 16; the bytes at `global` are inside an allocation that nobody writes
/// during the launch; nobody accesses those at `shared`, in this block, until the barrier's phase completes.
#[inline(always)]
pub unsafe fn load(shared: u32, global: u64, bytes: u32, barrier: u32) {
    // SAFETY: the caller vouches for the addresses.
    unsafe {
        asm!("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{}], [{}], {}, [{}];",
            in(reg32) shared, in(reg64) global, in(reg32) bytes, in(reg32) barrier, options(nostack));
    }
}

/// Starts copying a box to `shared`; its bytes count at `barrier` (`cp.async.bulk.tensor.4d`).
///
/// # Safety
/// `map` is a 4-D tensor map; the box lands in this block's shared memory at the alignment its swizzle wants,
/// and nobody accesses it until the barrier's phase completes.
#[inline(always)]
pub unsafe fn load4d(shared: u32, map: u64, [c0, c1, c2, c3]: [u32; 4], barrier: u32) {
    // SAFETY: the caller vouches for map and addresses.
    unsafe {
        asm!("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [{}], [{}, {{{}, {}, {}, {}}}], [{}];",
            in(reg32) shared, in(reg64) map, in(reg32) c0, in(reg32) c1, in(reg32) c2, in(reg32) c3,
            in(reg32) barrier, options(nostack));
    }
}

/// As [`load4d`], of a box of a 5-D tensor (`cp.async.bulk.tensor.5d`).
///
/// # Safety
/// As [`load4d`], with a 5-D tensor map.
#[inline(always)]
pub unsafe fn load5d(shared: u32, map: u64, [c0, c1, c2, c3, c4]: [u32; 5], barrier: u32) {
    // SAFETY: the caller vouches for map and addresses.
    unsafe {
        asm!("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [{}], [{}, {{{}, {}, {}, {}, {}}}], [{}];",
            in(reg32) shared, in(reg64) map, in(reg32) c0, in(reg32) c1, in(reg32) c2, in(reg32) c3,
            in(reg32) c4, in(reg32) barrier, options(nostack));
    }
}

/// As [`load4d`], to the same addresses of every block whose bit is set in `blocks`, each counting at its own
/// barrier (`.multicast::cluster`).
///
/// # Safety
/// As [`load4d`], for each of the blocks.
#[inline(always)]
pub unsafe fn load4d_multicast(
    shared: u32,
    map: u64,
    [c0, c1, c2, c3]: [u32; 4],
    barrier: u32,
    blocks: u16,
) {
    // SAFETY: the caller vouches for map and addresses.
    unsafe {
        asm!("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [{}], [{}, {{{}, {}, {}, {}}}], [{}], {};",
            in(reg32) shared, in(reg64) map, in(reg32) c0, in(reg32) c1, in(reg32) c2, in(reg32) c3,
            in(reg32) barrier, in(reg16) blocks, options(nostack));
    }
}

/// Where `condition` holds, starts copying a box from `shared` to global memory (`cp.async.bulk.tensor.5d`).
///
/// # Safety
/// `map` is a 5-D tensor map of memory that nobody else accesses; the box is visible to the async proxy
/// ([`fence_shared`]) and stays until [`wait_stores_read`].
#[inline(always)]
pub unsafe fn store5d_if(condition: bool, map: u64, [c0, c1, c2, c3, c4]: [u32; 5], shared: u32) {
    // SAFETY: the caller vouches for map and addresses.
    unsafe {
        asm!("{{ .reg .pred p; setp.ne.b32 p, {}, 0; @p cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [{}, {{{}, {}, {}, {}, {}}}], [{}]; }}",
            in(reg32) condition as u32, in(reg64) map, in(reg32) c0, in(reg32) c1, in(reg32) c2, in(reg32) c3,
            in(reg32) c4, in(reg32) shared, options(nostack));
    }
}

/// Closes this thread's stores into a group (`cp.async.bulk.commit_group`).
#[inline(always)]
pub fn commit_stores() {
    // SAFETY: only closes a group.
    unsafe { asm!("cp.async.bulk.commit_group;", options(nostack)) }
}

/// Waits until all of this thread's stores have read their shared memory (`cp.async.bulk.wait_group.read`).
#[inline(always)]
pub fn wait_stores_read() {
    // SAFETY: only waits.
    unsafe { asm!("cp.async.bulk.wait_group.read 0;", options(nostack)) }
}

/// Makes this thread's shared-memory writes visible to the async proxy (`fence.proxy.async`).
#[inline(always)]
pub fn fence_shared() {
    // SAFETY: only orders memory.
    unsafe { asm!("fence.proxy.async.shared::cta;", options(nostack)) }
}
