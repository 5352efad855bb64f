//! Lanes of a warp: their index, shuffles and the reductions built from them.

use crate::math::max;
use crate::thread::thread_idx_x;

/// Threads in a warp.
pub const WARP_SIZE: u32 = 32;

/// Member mask that names every lane.
const ALL_LANES: u32 = !0;

/// Last operand of `shfl.sync.bfly`: no segments, lanes wrap at 31.
const WHOLE_WARP: u32 = 31;

unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.shfl.sync.bfly.f32"]
    fn shfl_sync_bfly_f32(members: u32, value: f32, lane_mask: u32, clamp: u32) -> f32;
    #[link_name = "llvm.nvvm.bar.warp.sync"]
    fn bar_warp_sync(members: u32);
    #[link_name = "llvm.nvvm.shfl.sync.idx.f32"]
    fn shfl_sync_idx_f32(members: u32, value: f32, lane: u32, clamp: u32) -> f32;
    #[link_name = "llvm.nvvm.shfl.sync.idx.i32"]
    fn shfl_sync_idx_i32(members: u32, value: u32, lane: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.redux.sync.umax"]
    fn redux_sync_umax(value: u32, members: u32) -> u32;
    #[link_name = "llvm.nvvm.redux.sync.add"]
    fn redux_sync_add(value: u32, members: u32) -> u32;
    #[link_name = "llvm.nvvm.vote.ballot.sync"]
    fn vote_ballot_sync(members: u32, condition: bool) -> u32;
    #[link_name = "llvm.nvvm.vote.any.sync"]
    fn vote_any_sync(members: u32, condition: bool) -> bool;
    #[link_name = "llvm.nvvm.elect.sync"]
    fn elect_sync(members: u32) -> (u32, bool);
}

/// Index of this thread in its warp, for one-dimensional blocks.
#[inline(always)]
pub fn lane_id() -> u32 {
    thread_idx_x() % WARP_SIZE
}

/// Index of this warp in its block, for one-dimensional blocks.
#[inline(always)]
pub fn warp_id() -> u32 {
    thread_idx_x() / WARP_SIZE
}

/// The value of the lane whose index differs from this one's by the bits of `lane_mask`.
///
/// # PTX
/// `shfl.sync.bfly.b32`.
///
/// # Safety
/// All 32 lanes must reach the same call.
#[inline(always)]
pub unsafe fn shuffle_xor(value: f32, lane_mask: u32) -> f32 {
    // SAFETY: the caller vouches that the whole warp arrives.
    unsafe { shfl_sync_bfly_f32(ALL_LANES, value, lane_mask, WHOLE_WARP) }
}

/// Whether `condition` holds in some lane.
///
/// # PTX
/// `vote.sync.any.pred`.
///
/// # Safety
/// All 32 lanes must reach the same call.
#[inline(always)]
pub unsafe fn any(condition: bool) -> bool {
    // SAFETY: the caller vouches that the whole warp arrives.
    unsafe { vote_any_sync(ALL_LANES, condition) }
}

/// The lanes where `condition` holds: bit `i` for lane `i`.
///
/// # PTX
/// `vote.sync.ballot.b32`.
///
/// # Safety
/// All 32 lanes must reach the same call.
#[inline(always)]
pub unsafe fn ballot(condition: bool) -> u32 {
    // SAFETY: the caller vouches that the whole warp arrives.
    unsafe { vote_ballot_sync(ALL_LANES, condition) }
}

/// Whether this is the lane that stands for the warp: one of them, the same at each call (sm_90).
///
/// ptxas knows that what such a lane does alone is done by one: where it does not, copies by TMA are put in loops over the lanes
/// that are there.
///
/// # PTX
/// `elect.sync`.
///
/// # Safety
/// All 32 lanes must reach the same call.
#[inline(always)]
pub unsafe fn elect() -> bool {
    // SAFETY: the caller vouches that the whole warp arrives.
    unsafe { elect_sync(ALL_LANES).1 }
}

/// Waits for all lanes of the warp, and orders their memory accesses.
///
/// # PTX
/// `bar.warp.sync 0xffffffff`.
///
/// # Safety
/// All 32 lanes must reach the same call.
#[inline(always)]
pub unsafe fn sync_warp() {
    // SAFETY: the caller vouches that the whole warp arrives.
    unsafe { bar_warp_sync(ALL_LANES) }
}

/// Brings the lanes of the warp together where nothing is to be ordered: ptxas allocates fewer registers behind it.
///
/// # PTX
/// As [`sync_warp`].
///
/// # Safety
/// All 32 lanes must reach the same call.
#[inline(always)]
pub unsafe fn converge() {
    // SAFETY: the caller vouches that the whole warp arrives.
    unsafe { bar_warp_sync(u32::MAX) }
}

/// Largest `value` over each group of `LANES` consecutive lanes (a power of two), in every lane of it.
///
/// # Safety
/// All 32 lanes must reach the same call.
#[inline(always)]
pub unsafe fn reduce_max<const LANES: u32>(value: f32) -> f32 {
    // SAFETY: the caller vouches that all lanes are here.
    unsafe { reduce_max_strided::<LANES, 1>(value) }
}

/// Largest `value` over each group of `LANES` lanes that are `STRIDE` apart (powers of two), in every lane of it.
///
/// # Safety
/// All 32 lanes must reach the same call.
#[inline(always)]
pub unsafe fn reduce_max_strided<const LANES: u32, const STRIDE: u32>(mut value: f32) -> f32 {
    let mut lane_mask = LANES / 2;
    while lane_mask > 0 {
        // SAFETY: the caller vouches that all lanes are here; they run the loop together, as its trip count is a
        // constant.
        value = max(value, unsafe { shuffle_xor(value, lane_mask * STRIDE) });
        lane_mask /= 2;
    }
    value
}

/// Sum of `value` over each group of `LANES` consecutive lanes (a power of two), in every lane of it.
///
/// # Safety
/// All 32 lanes must reach the same call.
#[inline(always)]
pub unsafe fn reduce_sum<const LANES: u32>(value: f32) -> f32 {
    // SAFETY: the caller vouches that all lanes are here.
    unsafe { reduce_sum_strided::<LANES, 1>(value) }
}

/// Sum of `value` over each group of `LANES` lanes that are `STRIDE` apart (powers of two), in every lane of it.
///
/// # Safety
/// All 32 lanes must reach the same call.
#[inline(always)]
pub unsafe fn reduce_sum_strided<const LANES: u32, const STRIDE: u32>(mut value: f32) -> f32 {
    let mut lane_mask = LANES / 2;
    while lane_mask > 0 {
        // SAFETY: as in `reduce_max_strided`.
        value += unsafe { shuffle_xor(value, lane_mask * STRIDE) };
        lane_mask /= 2;
    }
    value
}

/// The value of lane `lane`, in every lane (`shfl.sync.idx.b32`).
///
/// # Safety
/// All 32 lanes must reach the same call.
#[inline(always)]
pub unsafe fn broadcast(value: f32, lane: u32) -> f32 {
    // SAFETY: the caller vouches that the whole warp arrives.
    unsafe { shfl_sync_idx_f32(ALL_LANES, value, lane, WHOLE_WARP) }
}

/// The value of lane `lane`, which each lane chooses for itself (`shfl.sync.idx.b32`).
///
/// # Safety
/// All 32 lanes must reach the same call.
#[inline(always)]
pub unsafe fn shuffle(value: u32, lane: u32) -> u32 {
    // SAFETY: the caller vouches that the whole warp arrives.
    unsafe { shfl_sync_idx_i32(ALL_LANES, value, lane, WHOLE_WARP) }
}

/// The sum of the warp's values, modulo 2³², in all lanes (`redux.sync.add.u32`, sm_80).
///
/// # Safety
/// All 32 lanes must reach the same call.
#[inline(always)]
pub unsafe fn reduce_add(value: u32) -> u32 {
    // SAFETY: the caller vouches that the whole warp arrives.
    unsafe { redux_sync_add(value, ALL_LANES) }
}

/// `value`, which is the same in all lanes, in a form that ptxas knows to be so (`redux.sync.max.u32`, sm_80).
///
/// Branches on it are not divergent, and it can live in a uniform register.
///
/// # Safety
/// All 32 lanes must reach the same call.
#[inline(always)]
pub unsafe fn uniform(value: u32) -> u32 {
    // SAFETY: the caller vouches that the whole warp arrives.
    unsafe { redux_sync_umax(value, ALL_LANES) }
}

/// The largest of all lanes' `bits`, as numbers without a sign: of f32's bits the largest float, where none is negative or NaN
/// (PTX ISA: redux.sync, for sm_80 and later).
///
/// # Safety
/// All 32 lanes must reach the same call.
#[inline(always)]
pub unsafe fn reduce_max_bits(bits: u32) -> u32 {
    // SAFETY: forwarded to the caller.
    unsafe { redux_sync_umax(bits, ALL_LANES) }
}
