//! The two matrix products of a key block, on register tiles fed by 16-byte shared-memory loads.

use cuda_std::math::fma;
use cuda_std::shared;

use super::{BLOCK_N, LANES, MASKED_OUT, SCORE_COLS, Scores, SimtKernel, ThreadLayout};
use crate::config::simt::SimtConfig;
use crate::tile::black_box;
use crate::units::F32_BYTES;

/// Contraction steps one 16-byte load covers.
const STEP: usize = 4;
/// Bytes of a step's part of a row.
const STEP_BYTES: u32 = STEP as u32 * F32_BYTES;
/// Contraction steps of a turn of the loops that load ahead ([`SimtKernel::LOADS_AHEAD`]), which is two steps: the row operand's
/// fragments of one arrive while the other's are multiplied, in registers of their own.
const TURN: usize = 2 * STEP;

/// S += Q Kᵀ over up to `k_chunk` head dimensions.
///
/// `q_smem` points at the chunk's first dimension of the Q tile; `dims` head dimensions remain.
///
/// # Safety
/// Q and the chunk of K are in shared memory and visible to this thread.
#[inline(always)]
pub unsafe fn qk<K: SimtKernel, const ROWS: usize>(
    acc_s: &mut Scores<ROWS>,
    q_smem: u32,
    k_smem: u32,
    layout: ThreadLayout,
    dims: u32,
) {
    let q_row_bytes = (K::CONFIG.head_dim + SimtConfig::ROW_PAD) as u32 * F32_BYTES;
    let k_row_bytes = (K::CONFIG.k_chunk + SimtConfig::ROW_PAD) as u32 * F32_BYTES;
    let q_row = layout.row_groups * q_row_bytes;
    let k_row = LANES as u32 * k_row_bytes;
    let mut q_address = q_smem + layout.row(0) * q_row_bytes;
    let mut k_address = k_smem + layout.lane * k_row_bytes;
    let dims = dims.min(K::CONFIG.k_chunk as u32);
    if !K::LOADS_AHEAD {
        let mut steps = black_box(dims.div_ceil(STEP as u32));
        while steps > 0 {
            let q_frag = fragments::<ROWS, false>(q_address, q_row);
            qk_step(acc_s, &q_frag, k_address, k_row);
            q_address += STEP_BYTES;
            k_address += STEP_BYTES;
            steps -= 1;
        }
        return;
    }
    let mut turns = black_box(dims.div_ceil(TURN as u32));
    let mut even = fragments::<ROWS, true>(q_address, q_row);
    loop {
        turns -= 1;
        let odd = fragments::<ROWS, true>(q_address + STEP_BYTES, q_row);
        qk_step(acc_s, &even, k_address, k_row);
        q_address += next_turn(turns);
        even = fragments::<ROWS, true>(q_address, q_row);
        qk_step(acc_s, &odd, k_address + STEP_BYTES, k_row);
        k_address += 2 * STEP_BYTES;
        if turns == 0 {
            break;
        }
    }
}

/// S += Q Kᵀ over the head dimensions of a step.
///
/// # Safety
/// As [`qk`].
#[inline(always)]
unsafe fn qk_step<const ROWS: usize>(
    acc_s: &mut Scores<ROWS>,
    q_frag: &[[f32; STEP]; ROWS],
    k_address: u32,
    k_row: u32,
) {
    for j in 0..SCORE_COLS {
        let k_frag = shared::load4(k_address + j as u32 * k_row);
        for i in 0..ROWS {
            for step in 0..STEP {
                acc_s[i][j] = fma(q_frag[i][step], k_frag[step], acc_s[i][j]);
            }
        }
    }
}

/// A step's part of each row that a thread holds, `row_bytes` apart; `IS_AHEAD` of its use, or where the compiler likes.
///
/// # Safety
/// The rows are in shared memory and visible to this thread.
#[inline(always)]
unsafe fn fragments<const ROWS: usize, const IS_AHEAD: bool>(
    address: u32,
    row_bytes: u32,
) -> [[f32; STEP]; ROWS] {
    let mut fragments = [[0.0; STEP]; ROWS];
    for i in 0..ROWS {
        let address = address + i as u32 * row_bytes;
        fragments[i] = if IS_AHEAD {
            shared::load4_ahead(address)
        } else {
            shared::load4(address)
        };
    }
    fragments
}

/// How far the next turn's fragments are, `turns` of which remain: after the last, its own are loaded again.
#[inline(always)]
fn next_turn(turns: u32) -> u32 {
    if turns == 0 { 0 } else { 2 * STEP_BYTES }
}

/// Bytes between two rows of P in shared memory.
pub const P_ROW_BYTES: u32 = (BLOCK_N + SimtConfig::P_PAD) as u32 * F32_BYTES;

/// Hands P from its score layout to the lanes of its row, which multiply with it.
///
/// # Safety
/// The warp is done reading its rows of P.
#[inline(always)]
pub unsafe fn store_p<const ROWS: usize>(p: &Scores<ROWS>, p_smem: u32, layout: ThreadLayout) {
    let address = p_smem + layout.row(0) * P_ROW_BYTES + layout.lane * F32_BYTES;
    for i in 0..ROWS {
        let row = i as u32 * layout.row_groups;
        for j in 0..SCORE_COLS {
            let col = (j * LANES) as u32;
            shared::store(address + row * P_ROW_BYTES + col * F32_BYTES, p[i][j]);
        }
    }
}

/// O += P V over `keys` rows of V.
///
/// A thread's output columns are runs of four, `4·lane + 64j ..`. Rows of V beyond `keys`, up to a multiple
/// of four, or of eight in kernels that load ahead, are zero and so are their probabilities.
///
/// # Safety
/// P and the chunk of V are in shared memory and visible to this thread.
#[inline(always)]
pub unsafe fn pv<K: SimtKernel, const ROWS: usize, const O_COLS: usize>(
    acc_o: &mut [[f32; O_COLS]; ROWS],
    p_smem: u32,
    v_smem: u32,
    layout: ThreadLayout,
    keys: u32,
) {
    let v_row_bytes = (O_COLS * LANES) as u32 * F32_BYTES;
    let mut p_address = p_smem + layout.row(0) * P_ROW_BYTES;
    let mut v_address = v_smem + layout.lane * STEP as u32 * F32_BYTES;
    let p_row = layout.row_groups * P_ROW_BYTES;
    if !K::LOADS_AHEAD {
        let mut steps = black_box(keys.div_ceil(STEP as u32));
        while steps > 0 {
            let p_frag = fragments::<ROWS, false>(p_address, p_row);
            pv_step(acc_o, &p_frag, v_address, v_row_bytes);
            p_address += STEP_BYTES;
            v_address += STEP as u32 * v_row_bytes;
            steps -= 1;
        }
        return;
    }
    let mut turns = black_box(keys.div_ceil(TURN as u32));
    let mut even = fragments::<ROWS, true>(p_address, p_row);
    loop {
        turns -= 1;
        let odd = fragments::<ROWS, true>(p_address + STEP_BYTES, p_row);
        pv_step(acc_o, &even, v_address, v_row_bytes);
        p_address += next_turn(turns);
        even = fragments::<ROWS, true>(p_address, p_row);
        pv_step(
            acc_o,
            &odd,
            v_address + STEP as u32 * v_row_bytes,
            v_row_bytes,
        );
        v_address += TURN as u32 * v_row_bytes;
        if turns == 0 {
            break;
        }
    }
}

/// O += P V over the keys of a step.
///
/// # Safety
/// As [`pv`].
#[inline(always)]
unsafe fn pv_step<const ROWS: usize, const O_COLS: usize>(
    acc_o: &mut [[f32; O_COLS]; ROWS],
    p_frag: &[[f32; STEP]; ROWS],
    v_address: u32,
    v_row_bytes: u32,
) {
    for step in 0..STEP {
        for j in 0..O_COLS / STEP {
            let offset = step as u32 * v_row_bytes + (j * STEP * LANES) as u32 * F32_BYTES;
            let v_frag = shared::load4(v_address + offset);
            for i in 0..ROWS {
                for col in 0..STEP {
                    let o = &mut acc_o[i][j * STEP + col];
                    *o = fma(p_frag[i][step], v_frag[col], *o);
                }
            }
        }
    }
}

/// [`pv`] for a block with masked-out keys, where `needs_mask`.
///
/// [`MASKED_OUT`] contributes nothing by itself where V is finite. The thread looks at all of its columns first, a load for the
/// nine and more of a product.
///
/// # Safety
/// As [`pv`].
#[inline(always)]
pub unsafe fn pv_maybe_masked<K: SimtKernel, const ROWS: usize, const O_COLS: usize>(
    acc_o: &mut [[f32; O_COLS]; ROWS],
    p_smem: u32,
    v_smem: u32,
    layout: ThreadLayout,
    keys: u32,
    needs_mask: bool,
) {
    let columns = Columns::<O_COLS> {
        address: v_smem + layout.lane * STEP_BYTES,
        lanes: LANES as u32,
    };
    if needs_mask && !columns.are_finite(keys) {
        pv_masked(acc_o, p_smem, v_smem, layout, keys);
    } else {
        pv::<K, _, _>(acc_o, p_smem, v_smem, layout, keys);
    }
}

/// A thread's `COLS` columns of rows in shared memory: runs of four, which `lanes` threads take in turn.
pub struct Columns<const COLS: usize> {
    /// Of the first row's first run.
    pub address: u32,
    pub lanes: u32,
}

impl<const COLS: usize> Columns<COLS> {
    /// Whether they are finite in `rows` rows; rows beyond those, up to a multiple of four, are finite.
    ///
    /// # Safety
    /// The rows are in shared memory and visible to this thread.
    #[inline(always)]
    pub unsafe fn are_finite(&self, rows: u32) -> bool {
        let run_bytes = self.lanes * STEP_BYTES;
        let row_bytes = (COLS / STEP) as u32 * run_bytes;
        let mut address = self.address;
        // 0 times a number is 0, times anything else NaN.
        let mut products = [0.0; STEP];
        let mut steps = black_box(rows.div_ceil(STEP as u32));
        while steps > 0 {
            for row in 0..STEP as u32 {
                for run in 0..(COLS / STEP) as u32 {
                    let values = shared::load4(address + row * row_bytes + run * run_bytes);
                    for col in 0..STEP {
                        products[col] = fma(values[col], 0.0, products[col]);
                    }
                }
            }
            address += STEP as u32 * row_bytes;
            steps -= 1;
        }
        let [a, b, c, d] = products;
        (a + b) + (c + d) == 0.0
    }
}

/// [`pv`] for a block with masked-out keys: [`MASKED_OUT`] contributes nothing, even where V is not finite.
///
/// One key at a time, as selecting among four at once takes more registers than there are.
///
/// # Safety
/// As [`pv`].
#[inline(always)]
unsafe fn pv_masked<const ROWS: usize, const O_COLS: usize>(
    acc_o: &mut [[f32; O_COLS]; ROWS],
    p_smem: u32,
    v_smem: u32,
    layout: ThreadLayout,
    keys: u32,
) {
    let v_row_bytes = (O_COLS * LANES) as u32 * F32_BYTES;
    let mut p_address = p_smem + layout.row(0) * P_ROW_BYTES;
    let mut v_address = v_smem + layout.lane * STEP as u32 * F32_BYTES;
    let mut keys = black_box(keys);
    while keys > 0 {
        let mut p_frag = [0.0; ROWS];
        for i in 0..ROWS {
            let row = i as u32 * layout.row_groups;
            p_frag[i] = shared::load(p_address + row * P_ROW_BYTES);
        }
        for j in 0..O_COLS / STEP {
            let offset = (j * STEP * LANES) as u32 * F32_BYTES;
            let v_frag = shared::load4(v_address + offset);
            for i in 0..ROWS {
                let visible = p_frag[i].to_bits() != MASKED_OUT.to_bits();
                for col in 0..STEP {
                    let o = &mut acc_o[i][j * STEP + col];
                    if visible {
                        *o = fma(p_frag[i], v_frag[col], *o);
                    }
                }
            }
        }
        p_address += F32_BYTES;
        v_address += v_row_bytes;
        keys -= 1;
    }
}
