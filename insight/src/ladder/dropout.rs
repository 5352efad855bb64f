//! Dropout on P whose pattern is a function of row and column, so that an algorithm may visit the entries in any order,
//! and a backward pass may recompute them, without storing the pattern.

use ferroflash::Error;

/// Drops entries of P with a given probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    probability: f64,
    seed: u64,
}

impl Dropout {
    /// # Errors
    /// [`Error::Argument`] if `probability` is not in `0 ≤ p < 1`.
    pub fn new(probability: f64, seed: u64) -> Result<Self, Error> {
        if !(0.0..1.0).contains(&probability) {
            return Err(Error::argument(
                "dropout",
                format!("{probability} is no probability of dropping"),
                "0 or more, and below 1",
            ));
        }
        Ok(Self { probability, seed })
    }

    /// Factor of entry (`row`, `col`) of P: 0 if it is dropped, else `1 / (1 − p)`, which preserves the expectation.
    pub fn factor(&self, row: usize, col: usize) -> f64 {
        let counter = (row as u64) << 32 | col as u64;
        let uniform = (mix(counter ^ mix(self.seed)) >> 11) as f64 / (1u64 << 53) as f64;
        if uniform < self.probability {
            0.0
        } else {
            1.0 / (1.0 - self.probability)
        }
    }
}

/// The output function of SplitMix64 (Steele, Lea and Flood 2014): a bijection that scatters neighbours.
fn mix(counter: u64) -> u64 {
    let z = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_the_right_share_differently_for_each_seed() {
        const SIDE: usize = 200;
        let pattern = |seed| {
            let dropout = Dropout::new(0.25, seed).unwrap();
            let entries = (0..SIDE * SIDE).map(|i| dropout.factor(i / SIDE, i % SIDE));
            entries.map(|factor| factor == 0.0).collect::<Vec<_>>()
        };
        let (a, b) = (pattern(1), pattern(2));
        let share =
            |pattern: &[bool]| pattern.iter().filter(|x| **x).count() as f64 / pattern.len() as f64;
        // Four standard deviations of a binomial of 40,000.
        assert!((share(&a) - 0.25).abs() < 4.0 * (0.25 * 0.75 / 40_000f64).sqrt());
        let both: Vec<bool> = a.iter().zip(&b).map(|(a, b)| *a && *b).collect();
        assert!((share(&both) - 0.0625).abs() < 0.005);
        // Rows are not copies of each other.
        assert_ne!(a[..SIDE], a[SIDE..2 * SIDE]);
    }

    #[test]
    fn probabilities_are_checked() {
        for probability in [-0.1, 1.0, f64::NAN] {
            let message = Dropout::new(probability, 0).unwrap_err().to_string();
            assert!(message.starts_with("dropout: "), "{message}");
        }
        assert_eq!(Dropout::new(0.0, 7).unwrap().factor(3, 4), 1.0);
    }
}
