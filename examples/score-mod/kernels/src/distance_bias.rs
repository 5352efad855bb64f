use bytemuck::{Pod, Zeroable};
use kernels_gpu::math::{fma, tanh};
use kernels_gpu::modifiers::{Buffer, Hides, Pair, Place, ScoreMod, load};

/// A learned bias for each head and distance, and scores capped after it: `gain · cap · tanh((score + table[head][distance]) / cap)`.
///
/// `distance` is how many keys lie between query and key, at most the table's last.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct DistanceBias {
    /// f32 `[heads_q, distances]`, by address; the first buffer.
    table: u64,
    heads: u32,
    distances: u32,
    cap: f32,
    /// Multiplies scores that are capped.
    gain: f32,
}

impl DistanceBias {
    /// Of a table of `heads` rows of `distances` each.
    pub fn new(heads: u32, distances: u32, cap: f32, gain: f32) -> Self {
        Self {
            table: 0,
            heads,
            distances,
            cap,
            gain,
        }
    }

    /// The hyperbolic tangent in the formula.
    #[inline(always)]
    fn capped(&self, score: f32, at: &Place, pair: Pair) -> f32 {
        let distance = at.position(pair.query).abs_diff(pair.key as i32);
        let index = at.head * self.distances + distance.min(self.distances - 1);
        // SAFETY: `bind` has seen that the table has an element for each head and distance.
        let bias = unsafe { load::f32(self.table + index as u64 * size_of::<f32>() as u64) };
        tanh((score + bias) / self.cap)
    }
}

impl ScoreMod for DistanceBias {
    const HIDES: Hides = Hides::Nothing;

    #[inline(always)]
    fn score(&self, score: f32, at: &Place, pair: Pair) -> f32 {
        self.gain * self.cap * self.capped(score, at, pair)
    }

    #[inline(always)]
    fn derivative(&self, score: f32, at: &Place, pair: Pair) -> f32 {
        let tanh = self.capped(score, at, pair);
        self.gain * fma(-tanh, tanh, 1.0)
    }

    fn bind(&mut self, buffers: &[Buffer]) -> Result<(), &'static str> {
        let elements = u64::from(self.heads) * u64::from(self.distances);
        match buffers {
            [table] if table.bytes >= elements * 4 => {
                self.table = table.address;
                Ok(())
            }
            _ => Err("one buffer, a table with an f32 for each head and distance"),
        }
    }
}
