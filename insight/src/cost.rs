//! Cost of attention algorithms: floating-point operations, exponentials, and bytes to and from device memory, each
//! counted from its loops.
//!
//! Counting rules:
//!
//! * A kernel reads each operand of a matrix product once and writes each result once: tiles that read the same
//!   operand again find it in L2. This is the rule behind the usual figure for S = Q Kᵀ, with 16-bit elements
//!   `2·N²·d / (2·(2·N·d + N²))` FLOP/byte.
//! * Repeated traffic of an *algorithm* is counted each time: S and P between kernels, and loads into and stores from
//!   on-chip memory at each step of a FlashAttention loop (Dao et al. 2022, section 3.2; Dao 2023, section 3).
//!   [`Algorithm::FlashAttention2Cached`] instead grants the L2 rule to the fused loop: K and V of one head are small,
//!   and the blocks that run at the same time share them.
//! * FLOPs are those of the matrix products. lse, row maxima, row sums and delta are f32.

use serde::Serialize;

use ferroflash::{DType, Error};

/// Self-attention of `heads` (all batch entries together), each `seq` × `seq` × `head_dim`, unmasked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Batch times heads.
    pub heads: u64,
    /// Queries, and keys.
    pub seq: u64,
    /// Elements of a row of q, k, v and o.
    pub head_dim: u64,
    /// Type of q, k, v, o and of S and P where they are stored.
    pub dtype: DType,
}

/// Largest value [`Workload`] takes for a size.
const MAX_SIZE: u64 = 1 << 20;
/// Largest `heads · seq² · head_dim`: every cost then fits u64.
const MAX_PRODUCT: u128 = 1 << 56;

impl Workload {
    /// # Errors
    /// [`Error::Argument`] for a size of 0 or above 2²⁰, or for more work than can be counted.
    pub fn new(heads: u64, seq: u64, head_dim: u64, dtype: DType) -> Result<Self, Error> {
        for (argument, size) in [("heads", heads), ("seq", seq), ("head_dim", head_dim)] {
            if !(1..=MAX_SIZE).contains(&size) {
                return Err(Error::argument(
                    argument,
                    format!("{size} is out of range"),
                    format!("1 to {MAX_SIZE}"),
                ));
            }
        }
        let product = [heads, seq, seq, head_dim].map(u128::from).iter().product();
        if !(1..=MAX_PRODUCT).contains(&product) {
            return Err(Error::argument(
                "seq",
                format!("heads · seq² · head_dim is {product}"),
                format!("at most {MAX_PRODUCT}"),
            ));
        }
        Ok(Self {
            heads,
            seq,
            head_dim,
            dtype,
        })
    }
}

/// The forward or the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pass {
    /// q, k, v → o, lse.
    Forward,
    /// q, k, v, o, lse, do → dq, dk, dv.
    Backward,
}

impl Pass {
    /// Both, forward first.
    pub const ALL: [Self; 2] = [Self::Forward, Self::Backward];

    /// Name for output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
        }
    }
}

/// A way to compute attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// Only S = Q Kᵀ, stored; backward, the two products that give dq and dk from a stored dS.
    Scores,
    /// A kernel each for S = Q Kᵀ, P = softmax(S), O = P V, with S and P stored; backward reads the stored P.
    Unfused,
    /// K and V in the outer loop: o, its maxima and sums are loaded, rescaled and stored at each step
    /// (Dao et al. 2022, algorithms 1 and 4).
    FlashAttention1,
    /// Q in the outer loop, o stored once (Dao 2023, algorithms 1 and 2): each query tile loads all of K and V.
    FlashAttention2,
    /// The same loop, with K and V (backward: q, do and the sums into dq) found in L2 after the first tile.
    FlashAttention2Cached,
}

impl Algorithm {
    /// From the least to the most fused.
    pub const ALL: [Self; 5] = [
        Self::Scores,
        Self::Unfused,
        Self::FlashAttention1,
        Self::FlashAttention2,
        Self::FlashAttention2Cached,
    ];

    /// Name for output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scores => "S = QKᵀ alone",
            Self::Unfused => "unfused",
            Self::FlashAttention1 => "FA1",
            Self::FlashAttention2 => "FA2",
            Self::FlashAttention2Cached => "FA2, K/V in L2",
        }
    }
}

/// Tile sizes, which determine how often a fused loop moves the same data again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Tiles {
    /// Keys a step of FlashAttention-1's outer loop holds.
    pub fa1_block_n: u64,
    /// Query rows a block of FlashAttention-2 owns.
    pub block_m: u64,
    /// Keys a block of the backward pass owns.
    pub block_n: u64,
}

impl Tiles {
    /// The tile of FlashAttention-1 for `on_chip_bytes` of on-chip memory: `⌈M / 4d⌉` keys, with `M` in elements
    /// (Dao et al. 2022, algorithm 1, line 1).
    pub fn fa1_block_n(on_chip_bytes: u64, head_dim: u64, dtype: DType) -> u64 {
        (on_chip_bytes / dtype.bytes() as u64).div_ceil(4 * head_dim)
    }
}

/// Cost of one or several kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// Multiplications and additions of the matrix products.
    pub flops: u64,
    /// Exponentials.
    pub exps: u64,
    /// Bytes from device memory.
    pub read_bytes: u64,
    /// Bytes to device memory.
    pub written_bytes: u64,
}

impl Cost {
    /// Bytes read and written.
    pub fn bytes(&self) -> u64 {
        self.read_bytes + self.written_bytes
    }

    /// FLOPs a byte.
    pub fn intensity(&self) -> f64 {
        self.flops as f64 / self.bytes() as f64
    }
}

impl std::iter::Sum for Cost {
    fn sum<I: Iterator<Item = Self>>(costs: I) -> Self {
        costs.fold(Self::default(), |sum, cost| Self {
            flops: sum.flops + cost.flops,
            exps: sum.exps + cost.exps,
            read_bytes: sum.read_bytes + cost.read_bytes,
            written_bytes: sum.written_bytes + cost.written_bytes,
        })
    }
}

/// Byte and operation counts that costs are sums of, over all heads.
struct Sizes {
    /// Bytes of one of q, k, v, o or their gradients.
    operand: u64,
    /// Bytes of dq while it is accumulated in f32.
    operand_f32: u64,
    /// Bytes of one of S, P, dP or dS.
    scores: u64,
    /// Bytes of one of lse, delta, row maxima or row sums.
    row_stats: u64,
    /// Elements of S.
    score_count: u64,
    /// FLOPs of one matrix product: S = Q Kᵀ, O = P V, dV = Pᵀ dO, …
    product: u64,
}

impl Sizes {
    fn new(work: &Workload) -> Self {
        let element = work.dtype.bytes() as u64;
        let f32_bytes = DType::F32.bytes() as u64;
        let rows = work.heads * work.seq;
        let score_count = rows * work.seq;
        Self {
            operand: rows * work.head_dim * element,
            operand_f32: rows * work.head_dim * f32_bytes,
            scores: score_count * element,
            row_stats: rows * f32_bytes,
            score_count,
            product: 2 * score_count * work.head_dim,
        }
    }
}

/// The kernels of `algorithm`, in the order they run.
pub fn kernels(algorithm: Algorithm, pass: Pass, work: &Workload, tiles: &Tiles) -> Vec<Cost> {
    let sizes = Sizes::new(work);
    match pass {
        Pass::Forward => forward(algorithm, &sizes, work, tiles),
        Pass::Backward => backward(algorithm, &sizes, work, tiles),
    }
}

fn forward(algorithm: Algorithm, sizes: &Sizes, work: &Workload, tiles: &Tiles) -> Vec<Cost> {
    let &Sizes {
        operand,
        scores,
        row_stats,
        score_count,
        product,
        ..
    } = sizes;
    let s = Cost {
        flops: product,
        exps: 0,
        read_bytes: 2 * operand,
        written_bytes: scores,
    };
    let fused = |read_bytes, written_bytes| Cost {
        flops: 2 * product,
        exps: score_count,
        read_bytes,
        written_bytes,
    };
    match algorithm {
        Algorithm::Scores => vec![s],
        Algorithm::Unfused => vec![
            s,
            Cost {
                flops: 0,
                exps: score_count,
                read_bytes: scores,
                written_bytes: scores,
            },
            Cost {
                flops: product,
                exps: 0,
                read_bytes: scores + operand,
                written_bytes: operand,
            },
        ],
        Algorithm::FlashAttention1 => {
            let steps = work.seq.div_ceil(tiles.fa1_block_n);
            // o, maxima and sums are initialised in memory, then loaded and stored at every step.
            let state = operand + 2 * row_stats;
            vec![fused(
                2 * operand + steps * (operand + state),
                (1 + steps) * state,
            )]
        }
        Algorithm::FlashAttention2 => {
            let steps = work.seq.div_ceil(tiles.block_m);
            vec![fused(operand + steps * 2 * operand, operand + row_stats)]
        }
        Algorithm::FlashAttention2Cached => vec![fused(3 * operand, operand + row_stats)],
    }
}

fn backward(algorithm: Algorithm, sizes: &Sizes, work: &Workload, tiles: &Tiles) -> Vec<Cost> {
    let &Sizes {
        operand,
        operand_f32,
        scores,
        row_stats,
        score_count,
        product,
    } = sizes;
    // One product of two stored operands: a matrix of scores and one of q, k, v, do.
    let from_scores = Cost {
        flops: product,
        exps: 0,
        read_bytes: scores + operand,
        written_bytes: operand,
    };
    // Recomputing S, and dP, dV, dK, dQ.
    let fused = |read_bytes, written_bytes| Cost {
        flops: 5 * product,
        exps: score_count,
        read_bytes,
        written_bytes,
    };
    let elementwise = |read_bytes, written_bytes| Cost {
        flops: 0,
        exps: 0,
        read_bytes,
        written_bytes,
    };
    match algorithm {
        // dq = dS k, dk = dSᵀ q.
        Algorithm::Scores => vec![from_scores; 2],
        Algorithm::Unfused => vec![
            // dv = Pᵀ do.
            from_scores,
            // dP = do vᵀ.
            Cost {
                flops: product,
                exps: 0,
                read_bytes: 2 * operand,
                written_bytes: scores,
            },
            // dS = P ∘ (dP − delta).
            elementwise(2 * scores, scores),
            from_scores,
            from_scores,
        ],
        Algorithm::FlashAttention1 => {
            let steps = work.seq.div_ceil(tiles.fa1_block_n);
            // Each step loads q, o, do, dq, maxima and sums, and stores dq, which starts as zeros in memory.
            vec![fused(
                2 * operand + steps * (4 * operand + 2 * row_stats),
                (1 + steps) * operand + 2 * operand,
            )]
        }
        Algorithm::FlashAttention2 | Algorithm::FlashAttention2Cached => {
            let steps = match algorithm {
                Algorithm::FlashAttention2 => work.seq.div_ceil(tiles.block_n),
                _ => 1,
            };
            vec![
                // delta = rowsum(do ∘ o).
                elementwise(2 * operand, row_stats),
                // Each step loads q, do, lse, delta, and adds to an f32 dq that starts as zeros.
                fused(
                    2 * operand + steps * (2 * operand + 2 * row_stats + operand_f32),
                    (1 + steps) * operand_f32 + 2 * operand,
                ),
                // dq in f32 → dq.
                elementwise(operand_f32, operand),
            ]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TILES: Tiles = Tiles {
        fa1_block_n: 64,
        block_m: 128,
        block_n: 64,
    };

    fn total(algorithm: Algorithm, pass: Pass, work: &Workload) -> Cost {
        kernels(algorithm, pass, work, &TILES).into_iter().sum()
    }

    #[test]
    fn intensity_of_the_scores() {
        let expected = [
            (64, [43.0, 60.0, 62.0]),
            (128, [64.0, 114.0, 120.0]),
            (256, [85.0, 205.0, 228.0]),
        ];
        for (head_dim, intensities) in expected {
            for (seq, intensity) in [256, 2048, 4096].into_iter().zip(intensities) {
                for (heads, dtype) in [(1, DType::Bf16), (12, DType::F16)] {
                    let work = Workload::new(heads, seq, head_dim, dtype).unwrap();
                    let cost = total(Algorithm::Scores, Pass::Forward, &work);
                    assert_eq!(cost.intensity().round(), intensity, "{work:?}");
                }
            }
        }
    }

    /// One head of 256 × 256 × 64 in 16 bits: an operand is 32 KiB, S 128 KiB, row statistics 1 KiB.
    #[test]
    fn bytes_by_hand() {
        let work = Workload::new(1, 256, 64, DType::F16).unwrap();
        let kib = |algorithm, pass| {
            let cost = total(algorithm, pass, &work);
            (cost.read_bytes / 1024, cost.written_bytes / 1024)
        };
        use Algorithm::*;
        assert_eq!(kib(Scores, Pass::Forward), (64, 128));
        assert_eq!(
            kib(Unfused, Pass::Forward),
            (64 + 128 + 160, 128 + 128 + 32)
        );
        // Four steps over q, o, m, l.
        assert_eq!(kib(FlashAttention1, Pass::Forward), (64 + 4 * 66, 5 * 34));
        // Two query tiles over k and v.
        assert_eq!(kib(FlashAttention2, Pass::Forward), (32 + 2 * 64, 33));
        assert_eq!(kib(FlashAttention2Cached, Pass::Forward), (96, 33));

        assert_eq!(kib(Scores, Pass::Backward), (2 * 160, 64));
        assert_eq!(
            kib(Unfused, Pass::Backward),
            (3 * 160 + 64 + 256, 3 * 32 + 2 * 128)
        );
        assert_eq!(
            kib(FlashAttention1, Pass::Backward),
            (64 + 4 * 130, 5 * 32 + 64)
        );
        // delta; four key tiles over q, do, lse, delta and a dq of 64 KiB; conversion of dq.
        assert_eq!(
            kib(FlashAttention2, Pass::Backward),
            (64 + 64 + 4 * (64 + 2 + 64) + 64, 1 + 5 * 64 + 64 + 32)
        );
        assert_eq!(
            kib(FlashAttention2Cached, Pass::Backward),
            (64 + 64 + 64 + 2 + 64 + 64, 1 + 2 * 64 + 64 + 32)
        );
    }

    #[test]
    fn products_and_exponentials() {
        let work = Workload::new(3, 256, 64, DType::F16).unwrap();
        let product = 2 * 3 * 256 * 256 * 64;
        for (algorithm, forward, backward) in [
            (Algorithm::Scores, 1, 2),
            (Algorithm::Unfused, 2, 4),
            (Algorithm::FlashAttention1, 2, 5),
            (Algorithm::FlashAttention2, 2, 5),
            (Algorithm::FlashAttention2Cached, 2, 5),
        ] {
            assert_eq!(
                total(algorithm, Pass::Forward, &work).flops,
                forward * product
            );
            assert_eq!(
                total(algorithm, Pass::Backward, &work).flops,
                backward * product
            );
        }
        let exps = |algorithm, pass| total(algorithm, pass, &work).exps;
        assert_eq!(exps(Algorithm::Unfused, Pass::Forward), 3 * 256 * 256);
        assert_eq!(exps(Algorithm::Unfused, Pass::Backward), 0);
        assert_eq!(
            exps(Algorithm::FlashAttention2, Pass::Backward),
            3 * 256 * 256
        );
    }

    #[test]
    fn sizes_are_checked_by_name() {
        let message = |heads, seq, head_dim| {
            let work = Workload::new(heads, seq, head_dim, DType::Bf16);
            work.unwrap_err().to_string()
        };
        assert_eq!(message(0, 1, 1), "heads: 0 is out of range; 1 to 1048576");
        assert!(message(1, 0, 1).starts_with("seq: 0 "));
        assert!(message(1, 1, 1 << 21).starts_with("head_dim: 2097152 "));
        assert!(message(1 << 20, 1 << 20, 1).starts_with("seq: heads"));
        let largest = Workload::new(1 << 16, 1 << 20, 1, DType::F32).unwrap();
        assert!(total(Algorithm::FlashAttention2, Pass::Backward, &largest).bytes() > 0);
    }
}
