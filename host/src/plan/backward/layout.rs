//! The workspace of a backward pass.

use kernels_gpu::abi::{DeviceAddress, RowTerms};
use kernels_gpu::config::warp_per_row::DELTA_WARP_ROWS;
use kernels_gpu::wgmma::scheduler::tile_list::Workspace as TileListWorkspace;

use super::attention::{backward_attention, dq_sums_bytes};
use super::kernels::{BackwardKernels, takes_tiles_in_turn};
use super::slopes;
use crate::plan::WORKSPACE_ALIGN_BYTES;
use crate::plan::modifiers::StatesOfKernels;
use crate::{DType, Problem};

/// Where things lie in the workspace of a backward pass.
///
/// ```text
/// 0    what other launches find as they left it ([`TileListWorkspace`])
/// 32   lse in bits, delta, and for f16 the largest |d_o|, of every row; the last also of every chunk of rows
/// ..   the count of tiles, of kernels that take them in turn
/// ..   for f16 whose dq is summed, the exponent of each head's
/// ..   sums of dq, or a chunk of dS and sums of dk and dv
/// ..   a sum of each tile for the gradient by slopes
/// ..   states of the blocks of kernels with modifiers
/// ..   the keep mask of a part, of kernels that find it in memory
/// ```
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkspaceLayout {
    /// Bytes of an array of rows, and of one of chunks of rows.
    array_bytes: u64,
    chunks_bytes: u64,
    has_largest_d_o: bool,
    /// 0 where no kernel counts tiles.
    tile_count_bytes: u64,
    /// 0 without sums, or where those are not times a power of two.
    dq_exponents_bytes: u64,
    /// 0 without sums.
    dq_sums_bytes: u64,
    /// 0 where no dS is stored.
    ds_bytes: u64,
    /// 0 where heads of k and v are computed whole.
    ds_sums_bytes: u64,
    /// 0 where no gradient by slopes is asked for.
    slope_sums_bytes: u64,
    /// States of the tiles and blocks of kernels with modifiers.
    states_bytes: u64,
    /// 0 where no kernel finds a keep mask in memory.
    keep_mask_bytes: u64,
}

/// Bytes that are left alone: no less than the semaphore of the tile count, which is 0 between launches.
pub(in crate::plan) const RESERVED_BYTES: u64 = 32;
const _: () = {
    let semaphore = TileListWorkspace::TILE_COUNT_SEMAPHORE;
    assert!(semaphore + TileListWorkspace::TILE_COUNT_SEMAPHORE_BYTES <= RESERVED_BYTES);
    assert!(RESERVED_BYTES.is_multiple_of(WORKSPACE_ALIGN_BYTES));
};

/// A sector, with which sums begin.
const SECTOR_BYTES: u64 = 32;

impl WorkspaceLayout {
    pub(super) fn new(
        problem: &Problem,
        kernels: &BackwardKernels,
        modified: Option<&StatesOfKernels>,
    ) -> Self {
        let bytes = rows(problem) as u64 * size_of::<f32>() as u64;
        let has_largest_d_o = problem.q().dtype == DType::F16;
        let (ds_bytes, ds_sums_bytes) = kernels.ds.map_or((0, 0), |ds| ds.bytes());
        Self {
            array_bytes: bytes.next_multiple_of(WORKSPACE_ALIGN_BYTES),
            chunks_bytes: bytes
                .div_ceil(DELTA_WARP_ROWS)
                .next_multiple_of(WORKSPACE_ALIGN_BYTES),
            has_largest_d_o,
            tile_count_bytes: match takes_tiles_in_turn(kernels.keys) {
                true => SECTOR_BYTES,
                false => 0,
            },
            dq_exponents_bytes: match kernels.adds_dq() && has_largest_d_o {
                true => {
                    let attention = backward_attention(problem);
                    let heads = u64::from(attention.batch) * u64::from(attention.heads_q);
                    (heads * size_of::<u32>() as u64).next_multiple_of(SECTOR_BYTES)
                }
                false => 0,
            },
            dq_sums_bytes: match kernels.adds_dq() {
                true => dq_sums_bytes(problem),
                false => 0,
            },
            ds_bytes,
            ds_sums_bytes,
            slope_sums_bytes: kernels.slopes.map_or(0, |kernel| {
                let tiles = slopes::tiles(kernel, &backward_attention(problem));
                tiles.count * size_of::<f32>() as u64
            }),
            states_bytes: modified.map_or(0, StatesOfKernels::bytes),
            keep_mask_bytes: kernels.keep_mask.map_or(0, |parts| parts.bytes()),
        }
    }

    /// Bytes that are set to 0 before the kernels of dk, dv and dq run.
    pub(super) fn zeroed_bytes(&self) -> u64 {
        self.tile_count_bytes + self.dq_exponents_bytes + self.dq_sums_bytes
    }

    /// Where the arrays end, and what is set to 0 begins.
    pub(super) fn tile_count(&self) -> u64 {
        let largest_bytes = match self.has_largest_d_o {
            true => self.array_bytes + self.chunks_bytes,
            false => 0,
        };
        RESERVED_BYTES + 2 * self.array_bytes + largest_bytes
    }

    /// Where the exponents of dq begin.
    fn first_dq_exponent(&self) -> u64 {
        self.tile_count() + self.tile_count_bytes
    }

    /// Where sums of dq or dS begin.
    fn sums(&self) -> u64 {
        self.first_dq_exponent() + self.dq_exponents_bytes
    }

    pub(super) fn bytes(&self) -> usize {
        (self.first_keep_word() + self.keep_mask_bytes) as usize
    }

    /// Where the keep mask begins, if there is one.
    fn first_keep_word(&self) -> u64 {
        let end = self.states() + self.states_bytes;
        match self.keep_mask_bytes {
            0 => end,
            _ => end.next_multiple_of(WORKSPACE_ALIGN_BYTES),
        }
    }

    /// The keep mask in a workspace at `address`, if there is one.
    pub(crate) fn keep_mask(&self, address: u64) -> Option<DeviceAddress> {
        let words = DeviceAddress::new(address + self.first_keep_word());
        words.filter(|_| self.keep_mask_bytes > 0)
    }

    /// Where the states of blocks begin, from the workspace's beginning.
    pub(in crate::plan) fn states(&self) -> u64 {
        self.slope_sums(0) + self.slope_sums_bytes
    }

    /// The arrays of a workspace at `address`.
    pub(super) fn terms(&self, address: u64) -> RowTerms {
        let array = |index: u64| address + RESERVED_BYTES + index * self.array_bytes;
        let largest_d_o = DeviceAddress::new(array(2)).filter(|_| self.has_largest_d_o);
        RowTerms {
            lse_log2: array(0),
            delta: array(1),
            largest_d_o,
            largest_of_chunk: array(3),
        }
    }

    /// The exponents of dq in a workspace at `address`, if there are any.
    pub(super) fn dq_exponents(&self, address: u64) -> Option<DeviceAddress> {
        let exponents = DeviceAddress::new(address + self.first_dq_exponent());
        exponents.filter(|_| self.dq_exponents_bytes > 0)
    }

    /// The sums of dq in a workspace at `address`, if there are any.
    pub(super) fn dq_sums(&self, address: u64) -> Option<DeviceAddress> {
        let sums = DeviceAddress::new(address + self.sums());
        sums.filter(|_| self.dq_sums_bytes > 0)
    }

    /// dS in a workspace at `address`, if it is stored.
    pub(super) fn ds(&self, address: u64) -> Option<DeviceAddress> {
        let ds = DeviceAddress::new(address + self.sums());
        ds.filter(|_| self.ds_bytes > 0)
    }

    /// Sums of dk and dv in a workspace at `address`, if they wait there.
    pub(super) fn ds_sums(&self, address: u64) -> Option<DeviceAddress> {
        let sums = DeviceAddress::new(address + self.sums() + self.ds_bytes);
        sums.filter(|_| self.ds_sums_bytes > 0)
    }

    /// Address of the tiles' sums for the gradient by slopes, in a workspace at `address`.
    pub(crate) fn slope_sums(&self, address: u64) -> u64 {
        address + self.sums() + self.dq_sums_bytes + self.ds_bytes + self.ds_sums_bytes
    }
}

/// Rows of o, of all heads.
pub(super) fn rows(problem: &Problem) -> usize {
    let shape = problem.o().shape;
    shape.batch * shape.heads * shape.seq
}
