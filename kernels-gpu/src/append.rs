//! New keys and values, written into a cache, with rotary embedding of k and q. A warp takes a row of a head at a time.
//!
//! Neither lengths, table nor slots are trusted: a row that they send nowhere is not written, and a bit of the status says why.

use cuda_std::global;
use cuda_std::warp::lane_id;

use crate::abi::{AppendParams, CacheFault, CacheScales, ScaleArg, TensorArg};
use crate::tile::appended::{Appended, NO_SLOT, appended};
use crate::tile::element::{E4m3, Element, F32};
use crate::tile::grid::divide_long;
use crate::tile::rotary::{components, rotate};
use crate::tile::warp_per_row::{WARP, each_row_by_warp};
use crate::units::F32_BYTES;

/// Appends all rows, with any number of blocks of whole warps.
///
/// # Safety
/// `params` describes live allocations that hold every element it can address.
#[inline(always)]
pub unsafe fn append<E: Element, C: Element>(params: &AppendParams, scales: &CacheScales) {
    let heads = 2 * params.heads_kv as u64 + params.heads_q as u64;
    let rows = params.batch as u64 * params.seq as u64 * heads;
    // SAFETY: the row is the same for the warp, and one of k's, v's or q's.
    each_row_by_warp(rows, |row| unsafe {
        of_row::<E, C>(params, scales, row, heads)
    });
}

/// # Safety
/// As [`append`]; the whole warp calls it with the same row.
#[inline(always)]
unsafe fn of_row<E: Element, C: Element>(
    params: &AppendParams,
    scales: &CacheScales,
    row: u64,
    heads: u64,
) {
    let (token, head) = divide_long(row, heads);
    let (batch, row) = divide_long(token, params.seq as u64);
    let (head, row) = (head as u32, row as u32);
    // SAFETY: there is a length for each sequence.
    let kv_len = unsafe { global::load_u32(params.kv_lens + batch * F32_BYTES as u64) };
    let is_rotated = params.rotary_dim != 0;
    let positions = if is_rotated {
        Some(params.positions)
    } else {
        None
    };
    let key = appended(kv_len, params.capacity, params.seq, row, positions);
    let heads_kv = params.heads_kv;
    // SAFETY: the coordinates are those of a row of the operand.
    unsafe {
        if head >= 2 * heads_kv {
            let coord = [batch, (head - 2 * heads_kv) as u64, row as u64];
            let from = Row::new::<E>(&params.q, coord);
            let to = Row::new::<E>(&params.q_rotated, coord);
            return match key {
                Appended::Key(key) => rotated::<E, E>(params, from, to, key, 1.0),
                Appended::Padding => copy::<E, E>(from, to, 0, params.head_dim, 1.0),
                Appended::Bad(fault) => {
                    report(params, fault);
                    poison::<E>(to, params.head_dim);
                }
            };
        }
        let key = match key {
            Appended::Key(key) => key,
            Appended::Padding => return,
            Appended::Bad(fault) => return report(params, fault),
        };
        let [page, place] = match page_of(params, batch, row, key) {
            Ok(Some(place)) => place,
            Ok(None) => return,
            Err(fault) => return report(params, fault),
        };
        let is_k = head < heads_kv;
        let head = if is_k { head } else { head - heads_kv } as u64;
        let (from, to) = ([batch, head, row as u64], [page as u64, head, place as u64]);
        if is_k {
            let (from, row) = (
                Row::new::<E>(&params.k, from),
                Row::new::<C>(&params.k_cache, to),
            );
            rotated::<E, C>(params, from, row, key, scale_of::<C>(&scales.k, to));
        } else {
            let (from, row) = (
                Row::new::<E>(&params.v, from),
                Row::new::<C>(&params.v_cache, to),
            );
            let scale = scale_of::<C>(&scales.v, to);
            copy::<E, C>(from, row, 0, params.head_dim_v, scale);
        }
    }
}

/// The scale of a key, of an e4m3 cache that has scales.
///
/// # Safety
/// The place is one of the cache's.
#[inline(always)]
unsafe fn scale_of<C: Element>(scales: &ScaleArg, [page, head, place]: [u64; 3]) -> f32 {
    let Some(base) = scales.address.filter(|_| is_scaled::<C>()) else {
        return 1.0;
    };
    let offset = page as i64 * scales.page_stride
        + head as i64 * scales.head_stride
        + place as i64 * scales.place_stride;
    // SAFETY: there is a scale for every place.
    unsafe { F32::load(base.get().wrapping_add_signed(offset * F32_BYTES as i64)) }
}

/// Whether elements of the cache have scales.
#[inline(always)]
const fn is_scaled<C: Element>() -> bool {
    C::BYTES == E4m3::BYTES
}

/// Stores a number as an element of the cache.
///
/// # Safety
/// As [`Element::store`].
#[inline(always)]
unsafe fn store<C: Element>(address: u64, value: f32, scale: f32) {
    let value = if is_scaled::<C>() {
        value / scale
    } else {
        value
    };
    // SAFETY: forwarded to the caller.
    unsafe { C::store(address, value) }
}

/// Page and place of a key, by its slot or the block table; `None` if its slot is none.
///
/// # Safety
/// As [`append`]; the row is one of the sequence's, and the key below its capacity.
#[inline(always)]
unsafe fn page_of(
    params: &AppendParams,
    batch: u64,
    row: u32,
    key: u32,
) -> Result<Option<[u32; 2]>, CacheFault> {
    let page_size = params.page_size as u64;
    if let Some(slots) = params.slots {
        let index = batch * params.slots_stride + row as u64;
        // SAFETY: there is a slot for each row.
        let slot = unsafe { global::load_u32(slots.get() + index * F32_BYTES as u64) };
        if slot as i32 == NO_SLOT {
            return Ok(None);
        }
        // A negative one is large.
        if slot as u64 >= params.num_pages as u64 * page_size || (slot as i32) < 0 {
            return Err(CacheFault::BadSlot);
        }
        let (page, place) = divide_long(slot as u64, page_size);
        return Ok(Some([page as u32, place as u32]));
    }
    let Some(table) = params.block_table else {
        return Ok(Some([batch as u32, key]));
    };
    let (number, place) = divide_long(key as u64, page_size);
    let index = batch * params.table_stride + number;
    // SAFETY: the table has an entry for every key below the capacity.
    let page = unsafe { global::load_u32(table.get() + index * F32_BYTES as u64) };
    if page >= params.num_pages {
        return Err(CacheFault::BadPage);
    }
    Ok(Some([page, place as u32]))
}

/// A row of a tensor.
#[derive(Clone, Copy)]
struct Row {
    address: u64,
    stride_bytes: i64,
}

impl Row {
    /// The row at `[batch, head, seq]` of elements `E`.
    #[inline(always)]
    fn new<E: Element>(tensor: &TensorArg, [batch, head, seq]: [u64; 3]) -> Self {
        let offset = batch as i64 * tensor.batch_stride
            + head as i64 * tensor.head_stride
            + seq as i64 * tensor.seq_stride;
        let bytes = E::BYTES as i64;
        Self {
            address: tensor.address.wrapping_add_signed(offset * bytes),
            stride_bytes: tensor.dim_stride * bytes,
        }
    }

    /// Address of a component.
    #[inline(always)]
    fn at(&self, dim: u32) -> u64 {
        self.address
            .wrapping_add_signed(dim as i64 * self.stride_bytes)
    }
}

/// Copies a row of `head_dim` components, of which the first `rotary_dim` are rotated as those of `key`, in units of `scale`.
///
/// # Safety
/// The rows lie inside live tensors, `to` accessed by nobody else; there are angles for `key` if `rotary_dim` is not 0.
#[inline(always)]
unsafe fn rotated<E: Element, C: Element>(
    params: &AppendParams,
    from: Row,
    to: Row,
    key: u32,
    scale: f32,
) {
    let rotary_dim = params.rotary_dim;
    let angles = [0, 0, key as u64];
    let (cos, sin) = (
        Row::new::<F32>(&params.cos, angles),
        Row::new::<F32>(&params.sin, angles),
    );
    let mut pair = lane_id();
    while pair < rotary_dim / 2 {
        let at = components(pair, rotary_dim, params.is_interleaved != 0);
        // SAFETY: the components are below head_dim, and the pair is one of the tables'.
        unsafe {
            let pair_of_row = [E::load(from.at(at[0])), E::load(from.at(at[1]))];
            let (cos, sin) = (F32::load(cos.at(pair)), F32::load(sin.at(pair)));
            let turned = rotate(pair_of_row, cos, sin);
            store::<C>(to.at(at[0]), turned[0], scale);
            store::<C>(to.at(at[1]), turned[1], scale);
        }
        pair += WARP;
    }
    // SAFETY: as above.
    unsafe { copy::<E, C>(from, to, rotary_dim, params.head_dim, scale) };
}

/// Copies components `first..end` of a row, in units of `scale`.
///
/// # Safety
/// As [`rotated`].
#[inline(always)]
unsafe fn copy<E: Element, C: Element>(from: Row, to: Row, first: u32, end: u32, scale: f32) {
    let mut dim = first + lane_id();
    while dim < end {
        // SAFETY: the component is below the rows' dimension.
        unsafe { store::<C>(to.at(dim), E::load(from.at(dim)), scale) };
        dim += WARP;
    }
}

/// Fills a row with NaN.
///
/// # Safety
/// As [`rotated`].
#[inline(always)]
unsafe fn poison<E: Element>(to: Row, end: u32) {
    let mut dim = lane_id();
    while dim < end {
        // SAFETY: the component is below the row's dimension.
        unsafe { E::store(to.at(dim), f32::NAN) };
        dim += WARP;
    }
}

/// Sets a bit of the launch's status.
///
/// # Safety
/// The status is live.
#[inline(always)]
unsafe fn report(params: &AppendParams, fault: CacheFault) {
    if let Some(status) = params.status
        && lane_id() == 0
    {
        // SAFETY: forwarded to the caller.
        unsafe { global::set_bits(status.get(), fault as u32) };
    }
}
