//! The arithmetic units that are measured, and the expected results of their probes.

use kernels_gpu::instances::Instance;
use kernels_insight::config::probe::{
    CHAINS, LINKS, MMA_BLOCKS_PER_SM, SCALAR_BLOCKS_PER_SM, THREADS, WARPS, WGMMA_ACCUMULATORS,
    WGMMA_BLOCKS_PER_SM, WGMMA_WARPGROUPS,
};
use kernels_insight::instances;
use kernels_insight::probe::params;

use ferroflash::{DType, Error, HostTensor, Layout, Shape};
use ferroflash_testing::cases;

/// A unit whose rate a probe measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// f32 fused multiply-adds on CUDA cores.
    Fma,
    /// `ex2.approx`.
    Exp2,
    /// Tensor cores by `mma.sync`, bf16.
    Mma,
    /// Tensor cores by `wgmma`, bf16.
    Wgmma,
}

/// Inputs of a unit's probe, and the size of its result.
pub(super) struct Task {
    /// A and B; one element each where a probe has no matrices.
    pub operands: [HostTensor; 2],
    pub factor: f32,
    pub term: f32,
    /// Elements of a block's result.
    pub elements: usize,
    /// f32 operations or exponentials of a block in a step.
    pub operations: f64,
}

/// Chains of `fma` tend to 2, slowly, so that each link counts.
const FMA: (f32, f32) = (1.0 - 1.0 / 1024.0, 1.0 / 512.0);
/// Chains of 2^(−7x/2) swing about 0.389, each time 0.94 times as far, and neither grow nor settle within a few steps.
const EXP2: (f32, f32) = (-3.5, 0.0);

impl Unit {
    pub const ALL: [Self; 4] = [Self::Fma, Self::Exp2, Self::Mma, Self::Wgmma];

    /// The probe.
    pub fn kernel(self) -> &'static Instance {
        let name = match self {
            Self::Fma => "probe_fma",
            Self::Exp2 => "probe_exp2",
            Self::Mma => "probe_mma",
            Self::Wgmma => "probe_wgmma",
        };
        instances::find(name).expect("every unit has a probe")
    }

    /// Blocks that run at the same time on an SM.
    pub(super) fn blocks_per_sm(self) -> u32 {
        match self {
            Self::Fma | Self::Exp2 => SCALAR_BLOCKS_PER_SM,
            Self::Mma => MMA_BLOCKS_PER_SM,
            Self::Wgmma => WGMMA_BLOCKS_PER_SM,
        }
    }

    /// Matrices D of a block's result, all equal.
    fn matrices(self) -> u32 {
        match self {
            Self::Fma | Self::Exp2 => 0,
            Self::Mma => WARPS,
            Self::Wgmma => WGMMA_WARPGROUPS * WGMMA_ACCUMULATORS,
        }
    }

    /// m, n and k.
    fn sizes(self) -> [usize; 3] {
        let kernel = self.kernel();
        [kernel.block_m, kernel.block_n, kernel.head_dim].map(|size| size as usize)
    }

    /// # Errors
    /// None for these sizes.
    pub(super) fn task(self) -> Result<Task, Error> {
        let [m, n, k] = self.sizes().map(|size| size.max(1));
        let matrix = |seq, dim, seed| {
            let shape = Shape {
                batch: 1,
                heads: 1,
                seq,
                dim,
            };
            cases::normal(DType::Bf16, shape, Layout::Bhsd, seed)
        };
        let (factor, term) = match self {
            Self::Exp2 => EXP2,
            _ => FMA,
        };
        let chains = (THREADS * CHAINS) as usize;
        let links = f64::from(THREADS * CHAINS * LINKS);
        let (elements, operations) = match self {
            Self::Fma => (chains, 2.0 * links),
            Self::Exp2 => (chains, links),
            Self::Mma | Self::Wgmma => {
                let matrices = self.matrices() as usize;
                (matrices * m * n, 2.0 * (matrices * m * n * k) as f64)
            }
        };
        Ok(Task {
            operands: [matrix(m, k, 1)?, matrix(k, n, 2)?],
            factor,
            term,
            elements,
            operations,
        })
    }

    /// Each block's expected result after `steps` steps, with its tolerance.
    pub(super) fn expected(self, task: &Task, steps: u32) -> Vec<(f64, f64)> {
        let links = steps * LINKS;
        let link = |x: f32| x.mul_add(task.factor, task.term);
        let chain = |start: f32, link: &dyn Fn(f32) -> f32| {
            f64::from((0..links).fold(start, |x, _| link(x)))
        };
        let starts = (0..THREADS * CHAINS).map(params::start);
        match self {
            // One rounding each: the CPU's result is the GPU's.
            Self::Fma => starts.map(|start| (chain(start, &link), 0.0)).collect(),
            // ex2.approx is good to 2 ulp; the chains do not make errors grow.
            Self::Exp2 => starts
                .map(|start| (chain(start, &|x| link(x).exp2()), 1e-4))
                .collect(),
            Self::Mma | Self::Wgmma => {
                let one = self.product(task, steps);
                let all = std::iter::repeat_n(one, self.matrices() as usize);
                all.flatten().collect()
            }
        }
    }

    /// `steps` · A · B, with the tolerance of f32 sums.
    fn product(self, task: &Task, steps: u32) -> Vec<(f64, f64)> {
        let [m, n, k] = self.sizes();
        let [a, b] = [0, 1].map(|index: usize| task.operands[index].to_f32(Layout::Bhsd));
        let steps = f64::from(steps);
        // Tensor cores truncate sums at 2⁻²³ of their largest term, once for 8 or 16 products.
        let unit = steps * k as f64 / 8.0 / f64::from(1u32 << 22);
        let element = |row: usize, column: usize| {
            let terms = (0..k).map(|i| f64::from(a[row * k + i]) * f64::from(b[i * n + column]));
            let (sum, magnitude) = terms.fold((0.0, 0.0), |(sum, magnitude), term| {
                (sum + term, magnitude + term.abs())
            });
            (steps * sum, steps * magnitude * unit)
        };
        let places = (0..m * n).map(|index| (index / n, index % n));
        places.map(|(row, column)| element(row, column)).collect()
    }
}
