//! Recomputes elements of O that are not finite although they perhaps should be. Why, and how the `mma` kernels do it:
//! [`crate::tile::non_finite`].
//!
//! Before a warp's rows leave shared memory, the whole warp recomputes from global memory every non-finite element that
//! is not explained by keys that all rows see, over the visible keys alone and with normalised probabilities. Rows
//! whose scores are not finite stay as they are.

use core::f32::consts::LOG2_E;

use cuda_std::half::Half;
use cuda_std::math::{exp2, fma};
use cuda_std::warp::{WARP_SIZE, any, broadcast, reduce_sum};
use cuda_std::{global, shared};

use super::Launch;
use super::lanes::{Lanes, VEC16_ELEMS, swizzled};
use super::softmax::PerRow;
use crate::abi::TensorArg;
use crate::config::wgmma::{ATOM_COLS, WARP_ROWS, WgmmaConfig};
use crate::layout::fragment::ROW_STEP;
use crate::modifiers::{Modifiers, Pair, Place};
use crate::score::ScoreTransform;
use crate::tile::black_box;
use crate::tile::block_range::visible_keys;
use crate::tile::non_finite::{
    ELEMENT_BITS, ELEMENT_MASK, is_minus_infinity, is_nan, is_plus_infinity,
};
use crate::tile::quad::QUAD;
use crate::tile::sequence::Sequence;
use crate::units::HALF_BYTES;
use crate::wgmma::pages::Pages;
use crate::wgmma::scheduler::TileCoord;

/// Most pairs of columns a lane looks after: `lane + 32 i`, one in each atom column.
const PAIRS: usize = 4;
const PAIR_BYTES: u32 = 2 * HALF_BYTES;

/// Keys looked at together, so that many loads are in flight.
const KEYS: usize = 4;

/// One warp's staged rows and where they come from.
pub struct NonFiniteFixup<'a, M> {
    pub launch: &'a Launch<'a>,
    pub modifiers: &'a M,
    pub config: &'a WgmmaConfig,
    pub sequence: &'a Sequence,
    pub work_tile: TileCoord,
    pub lanes: Lanes,
    /// The warpgroup's staged output.
    pub o_smem: u32,
    /// First row of the warp.
    pub row_begin: u32,
    pub lse: PerRow,
}

impl<M: Modifiers> NonFiniteFixup<'_, M> {
    /// Recomputes the elements of the warp's staged rows that need it.
    ///
    /// # Safety
    /// All lanes reach the same call; the rows are staged and stay the warp's own until a barrier; `params` describes
    /// live allocations.
    #[inline(always)]
    pub unsafe fn run<E: Half>(&self) {
        let rows = self.launch.pack_gqa().rows(self.sequence.seq_q);
        let rows = rows.saturating_sub(self.row_begin).min(WARP_ROWS);
        // SAFETY: only existing rows and columns are read.
        unsafe {
            let mut staged = Columns::NONE;
            let mut staged_row = 0;
            while staged_row < black_box(rows) {
                staged = staged.or(self.staged_columns::<E>(staged_row));
                staged_row += 1;
            }
            let seen = self.seen_by_all::<E>(rows, staged);
            let mut row = 0;
            while row < black_box(rows) {
                let suspects = self.staged_columns::<E>(row).unexplained_by(seen);
                if any(suspects != 0) {
                    self.recompute_row::<E>(row, suspects);
                }
                row += 1;
            }
        }
    }

    /// The lane's columns of a staged row, if there is such a row and its scores are finite.
    #[inline(always)]
    unsafe fn staged_columns<E: Half>(&self, row: u32) -> Columns {
        let mut columns = Columns::NONE;
        let row_of_tile = self.row_begin + row;
        let is_finite = self.lse(row).is_finite();
        if !is_finite
            || !self
                .launch
                .has_row(self.work_tile, self.sequence, row_of_tile)
        {
            return columns;
        }
        for i in 0..self.config.atom_columns_v() as usize {
            if self.has_pair(i) {
                // SAFETY: inside the staged row.
                let pair = unsafe { shared::load_bits(self.staged(row, i)) };
                columns = columns.or(Columns::of::<E>(pair, i));
            }
        }
        columns
    }

    /// A row's log-sum-exp.
    ///
    /// # Safety
    /// All lanes reach the same call.
    #[inline(always)]
    unsafe fn lse(&self, row: u32) -> f32 {
        // A row's state is its quad's.
        let lse = if row < ROW_STEP {
            self.lse[0]
        } else {
            self.lse[1]
        };
        broadcast(lse, row % ROW_STEP * QUAD)
    }

    /// The lane's columns of the keys that every row of the warp sees, until those explain the `staged` ones.
    #[inline(always)]
    unsafe fn seen_by_all<E: Half>(&self, rows: u32, staged: Columns) -> Columns {
        let query = |row| self.launch.pack_gqa().query(self.row_begin + row);
        let (_, last) = self.keys(query(0));
        let (first, _) = self.keys(query(rows - 1));
        let mut seen = Columns::NONE;
        let mut key = first;
        // SAFETY: all lanes run the same loop.
        while key <= last && unsafe { any(staged.unexplained_by(seen) != 0) } {
            for ahead in 0..KEYS as i32 {
                let key = (key + ahead).min(last) as u32;
                // SAFETY: all lanes run the same loop.
                if self.modifiers.hides() && unsafe { self.is_hidden_from_any(key, rows) } {
                    continue;
                }
                for i in 0..self.config.atom_columns_v() as usize {
                    if self.has_pair(i) {
                        // SAFETY: the key and the columns exist.
                        seen = seen.or(Columns::of::<E>(unsafe { self.v_pair(key, i) }, i));
                    }
                }
            }
            key += KEYS as i32;
        }
        seen
    }

    /// Recomputes the pairs of one row that hold a suspect element.
    #[inline(always)]
    unsafe fn recompute_row<E: Half>(&self, row: u32, suspects: u32) {
        let Sequence { seq_kv, seq_q, .. } = *self.sequence;
        let query = self.launch.pack_gqa().query(self.row_begin + row);
        let head = self.launch.query_head(self.work_tile, self.row_begin + row);
        let (first, last) = self.keys(query);
        // SAFETY: all lanes run the same loops.
        unsafe {
            let transform = self.transform(head);
            let lse = self.lse(row);
            let pairs = self.query(head, query);
            let mut sums = [[0.0; 2]; PAIRS];
            let mut key = first;
            while key <= last {
                let mut scores = [[0.0; KEYS]];
                for ahead in 0..KEYS {
                    let key = (key + ahead as i32).min(last) as u32;
                    scores[0][ahead] = reduce_sum::<WARP_SIZE>(self.dot::<E>(pairs, key));
                }
                let distance = query as i32 + seq_kv as i32 - seq_q as i32 - key;
                transform.apply(&mut scores, |_| distance, |ahead| ahead as i32);
                let pair = |_, ahead: usize| Pair {
                    query,
                    key: key as u32 + ahead as u32,
                };
                if self.config.biases.may_be() && self.modifiers.changes_scores() {
                    self.modifiers.change(|| self.place(), &mut scores, pair);
                }
                let kept = self.kept(query, key as u32);
                for ahead in 0..KEYS {
                    let key = key + ahead as i32;
                    if key > last {
                        break;
                    }
                    if kept >> ahead & 1 == 0 {
                        continue;
                    }
                    let score = scores[0][ahead];
                    let p = exp2(fma(score, transform.scale_log2, -lse * LOG2_E));
                    let p = p * self.modifiers.dropout_scale();
                    for i in 0..self.config.atom_columns_v() as usize {
                        if suspects & in_mask(BOTH, i) != 0 {
                            let v = E::widen_pair(self.v_pair(key as u32, i));
                            sums[i] = [fma(p, v[0], sums[i][0]), fma(p, v[1], sums[i][1])];
                        }
                    }
                }
                key += KEYS as i32;
            }
            for i in 0..self.config.atom_columns_v() as usize {
                if suspects & in_mask(BOTH, i) != 0 {
                    shared::store_bits(self.staged(row, i), E::cvt_pair(sums[i][0], sums[i][1]));
                }
            }
        }
    }

    /// First and last key that a query may see.
    #[inline(always)]
    fn keys(&self, query: u32) -> (i32, i32) {
        let Sequence { band, seq_kv, .. } = *self.sequence;
        if self.modifiers.hides() {
            (0, seq_kv as i32 - 1)
        } else {
            visible_keys(query as i32, band, seq_kv)
        }
    }

    /// The head of the sequence that the tile belongs to.
    #[inline(always)]
    fn place(&self) -> Place {
        self.launch.place(self.work_tile, self.sequence)
    }

    /// How the scores of query head `head` are transformed.
    ///
    /// # Safety
    /// The head exists; as [`NonFiniteFixup::run`].
    #[inline(always)]
    unsafe fn transform(&self, head: u32) -> ScoreTransform {
        let (score, batch) = (&self.launch.params.attention.score, self.work_tile.batch);
        if self.config.biases.may_be() && self.modifiers.changes_scores() {
            ScoreTransform::in_nats(score, batch, head, 0.0)
        } else {
            ScoreTransform::new(score, batch, head, 0.0)
        }
    }

    /// Whether one of the warp's `rows` rows does not see `key`.
    ///
    /// # Safety
    /// All lanes reach the same call; the key exists.
    #[inline(always)]
    unsafe fn is_hidden_from_any(&self, key: u32, rows: u32) -> bool {
        let row = (self.lanes.lane % WARP_ROWS).min(rows - 1);
        let query = self.row_begin + row;
        any(!self.modifiers.sees(&self.place(), Pair { query, key }))
    }

    /// Which of [`KEYS`] keys from `key` on `query` sees, and whose probabilities are not dropped, a bit each; of keys that do
    /// not exist, any.
    ///
    /// # Safety
    /// The query and the first key exist; as [`NonFiniteFixup::run`].
    #[inline(always)]
    unsafe fn kept(&self, query: u32, key: u32) -> u32 {
        if M::IS_NONE {
            return !0;
        }
        let at = self.place();
        let mut kept = 0;
        let mut ahead = 0;
        // A loop that stays one: unrolled, it would be most of the kernel's instructions.
        while ahead < black_box(KEYS as u32) {
            let key = (key + ahead).min(at.seq_kv - 1);
            let pair = Pair { query, key };
            let is_kept = match self.modifiers.dropout(&at) {
                None => true,
                Some(dropout) => dropout.keeps(pair),
            };
            let is_shown = !self.modifiers.hides() || self.modifiers.sees(&at, pair);
            kept |= u32::from(is_shown & is_kept) << ahead;
            ahead += 1;
        }
        kept
    }

    /// The lane's pairs of a query.
    #[inline(always)]
    unsafe fn query(&self, head: u32, query: u32) -> [u32; PAIRS] {
        let params = self.launch.params;
        let q = self
            .sequence
            .q_address(&params.attention.q, head, HALF_BYTES);
        let mut pairs = [0; PAIRS];
        for i in 0..self.config.atom_columns() as usize {
            let col = self.col(i);
            if col < params.attention.head_dim {
                // SAFETY: the row exists, as the caller vouches; the column is below head_dim, and so is its neighbour.
                pairs[i] = unsafe {
                    global::load_u32(element(q, params.attention.q.seq_stride, query, col))
                };
            }
        }
        pairs
    }

    /// The lane's part of the dot product of a query, given as its pairs, and a key.
    #[inline(always)]
    unsafe fn dot<E: Half>(&self, query: [u32; PAIRS], key: u32) -> f32 {
        let params = self.launch.params;
        // Computed for each key rather than kept.
        let k = self.key_base(&params.attention.k, black_box(self.work_tile.head_kv), key);
        let mut dot = 0.0;
        for i in 0..self.config.atom_columns() as usize {
            let col = self.col(i);
            if col < params.attention.head_dim {
                // SAFETY: the key exists, as the caller vouches; the column is below head_dim, and so is its neighbour.
                let k =
                    unsafe { global::load_u32(self.key_element(k, &params.attention.k, key, col)) };
                let (q, k) = (E::widen_pair(query[i]), E::widen_pair(k));
                dot = fma(q[0], k[0], fma(q[1], k[1], dot));
            }
        }
        dot
    }

    /// First column of the lane's pair `i`.
    #[inline(always)]
    fn col(&self, i: usize) -> u32 {
        (self.lanes.lane + i as u32 * WARP_SIZE) * 2
    }

    #[inline(always)]
    fn has_pair(&self, i: usize) -> bool {
        self.col(i) < self.launch.params.attention.head_dim_v
    }

    /// Shared address of the lane's pair `i` of a staged row.
    #[inline(always)]
    fn staged(&self, row: u32, i: usize) -> u32 {
        const { assert!(2 * WARP_SIZE == ATOM_COLS) };
        let row = self.lanes.warp * WARP_ROWS + row;
        let atom_column = i as u32 * self.config.q_atom_column_bytes();
        // `col(0)`: compilers do not know how many lanes there are.
        let in_atom_column = self.col(0);
        let in_vec16 = in_atom_column % VEC16_ELEMS / 2 * PAIR_BYTES;
        self.o_smem + atom_column + swizzled(row, in_atom_column / VEC16_ELEMS) + in_vec16
    }

    /// The lane's pair `i` of a row of V.
    #[inline(always)]
    unsafe fn v_pair(&self, key: u32, i: usize) -> u32 {
        let v = &self.launch.params.attention.v;
        let base = self.key_base(v, self.work_tile.head_kv, key);
        global::load_u32(self.key_element(base, v, key, self.col(i)))
    }

    /// Where [`key_element`](Self::key_element) counts from: the head, or in a cache the key.
    ///
    /// # Safety
    /// A row of the warp sees the key; as [`NonFiniteFixup::run`].
    #[inline(always)]
    unsafe fn key_base(&self, operand: &TensorArg, head_kv: u32, key: u32) -> u64 {
        if self.config.cached {
            let sequence = self.work_tile.batch;
            Pages::new(self.launch.pages).key_address(operand, head_kv, sequence, key)
        } else {
            self.sequence.kv_address(operand, head_kv, HALF_BYTES)
        }
    }

    /// Address of a component of a key, of k or v.
    #[inline(always)]
    fn key_element(&self, base: u64, operand: &TensorArg, key: u32, col: u32) -> u64 {
        let row = if self.config.cached { 0 } else { key };
        element(base, operand.seq_stride, row, col)
    }
}

/// Address of an element of a head.
#[inline(always)]
fn element(head: u64, seq_stride: i64, row: u32, col: u32) -> u64 {
    let offset = row as i64 * seq_stride + col as i64;
    head.wrapping_add_signed(offset * HALF_BYTES as i64)
}

/// Both columns of a pair.
const BOTH: u32 = 0b11;

/// The lane's columns that hold a non-finite number: two bits a pair, the low bit for its first column.
#[derive(Clone, Copy)]
struct Columns {
    nan: u32,
    plus: u32,
    minus: u32,
}

impl Columns {
    const NONE: Self = Self {
        nan: 0,
        plus: 0,
        minus: 0,
    };

    /// The non-finite columns of `pair`, the lane's pair `i`.
    #[inline(always)]
    fn of<E: Half>(pair: u32, i: usize) -> Self {
        let mask = |is: fn(u32) -> bool| {
            let bit = |element: u32| u32::from(is(element & ELEMENT_MASK));
            in_mask(bit(pair) | bit(pair >> ELEMENT_BITS) << 1, i)
        };
        Self {
            nan: mask(is_nan::<E>),
            plus: mask(is_plus_infinity::<E>),
            minus: mask(is_minus_infinity::<E>),
        }
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        Self {
            nan: self.nan | other.nan,
            plus: self.plus | other.plus,
            minus: self.minus | other.minus,
        }
    }

    /// Columns of an output whose non-finite numbers are not explained by those `seen` in V.
    #[inline(always)]
    fn unexplained_by(self, seen: Self) -> u32 {
        let nan = seen.nan | seen.plus & seen.minus;
        self.nan & !nan | self.plus & !seen.plus | self.minus & !seen.minus
    }
}

/// Moves the two bits of a pair to the place of pair `i`.
#[inline(always)]
fn in_mask(columns: u32, i: usize) -> u32 {
    columns << (2 * i)
}
