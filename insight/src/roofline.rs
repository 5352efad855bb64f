//! The roofline model (Williams, Waterman and Patterson 2009) of attention on one GPU: the least time of each
//! algorithm, and the resource that limits it.
//!
//! A kernel takes at least the longest of three times: its FLOPs at the rate of the multiplying units, its bytes at
//! the bandwidth of device memory, its exponentials at the rate of the special-function units. Kernels of one
//! algorithm run one after the other, so their times add up.

use kernels_gpu::instances::INSTANCES;
use serde::Serialize;

use super::cost::{self, Algorithm, Cost, Pass, Tiles, Workload};
use super::gpu_spec::GpuSpec;
use ferroflash::plan::{GpuCapabilities, instance_unfit};
use ferroflash::{DType, Error};

/// The resource that limits a computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// Bandwidth of device memory.
    Memory,
    /// Rate of the multiplying units.
    Compute,
    /// Rate of `ex2.approx`.
    Exponentials,
}

impl Bound {
    /// Name for output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Compute => "compute",
            Self::Exponentials => "exponentials",
        }
    }
}

/// One algorithm on one GPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub pass: Pass,
    pub algorithm: Algorithm,
    pub heads: u64,
    pub seq: u64,
    pub head_dim: u64,
    /// Total cost of its kernels.
    #[serde(flatten)]
    pub cost: Cost,
    /// FLOPs a byte.
    pub intensity: f64,
    /// The resource that would take longest if all its kernels were one.
    pub bound: Bound,
    /// Least time it can take, seconds.
    pub seconds: f64,
    /// FLOPs over that time, FLOP/s.
    pub attainable_flops: f64,
}

/// The least time of a kernel, or of kernels fused into one, and the resource that determines it.
fn least_time(cost: &Cost, gpu: &GpuSpec, dtype: DType) -> (f64, Bound) {
    let times = [
        (cost.bytes() as f64 / gpu.bandwidth, Bound::Memory),
        (cost.flops as f64 / gpu.peak_flops(dtype), Bound::Compute),
        (cost.exps as f64 / gpu.exps, Bound::Exponentials),
    ];
    let slowest = times.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
    slowest.expect("there are three")
}

/// The tiles of `work` on `gpu`: those of the kernel ferroflash would run there, and FlashAttention-1's for the
/// shared memory of an SM.
///
/// # Errors
/// [`Error::Argument`] if no kernel takes this dtype and head_dim on this GPU.
pub fn tiles(gpu: &GpuSpec, work: &Workload) -> Result<Tiles, Error> {
    let shared_bytes = u32::try_from(gpu.shared_bytes).unwrap_or(u32::MAX);
    // Which kernels can run does not depend on the number of multiprocessors.
    let here = GpuCapabilities::new(gpu.compute_capability, shared_bytes, 1);
    let mut candidates: Vec<_> = INSTANCES
        .iter()
        .filter(|instance| instance.dtype == work.dtype)
        // f32's on CUDA cores, as the bound is theirs.
        .filter(|instance| !instance.adds_parts())
        .filter(|instance| u64::from(instance.head_dim) >= work.head_dim)
        .filter(|instance| instance_unfit(instance, &here).is_none())
        .collect();
    // The newest family first, then the least padding.
    candidates.sort_by_key(|instance| (std::cmp::Reverse(instance.family), instance.head_dim));
    let instance = candidates.first().ok_or_else(|| {
        Error::argument(
            "head_dim",
            format!(
                "no {} kernel takes head_dim {} on {}",
                work.dtype.name(),
                work.head_dim,
                gpu.name
            ),
            "a dtype and head_dim that a kernel takes there",
        )
    })?;
    Ok(Tiles {
        fa1_block_n: Tiles::fa1_block_n(gpu.shared_bytes, work.head_dim, work.dtype),
        block_m: u64::from(instance.block_m),
        block_n: u64::from(instance.block_n),
    })
}

/// One algorithm on one GPU.
pub fn row(algorithm: Algorithm, pass: Pass, work: &Workload, tiles: &Tiles, gpu: &GpuSpec) -> Row {
    let kernels = cost::kernels(algorithm, pass, work, tiles);
    // One kernel runs after the other.
    let times = kernels
        .iter()
        .map(|kernel| least_time(kernel, gpu, work.dtype).0);
    let seconds: f64 = times.sum();
    let cost: Cost = kernels.into_iter().sum();
    let (_, bound) = least_time(&cost, gpu, work.dtype);
    Row {
        pass,
        algorithm,
        heads: work.heads,
        seq: work.seq,
        head_dim: work.head_dim,
        cost,
        intensity: cost.intensity(),
        bound,
        seconds,
        attainable_flops: cost.flops as f64 / seconds,
    }
}

/// Every algorithm, forward then backward.
///
/// # Errors
/// As [`tiles`].
pub fn rows(work: &Workload, gpu: &GpuSpec) -> Result<Vec<Row>, Error> {
    let tiles = tiles(gpu, work)?;
    let of_pass = |pass| Algorithm::ALL.map(|algorithm| row(algorithm, pass, work, &tiles, gpu));
    Ok(Pass::ALL.into_iter().flat_map(of_pass).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(name: &str) -> GpuSpec {
        name.parse().unwrap()
    }

    const TILES: Tiles = Tiles {
        fa1_block_n: 64,
        block_m: 128,
        block_n: 128,
    };

    #[test]
    fn scores_on_an_a100_cross_the_ridge_at_head_dim_256() {
        for head_dim in [64, 128, 256] {
            for seq in [256, 2048, 4096] {
                let work = Workload::new(1, seq, head_dim, DType::Bf16).unwrap();
                let gpu = gpu("a100-40g");
                let row = row(Algorithm::Scores, Pass::Forward, &work, &TILES, &gpu);
                let compute_bound = head_dim == 256 && seq >= 2048;
                let expected = if compute_bound {
                    Bound::Compute
                } else {
                    Bound::Memory
                };
                assert_eq!(row.bound, expected, "{work:?}");
                assert_eq!(row.intensity > gpu.ridge(DType::Bf16), compute_bound);
            }
        }
    }

    /// On Hopper 4·64 tensor FLOPs a score take exactly as long as its exponential, on Blackwell half as long.
    #[test]
    fn exponentials_bind_small_head_dims() {
        let bound = |name, head_dim| {
            let work = Workload::new(1, 1 << 14, head_dim, DType::Bf16).unwrap();
            let algorithm = Algorithm::FlashAttention2Cached;
            row(algorithm, Pass::Forward, &work, &TILES, &gpu(name)).bound
        };
        assert_eq!(bound("h200", 32), Bound::Exponentials);
        assert_eq!(bound("h200", 128), Bound::Compute);
        assert_eq!(bound("b200", 64), Bound::Exponentials);
    }

    #[test]
    fn kernels_run_one_after_the_other() {
        let work = Workload::new(16, 4096, 128, DType::Bf16).unwrap();
        let gpu = gpu("h100");
        let unfused = row(Algorithm::Unfused, Pass::Forward, &work, &TILES, &gpu);
        let bytes = unfused.cost.bytes() as f64;
        assert_eq!(unfused.bound, Bound::Memory);
        assert!((unfused.seconds - bytes / gpu.bandwidth).abs() < 1e-12);
        let fused = row(
            Algorithm::FlashAttention2Cached,
            Pass::Forward,
            &work,
            &TILES,
            &gpu,
        );
        assert_eq!(fused.bound, Bound::Compute);
        assert!((fused.attainable_flops / gpu.tensor_flops - 1.0).abs() < 1e-12);
        assert!(unfused.seconds > 2.0 * fused.seconds);
    }

    #[test]
    fn tiles_are_those_of_the_kernels() {
        let work = Workload::new(1, 256, 64, DType::F32).unwrap();
        let tiles = tiles(&gpu("a100-40g"), &work).unwrap();
        let tile = kernels_gpu::config::simt::HD64;
        assert_eq!(tiles.block_m, tile.block_m() as u64);
        // 164 KiB hold 41,984 f32; a quarter of them over 64.
        assert_eq!(tiles.fa1_block_n, 164);
        let work = Workload::new(1, 256, 1000, DType::F32).unwrap();
        let message = self::tiles(&gpu("h100"), &work).unwrap_err().to_string();
        assert!(message.starts_with("head_dim: no f32 kernel takes head_dim 1000 on h100; "));
    }
}
