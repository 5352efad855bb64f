//! Appending to a cache.

use kernels_gpu::abi::CacheFault;
use kernels_gpu::tile::appended::{Appended, NO_SLOT, appended};
use kernels_gpu::tile::rotary::{components, rotate};

use super::decode::{scale_of, word};
use super::pack::Matrix;
use crate::append::AppendOperands;
use crate::problem::{AppendProblem, RotaryStyle};
use crate::spec::Shape;
use crate::{CacheLayout, TensorSpec};

/// Appends all rows, one after the other.
///
/// # Safety
/// As [`Backend::append_raw`](crate::Backend::append_raw).
pub(super) unsafe fn run(problem: &AppendProblem, operands: &AppendOperands) {
    let Shape { batch, seq, .. } = problem.k.shape;
    let mut faults = 0;
    for sequence in 0..batch {
        for row in 0..seq {
            let row = NewRow {
                problem,
                operands,
                sequence,
                row,
            };
            // SAFETY: the row is one of the problem's.
            if let Err(fault) = unsafe { row.append() } {
                faults |= fault as u32;
            }
        }
    }
    if let Some(status) = operands.cache.status.filter(|_| faults != 0) {
        let status = std::ptr::with_exposed_provenance_mut::<u32>(status as usize);
        // SAFETY: the caller vouches for the word.
        unsafe { *status |= faults };
    }
}

/// New row number `row` of a sequence, of all heads.
struct NewRow<'a> {
    problem: &'a AppendProblem,
    operands: &'a AppendOperands,
    sequence: usize,
    row: usize,
}

impl NewRow<'_> {
    /// # Safety
    /// As [`run`].
    unsafe fn append(&self) -> Result<(), CacheFault> {
        let problem = self.problem;
        // SAFETY: there is a length for each sequence.
        let kv_len = unsafe { word(self.operands.cache.kv_lens, self.sequence) } as u32;
        let positions = problem.rotary.map(|rotary| rotary.cos.shape.seq as u32);
        let (capacity, seq) = (problem.capacity() as u32, problem.k.shape.seq as u32);
        let key = appended(kv_len, capacity, seq, self.row as u32, positions);
        // SAFETY: the caller's promise is the one asked for.
        unsafe { self.write_q(key) };
        let key = match key {
            Appended::Key(key) => key as usize,
            Appended::Padding => return Ok(()),
            Appended::Bad(fault) => return Err(fault),
        };
        // SAFETY: the key is below the capacity.
        let Some((page, place)) = (unsafe { self.page_of(key)? }) else {
            return Ok(());
        };
        let AppendOperands {
            k,
            v,
            k_cache,
            v_cache,
            ..
        } = *self.operands;
        let angles = Some(key);
        let scales = problem.scales.zip(self.operands.cache.scales);
        let [k_scales, v_scales] = match scales {
            None => [None; 2],
            Some(([k, v], [at_k, at_v])) => [Some((k, at_k)), Some((v, at_v))],
        };
        for (from, to, angles, scales) in [
            (
                (&problem.k, k),
                (&problem.k_cache, k_cache),
                angles,
                k_scales,
            ),
            ((&problem.v, v), (&problem.v_cache, v_cache), None, v_scales),
        ] {
            for head in 0..from.0.shape.heads {
                let to = Matrix::new(to.0, to.1, page, head, place);
                // SAFETY: the page and the place exist, and nobody else accesses the row.
                unsafe {
                    let scale = scale_of(scales, [page, head, place]);
                    self.write(from, head, to, angles, scale);
                }
            }
        }
        Ok(())
    }

    /// Writes the queries of this row.
    ///
    /// # Safety
    /// As [`run`].
    unsafe fn write_q(&self, key: Appended) {
        let Some(([q, rotated], [from, to])) = self.problem.q.zip(self.operands.q) else {
            return;
        };
        for head in 0..q.shape.heads {
            let to = Matrix::new(&rotated, to, self.sequence, head, self.row);
            // SAFETY: the row lies inside both tensors, and nobody else accesses that of `rotated`.
            unsafe {
                match key {
                    Appended::Key(key) => self.write((&q, from), head, to, Some(key as usize), 1.0),
                    Appended::Padding => self.write((&q, from), head, to, None, 1.0),
                    Appended::Bad(_) => to.write_row(0, &vec![f32::NAN; q.shape.dim]),
                }
            }
        }
    }

    /// Copies this row of a head, rotated as that key is if it is one of these, and divided by `scale`.
    ///
    /// # Safety
    /// The row lies inside the tensor, and so does `to`, which nobody else accesses; there are angles for the key.
    unsafe fn write(
        &self,
        (spec, address): (&TensorSpec, u64),
        head: usize,
        to: Matrix,
        key: Option<usize>,
        scale: f32,
    ) {
        let mut row = vec![0.0; spec.shape.dim];
        // SAFETY: the caller vouches for the row.
        unsafe { Matrix::new(spec, address, self.sequence, head, self.row).read_row(0, &mut row) };
        if let Some(key) = key {
            // SAFETY: there are angles for the key.
            unsafe { self.rotate(&mut row, key) };
        }
        if scale != 1.0 {
            for value in &mut row {
                *value /= scale;
            }
        }
        // SAFETY: the caller vouches for the row.
        unsafe { to.write_row(0, &row) };
    }

    /// Rotates a row by the angles of a key, if rows are rotated.
    ///
    /// # Safety
    /// There are angles for the key.
    unsafe fn rotate(&self, row: &mut [f32], key: usize) {
        let Some((rotary, tables)) = self.problem.rotary.zip(self.operands.rotary) else {
            return;
        };
        let pairs = rotary.cos.shape.dim;
        let [cos, sin] =
            [(&rotary.cos, tables[0]), (&rotary.sin, tables[1])].map(|(spec, address)| {
                let mut angles = vec![0.0; pairs];
                // SAFETY: the caller vouches for the row of the table.
                unsafe { Matrix::new(spec, address, 0, 0, key).read_row(0, &mut angles) };
                angles
            });
        let is_interleaved = rotary.style == RotaryStyle::Interleaved;
        for pair in 0..pairs {
            let at = components(pair as u32, 2 * pairs as u32, is_interleaved);
            let [x, y] = at.map(|dim| dim as usize);
            [row[x], row[y]] = rotate([row[x], row[y]], cos[pair], sin[pair]);
        }
    }

    /// Page and place of a key, by its slot or the block table; `None` if its slot is none.
    ///
    /// # Safety
    /// As [`run`]; the key is below the capacity.
    unsafe fn page_of(&self, key: usize) -> Result<Option<(usize, usize)>, CacheFault> {
        let Shape {
            batch: num_pages,
            seq: page_size,
            ..
        } = self.problem.k_cache.shape;
        if let Some((slots, stride)) = self.operands.slots.zip(self.problem.slots_stride) {
            // SAFETY: there is a slot for each row.
            let slot = unsafe { word(slots, self.sequence * stride + self.row) };
            if slot == NO_SLOT {
                return Ok(None);
            }
            let is_one = |&slot: &usize| slot < num_pages * page_size;
            let slot = usize::try_from(slot).ok().filter(is_one);
            let slot = slot.ok_or(CacheFault::BadSlot)?;
            return Ok(Some((slot / page_size, slot % page_size)));
        }
        match self.problem.layout {
            CacheLayout::Contiguous => Ok(Some((self.sequence, key))),
            CacheLayout::Paged { table_stride, .. } => {
                let table = self.operands.cache.block_table.expect("checked operands");
                // SAFETY: the table has an entry for every key below the capacity.
                let page = unsafe { word(table, self.sequence * table_stride + key / page_size) };
                let page = usize::try_from(page).ok().filter(|&page| page < num_pages);
                let page = page.ok_or(CacheFault::BadPage)?;
                Ok(Some((page, key % page_size)))
            }
        }
    }
}
