//! The state of a row's running softmax, and its algebra: `new`, `update`, `rescale`, `merge`, `finalize` (as
//! FlashInfer's `state.cuh` has it).
//!
//! With `m` the row's `row_max`, in bits, and `l = Σⱼ 2^(sⱼ·scale_log2 − m)` its `row_sum` over the keys seen so far, a
//! block of new scores raises `m` to `m'`; what was accumulated under `m` is multiplied by `2^(m − m')` (Dao 2023,
//! FlashAttention-2, algorithm 1). As exponents and factors are computed from the same rounded `m`, its rounding cancels.
//!
//! Any `m` is right as long as nothing overflows, so it may be **stale**: below the true maximum. Then a block of scores
//! needs neither a maximum nor a rescaling. FlashAttention-4 has this as conditional rescaling (`rescale_threshold` in
//! `flash_attn/cute/softmax.py`), which still takes each block's maximum to see how far it grew; here the sums show it,
//! and no maximum is taken. [`RowState::update_max`] makes `m` the maximum; [`RowState::accumulate`] leaves it stale.
//!
//! Nothing here depends on a target or on which lanes share a row: `softmax.rs` (simt, mma) and
//! `wgmma/forward/softmax.rs` reduce over lanes, host code merges partial results.

use core::f32::consts::{LN_2, LOG2_E};

use crate::math::{exp2, fma, log2, max};
use crate::units::{EXPONENT_BIAS, EXPONENT_SHIFT, SMALLEST_EXPONENT};

/// `row_max` of a row that has seen no key. Finite, so that it gives the −∞ of masked-out keys the probability 0 without a
/// test; no score in bits is less.
const NO_KEY: f32 = f32::MIN;

/// Up to here, and the bits that [`RowState::raise_max_pow2`] adds to it, f32 has steps of at most 2⁻¹¹.
const COARSE: f32 = 4096.0;

/// State of one row, shared by `LANES` lanes of a warp, `STRIDE` apart, that each hold some of its columns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowState<const LANES: u32, const STRIDE: u32 = 1> {
    /// The exponent, in bits, that counts as 2⁰; the same in every lane.
    pub row_max: f32,
    /// This lane's part of the sum of probabilities.
    pub row_sum: f32,
}

/// Factor and log-sum-exp that complete a row's output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Finalized {
    /// Normalises the output: 0 for a row that saw no key.
    pub norm: f32,
    /// Log-sum-exp in nats: −∞ for a row that saw no key.
    pub lse: f32,
}

impl<const LANES: u32, const STRIDE: u32> RowState<LANES, STRIDE> {
    /// No key seen.
    #[inline(always)]
    pub const fn new() -> Self {
        Self {
            row_max: NO_KEY,
            row_sum: 0.0,
        }
    }

    /// The state of a normalised output whose log-sum-exp is `lse`, in nats: the operand of [`RowState::merge`] for a
    /// row that was computed in parts.
    #[inline(always)]
    pub fn of_lse(lse: f32) -> Self {
        if lse == f32::NEG_INFINITY {
            Self::new()
        } else {
            Self {
                row_max: lse * LOG2_E,
                row_sum: 1.0,
            }
        }
    }

    /// Updates the state with scores whose largest is `block_max`, in bits, and turns them into probabilities under the
    /// new maximum; returns the factor for what was accumulated under the old one.
    ///
    /// Masked-out scores are −∞; a row that has seen no visible key gets zeros.
    #[inline(always)]
    pub fn update_under<const COLS: usize>(
        &mut self,
        block_max: f32,
        scores: &mut [f32; COLS],
        scale_log2: f32,
    ) -> f32 {
        let rescale = exp2(self.update_max(block_max));
        self.rescale(rescale);
        for score in scores {
            self.accumulate(score, scale_log2);
        }
        rescale
    }

    /// Raises `row_max` to `block_max`, in bits, if that is larger. Returns the change of scale in bits, 0 or less:
    /// multiply the accumulated output by 2^bits and apply [`RowState::rescale`] to the sum.
    #[inline(always)]
    pub fn update_max(&mut self, block_max: f32) -> f32 {
        let row_max = max(self.row_max, block_max);
        let bits = self.row_max - row_max;
        self.row_max = row_max;
        bits
    }

    /// Raises `row_max` to `block_max`, in bits, if that is larger by more than `slack`, under which probabilities are up to 2^slack.
    /// Returns the change of scale in bits, as [`update_max`](Self::update_max).
    #[inline(always)]
    pub fn update_max_beyond(&mut self, slack: f32, block_max: f32) -> f32 {
        let row_max = if block_max > self.row_max + slack {
            block_max
        } else {
            self.row_max
        };
        let bits = self.row_max - row_max;
        self.row_max = row_max;
        bits
    }

    /// Raises a `row_max` under which probabilities have grown large by a whole power of two that brings `largest`, the
    /// largest part of a sum of them, near 1. Returns the factor, exact, for what was accumulated under the old one.
    ///
    /// `largest` is below 2¹²⁶.
    #[inline(always)]
    pub fn raise_max_pow2(&mut self, largest: f32) -> f32 {
        let exponent = (max(largest, 1.0).to_bits() >> EXPONENT_SHIFT) - EXPONENT_BIAS;
        let factor = f32::from_bits((EXPONENT_BIAS - exponent) << EXPONENT_SHIFT);
        self.row_max += exponent as f32;
        self.row_sum *= factor;
        factor
    }

    /// Whether `row_max` is so far from 0 that [`RowState::raise_max_pow2`] would round it by more than 2⁻¹² bits.
    #[inline(always)]
    pub fn raising_is_inexact(&self) -> bool {
        self.row_max.abs() >= COARSE
    }

    /// Whether 2^bits is 0 in f32, but this lane's part of the sum times 2^bits need not be: a sum under a stale maximum
    /// may be as large as f32's numbers.
    #[inline(always)]
    pub fn rescale_underflows(&self, bits: f32) -> bool {
        bits < SMALLEST_EXPONENT as f32 && self.row_sum >= 1.0
    }

    /// Multiplies the sum by `factor`.
    #[inline(always)]
    pub fn rescale(&mut self, factor: f32) {
        self.row_sum *= factor;
    }

    /// Multiplies the sum by `factor` and adds the sum of a block's probabilities to it.
    #[inline(always)]
    pub fn rescale_and_add(&mut self, factor: f32, sum: f32) {
        self.row_sum = fma(self.row_sum, factor, sum);
    }

    /// Adds the sum of a block's probabilities.
    #[inline(always)]
    pub fn add(&mut self, sum: f32) {
        self.row_sum += sum;
    }

    /// The probability of a score under `row_max` as it is.
    #[inline(always)]
    pub fn p(&self, score: f32, scale_log2: f32) -> f32 {
        exp2(fma(score, scale_log2, -self.row_max))
    }

    /// Adds one score to the state and turns it into a probability under `row_max` as it is.
    #[inline(always)]
    pub fn accumulate(&mut self, score: &mut f32, scale_log2: f32) {
        *score = self.p(*score, scale_log2);
        self.row_sum += *score;
    }

    /// Whether [`RowState::accumulate`] would give a score, the largest of a block, a probability above `2^limit`.
    #[inline(always)]
    pub fn p_exceeds(&self, largest: f32, scale_log2: f32, limit: f32) -> bool {
        fma(largest, scale_log2, -self.row_max) > limit
    }

    /// Whether the row has seen a key.
    #[inline(always)]
    pub fn has_max(&self) -> bool {
        self.row_max > NO_KEY
    }

    /// Whether the sum of one of the rows, which have all seen a key, is at least `limit`.
    #[inline(always)]
    pub fn any_sum_reaches(rows: &[Self], limit: f32) -> bool {
        let mut largest = rows[0].row_sum;
        for row in &rows[1..] {
            largest = max(largest, row.row_sum);
        }
        largest >= limit
    }

    /// Whether this lane's part of the row's sum is too large, or is NaN: the sum of all parts or its reciprocal may lie
    /// outside f32's normal numbers.
    #[inline(always)]
    pub fn has_overflowed(&self) -> bool {
        let limit = f32::MAX / (4 * LANES) as f32;
        let in_range = self.row_sum <= limit;
        !in_range
    }

    /// Merges the state of the same row over other keys. Returns the changes of scale in bits, 0 or less, of this
    /// output and the other: multiply each by its 2^bits before adding them.
    ///
    /// For split-KV, whose parts of a row are computed by different blocks, and for callers that split K and V
    /// themselves. A row that saw no key changes nothing.
    #[inline(always)]
    pub fn merge(&mut self, other: &Self) -> [f32; 2] {
        let mut theirs = *other;
        let bits = [
            self.update_max(other.row_max),
            theirs.update_max(self.row_max),
        ];
        self.row_sum = scaled(self.row_sum, bits[0]) + scaled(theirs.row_sum, bits[1]);
        bits
    }

    /// Log-sum-exp, in nats, of a row whose parts of the sum add up to `sum`: −∞ for 0.
    #[inline(always)]
    pub fn lse(&self, sum: f32) -> f32 {
        (self.row_max + log2(sum)) * LN_2
    }

    /// Closes a row whose parts of the sum add up to `sum`.
    #[inline(always)]
    pub fn finalize_sum(&self, sum: f32) -> Finalized {
        if sum == 0.0 {
            Finalized {
                norm: 0.0,
                lse: f32::NEG_INFINITY,
            }
        } else {
            Finalized {
                norm: 1.0 / sum,
                lse: self.lse(sum),
            }
        }
    }

    /// Closes a row whose parts of the sum add up to `sum`, and which also sees a key without a value (a sink) whose score is
    /// `sink`, in nats: it takes its share of the probabilities, and counts in lse.
    #[inline(always)]
    pub fn finalize_with_sink(&self, sum: f32, sink: f32) -> Finalized {
        let bits = sink * LOG2_E;
        let row_max = max(self.row_max, bits);
        let factor = exp2(self.row_max - row_max);
        let all = fma(sum, factor, exp2(bits - row_max));
        Finalized {
            norm: factor / all,
            lse: (row_max + log2(all)) * LN_2,
        }
    }
}

impl<const LANES: u32, const STRIDE: u32> Default for RowState<LANES, STRIDE> {
    fn default() -> Self {
        Self::new()
    }
}

/// `value · 2^bits`, where 2^bits may be too small for f32: by its square root twice.
#[inline(always)]
fn scaled(value: f32, bits: f32) -> f32 {
    let root = exp2(0.5 * bits);
    value * root * root
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::units::pow2;

    type Row = RowState<1>;

    /// Scores that differ by up to `spread` bits.
    fn scores(count: usize, spread: f32, seed: u32) -> Vec<f32> {
        let mut state = seed.wrapping_mul(2_654_435_761).max(1);
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as f32 / u32::MAX as f32 - 0.5
        };
        (0..count).map(|_| next() * spread).collect()
    }

    /// The state and the accumulated output of `scores`, whose values are `values`, taken in by blocks of four.
    fn online(scores: &[f32], values: &[f32]) -> (Row, f32) {
        let (mut row, mut o) = (Row::new(), 0.0);
        for (block, values) in scores.chunks_exact(4).zip(values.chunks_exact(4)) {
            let mut block: [f32; 4] = block.try_into().unwrap();
            let largest = block.into_iter().fold(f32::NEG_INFINITY, max);
            o *= row.update_under(largest, &mut block, 1.0);
            o += block.iter().zip(values).map(|(p, v)| p * v).sum::<f32>();
        }
        (row, o)
    }

    /// Log-sum-exp in nats, and the output, from their formulas.
    fn exact(scores: &[f32], values: &[f32]) -> (f64, f64) {
        let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weight = |score: f32| f64::from(score - largest).exp2();
        let sum: f64 = scores.iter().map(|&score| weight(score)).sum();
        let products = scores.iter().zip(values);
        let o: f64 = products.map(|(&s, &v)| weight(s) * f64::from(v)).sum();
        let lse = (f64::from(largest) + sum.log2()) * std::f64::consts::LN_2;
        (lse, o / sum)
    }

    fn assert_close(row: &Row, o: f32, (lse, exact_o): (f64, f64), what: &str) {
        let finalized = row.finalize_sum(row.row_sum);
        let off = (f64::from(finalized.lse) - lse).abs() / (1.0 + lse.abs());
        assert!(off < 1e-6, "{what}: lse {} for {lse}", finalized.lse);
        let o = f64::from(o * finalized.norm);
        assert!((o - exact_o).abs() < 1e-5, "{what}: o {o} for {exact_o}");
    }

    #[test]
    fn update_follows_the_formula() {
        for (seed, spread) in [(1, 0.1), (2, 10.0), (3, 400.0), (4, 4000.0)] {
            let (s, v) = (scores(64, spread, seed), scores(64, 2.0, seed + 100));
            let (row, o) = online(&s, &v);
            assert_close(&row, o, exact(&s, &v), "online");
        }
    }

    #[test]
    fn masked_out_scores_weigh_nothing() {
        let masked_out = [f32::NEG_INFINITY; 8];
        let (row, o) = online(&masked_out, &[1.0; 8]);
        assert_eq!((row, o), (Row::new(), 0.0));
        assert!(!row.has_max());
        let empty = Finalized {
            norm: 0.0,
            lse: f32::NEG_INFINITY,
        };
        assert_eq!(row.finalize_sum(row.row_sum), empty);
        let mut s = [f32::NEG_INFINITY; 8];
        s[5] = -3.0;
        let (row, o) = online(&s, &[2.0; 8]);
        assert_eq!((row.row_max, row.row_sum, o), (-3.0, 1.0, 2.0));
    }

    /// A sink is a key whose value is 0.
    #[test]
    fn a_sink_takes_its_share() {
        for (seed, spread) in [(1, 0.1), (2, 10.0), (3, 400.0)] {
            let (s, v) = (scores(16, spread, seed), scores(16, 2.0, seed + 100));
            let (row, o) = online(&s, &v);
            for sink in [-300.0, -2.5, 0.0, 1.5, 300.0] {
                let (mut all_s, mut all_v) = (s.clone(), v.clone());
                all_s.push(sink * LOG2_E);
                all_v.push(0.0);
                let (lse, exact_o) = exact(&all_s, &all_v);
                let closed = row.finalize_with_sink(row.row_sum, sink);
                let off = (f64::from(closed.lse) - lse).abs() / (1.0 + lse.abs());
                assert!(off < 1e-6, "{sink}: lse {} for {lse}", closed.lse);
                let o = f64::from(o * closed.norm);
                assert!((o - exact_o).abs() < 1e-5, "{sink}: o {o} for {exact_o}");
            }
        }
        let alone = Row::new().finalize_with_sink(0.0, -1.5);
        assert_eq!((alone.norm, alone.lse), (0.0, -1.5));
    }

    /// Wherever a row is split, merging its parts gives the whole row.
    #[test]
    fn merged_parts_are_the_whole() {
        for (seed, spread) in [(1, 0.1), (2, 10.0), (3, 400.0), (4, 4000.0)] {
            let (s, v) = (scores(32, spread, seed), scores(32, 2.0, seed + 100));
            for split in (0..=32).step_by(4) {
                let (mut row, o) = online(&s[..split], &v[..split]);
                let (other, other_o) = online(&s[split..], &v[split..]);
                let bits = row.merge(&other);
                assert!(bits[0] <= 0.0 && bits[1] <= 0.0 && bits.contains(&0.0));
                let o = o * bits[0].exp2() + other_o * bits[1].exp2();
                assert_close(&row, o, exact(&s, &v), "merged");
            }
        }
    }

    /// As split-KV does it: each part is finished, and the parts are merged from their lse.
    #[test]
    fn finished_parts_merge_by_their_lse() {
        let (s, v) = (scores(48, 30.0, 9), scores(48, 2.0, 10));
        let (mut row, mut o) = (Row::new(), 0.0);
        for part in [0..16, 16..16, 16..20, 20..48] {
            let (own, own_o) = online(&s[part.clone()], &v[part]);
            let finalized = own.finalize_sum(own.row_sum);
            let bits = row.merge(&Row::of_lse(finalized.lse));
            o = o * bits[0].exp2() + own_o * finalized.norm * bits[1].exp2();
        }
        assert_close(&row, o, exact(&s, &v), "from lse");
    }

    #[test]
    fn a_row_without_keys_merges_to_nothing_new() {
        let (s, v) = (scores(8, 5.0, 3), scores(8, 2.0, 4));
        let (row, _) = online(&s, &v);
        let mut merged = row;
        assert_eq!(merged.merge(&Row::new())[0], 0.0);
        assert_eq!(merged, row);
        let mut merged = Row::new();
        assert_eq!(merged.merge(&row)[1], 0.0);
        assert_eq!(merged, row);
        let mut none = Row::of_lse(f32::NEG_INFINITY);
        none.merge(&Row::of_lse(f32::NEG_INFINITY));
        assert_eq!(none, Row::new());
    }

    #[test]
    fn what_is_not_finite_stays_visible() {
        for lse in [f32::NAN, f32::INFINITY] {
            let mut row = Row::of_lse(1.0);
            row.merge(&Row::of_lse(lse));
            let lse = row.finalize_sum(row.row_sum).lse;
            assert!(!lse.is_finite(), "{lse}");
        }
    }

    /// Under a stale maximum a sum may be so large that it outlives a factor which f32 cannot hold.
    #[test]
    fn stale_sums_are_merged_whole() {
        let stale = Row {
            row_max: -10.0,
            row_sum: pow2(126),
        };
        let other = Row {
            row_max: 140.0,
            row_sum: pow2(-20),
        };
        assert!(stale.rescale_underflows(stale.row_max - other.row_max));
        let mut row = stale;
        assert_eq!(row.merge(&other), [-150.0, 0.0]);
        assert_eq!(row.row_sum, pow2(-24) + pow2(-20));
    }

    #[test]
    fn a_raised_maximum_changes_nothing_but_units() {
        for sum in [0.5, 1.0, 3.0, 1e10, pow2(120) * 1.5] {
            let before = Row {
                row_max: 17.0,
                row_sum: sum,
            };
            let mut after = before;
            let factor = after.raise_max_pow2(sum);
            assert_eq!(after.row_sum, sum * factor);
            assert!(after.row_sum < 2.0);
            assert_eq!(after.row_max - before.row_max, -factor.log2());
        }
        assert!(Row::of_lse(-4000.0).raising_is_inexact());
        assert!(!Row::of_lse(2000.0).raising_is_inexact());
    }

    #[test]
    fn a_maximum_moves_beyond_its_slack() {
        let mut row = Row::new();
        assert_eq!(row.update_max_beyond(6.0, f32::NEG_INFINITY), 0.0);
        assert!(!row.has_max());
        row.update_max_beyond(6.0, -20.0);
        assert_eq!(row.row_max, -20.0);
        for stays in [-30.0, -20.0, -14.0] {
            assert_eq!(row.update_max_beyond(6.0, stays), 0.0);
            assert_eq!(row.row_max, -20.0);
        }
        assert_eq!(row.update_max_beyond(6.0, -13.0), -7.0);
        assert_eq!(row.row_max, -13.0);
    }

    #[test]
    fn limits() {
        let row = |row_max, row_sum| RowState::<4> { row_max, row_sum };
        assert!(row(0.0, f32::NAN).has_overflowed());
        assert!(row(0.0, f32::MAX / 15.0).has_overflowed());
        assert!(!row(0.0, f32::MAX / 16.0).has_overflowed());
        assert!(row(3.0, 1.0).p_exceeds(20.0, 1.0, 15.0));
        assert!(!row(5.0, 1.0).p_exceeds(20.0, 1.0, 15.0));
        let rows = [row(0.0, 2.0), row(0.0, 8.0), row(0.0, 4.0)];
        assert!(RowState::any_sum_reaches(&rows, 8.0));
        assert!(!RowState::any_sum_reaches(&rows, 8.5));
    }
}
