//! The two groups of threads of a block that computes dk and dv.

use core::marker::PhantomData;

use cuda_std::named_barrier;

use super::super::super::SimtKernel;
use super::super::passing::Operand;
use super::SplitKeysKernel;
use crate::config::simt::SimtConfig;
use crate::config::simt_split::SplitKeysConfig;
use crate::modifiers::NoModifiers;
use crate::tile::black_box;
use cuda_std::thread::thread_idx_x;

/// What a group holds of the pairs of a block's keys and the queries that pass.
pub trait Role {
    /// Its place among the groups.
    const INDEX: u32;
    /// The operand that is multiplied for pairs, Q by K or dO by V.
    const BY_DIMS: Operand;
    /// The operand that pairs are multiplied with.
    const BY_ROWS: Operand;
}

/// P: `S = K Qᵀ`, `dV += P dO`.
pub struct Probabilities;
/// dS: `dP = V dOᵀ`, `dK += dS Q`.
pub struct Differences;

impl Role for Probabilities {
    const INDEX: u32 = 0;
    const BY_DIMS: Operand = Operand::First;
    const BY_ROWS: Operand = Operand::Second;
}

impl Role for Differences {
    const INDEX: u32 = 1;
    const BY_DIMS: Operand = Operand::Second;
    const BY_ROWS: Operand = Operand::First;
}

/// The group of role `R` of a block of kernel `K`.
pub struct Group<K, R>(PhantomData<(K, R)>);

impl<K: SplitKeysKernel, R: Role> SimtKernel for Group<K, R> {
    type Modifiers = NoModifiers;
    const CONFIG: SimtConfig = K::CONFIG.group;

    #[inline(always)]
    fn thread() -> u32 {
        black_box(thread_idx_x()) % Self::CONFIG.threads
    }

    #[inline(always)]
    unsafe fn sync() {
        named_barrier::sync(FIRST_OF_GROUPS + R::INDEX, Self::CONFIG.threads);
    }
}

/// Completes when P, and the slopes of a softcap, are in shared memory.
const P_FULL: u32 = 1;
/// Completes when the other group has read them.
const P_EMPTY: u32 = 2;
/// The barrier of the first group alone.
const FIRST_OF_GROUPS: u32 = 3;

/// A barrier on which one group waits for the other.
pub struct Handover<K>(PhantomData<K>);

impl<K: SplitKeysKernel> Handover<K> {
    const THREADS: u32 = SplitKeysConfig::GROUPS * K::CONFIG.group.threads;

    /// P is there.
    ///
    /// # Safety
    /// All of the group that holds P call it, once a block of queries.
    #[inline(always)]
    pub unsafe fn p_is_there() {
        named_barrier::arrive(P_FULL, Self::THREADS);
    }

    /// Waits for P.
    ///
    /// # Safety
    /// All of the other group call it, once a block of queries.
    #[inline(always)]
    pub unsafe fn wait_for_p() {
        named_barrier::sync(P_FULL, Self::THREADS);
    }

    /// P may be overwritten, and dS.
    ///
    /// # Safety
    /// All of the group that holds dS call it, once a block of queries but the last.
    #[inline(always)]
    pub unsafe fn p_is_read() {
        named_barrier::arrive(P_EMPTY, Self::THREADS);
    }

    /// Waits until P may be overwritten, and dS.
    ///
    /// # Safety
    /// All of the group that holds P call it, once a block of queries but the first.
    #[inline(always)]
    pub unsafe fn wait_for_reader() {
        named_barrier::sync(P_EMPTY, Self::THREADS);
    }
}
