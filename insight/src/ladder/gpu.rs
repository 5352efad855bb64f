//! The rungs as GPU kernels, up to the product's own: the same problem, each with its time and its error.

use std::sync::Arc;

use kernels_gpu::instances::Family;
use kernels_insight::config::ladder::{FA1_BLOCK_N, HEAD_DIM, THREADS, WARPS};
use kernels_insight::ladder::params::LadderParams;
use serde::Serialize;

use crate::cost::{self, Algorithm, Cost, Pass, Tiles, Workload};
use crate::modules;
use crate::timing::sorted_ms;
use ferroflash::backend::{Counts, Device, Launch};
use ferroflash::plan::{find_instance, why_not};
use ferroflash::{
    Backend, DType, Error, ForwardOptions, Gpu, HostTensor, Layout, Problem, Shape, Tensor,
    Variant, forward, forward_into,
};
use ferroflash_testing::cases;
use ferroflash_testing::oracle::{self, Inputs, Rows};
use kernels_insight::instances;

/// Self-attention without a mask.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub heads: usize,
    pub seq: usize,
    pub head_dim: usize,
    /// Seed of the inputs.
    pub seed: u64,
    /// Timed runs, after one that is not; 0 for none.
    pub runs: usize,
}

/// One rung.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rung {
    pub name: &'static str,
    pub dtype: &'static str,
    /// Kernels it launches.
    pub kernels: Vec<&'static str>,
    /// Median time of all its kernels together; `None` on a simulator, whose time means nothing.
    pub ms: Option<f64>,
    /// Rate of the two products, 10¹² FLOP/s.
    pub tflops: Option<f64>,
    /// The device's counts, if it counts.
    pub counts: Option<Counts>,
    /// Bytes that the algorithm moves between memory and the chip, by [`cost`]; caches serve part of them.
    pub bytes: u64,
    /// Speed relative to the rung before.
    pub speed_up: Option<f64>,
    /// Largest |o − o64| of the rows that were compared.
    pub largest_error: f64,
    /// Largest error over allowed error; above 1 is wrong.
    pub error_ratio: f64,
}

/// A kernel and the blocks it is launched with.
type Step = (&'static str, fn(&Size) -> u64);

/// A rung of [`kernels_insight::ladder`].
struct Steps {
    name: &'static str,
    /// In the order they run.
    kernels: &'static [Step],
    algorithm: Algorithm,
    tiles: Tiles,
    stores_scores: bool,
    stores_stats: bool,
}

fn rows(size: &Size) -> u64 {
    size.heads as u64 * size.seq as u64
}

const NO_TILES: Tiles = Tiles {
    fa1_block_n: 1,
    block_m: 1,
    block_n: 1,
};

const STEPS: [Steps; 3] = [
    Steps {
        name: "unfused, S and P stored",
        kernels: &[
            ("ladder_scores", |size| {
                (rows(size) * size.seq as u64).div_ceil(u64::from(THREADS))
            }),
            ("ladder_softmax", |size| {
                rows(size).div_ceil(u64::from(WARPS))
            }),
            ("ladder_output", |size| {
                (rows(size) * size.head_dim as u64).div_ceil(u64::from(THREADS))
            }),
        ],
        algorithm: Algorithm::Unfused,
        tiles: NO_TILES,
        stores_scores: true,
        stores_stats: false,
    },
    Steps {
        name: "one pass, a thread a column",
        kernels: &[("ladder_column", rows)],
        algorithm: Algorithm::FlashAttention2,
        tiles: NO_TILES,
        stores_scores: false,
        stores_stats: false,
    },
    Steps {
        name: "FA1 tiles",
        kernels: &[("ladder_fa1", |size| size.heads as u64)],
        algorithm: Algorithm::FlashAttention1,
        tiles: Tiles {
            fa1_block_n: FA1_BLOCK_N as u64,
            ..NO_TILES
        },
        stores_scores: false,
        stores_stats: true,
    },
];

/// Runs every rung that `gpu` can run: the ladder's, then the product's kernels.
///
/// # Errors
/// [`Error::Argument`] for a size of 0 or a head_dim above 256, and whatever the device reports.
pub fn climb<D: Device>(gpu: &mut Gpu<D>, size: &Size) -> Result<Vec<Rung>, Error> {
    let work = Workload::new(
        size.heads as u64,
        size.seq as u64,
        size.head_dim as u64,
        DType::F32,
    )?;
    if size.head_dim > HEAD_DIM as usize {
        return Err(Error::argument(
            "head_dim",
            format!("{} is out of range", size.head_dim),
            format!("1 to {HEAD_DIM}"),
        ));
    }
    let mut rungs = Vec::new();
    let operands = Operands::new(gpu, size, DType::F32)?;
    for steps in &STEPS {
        rungs.push(ladder_rung(gpu, size, &work, &operands, steps)?);
    }
    drop(operands);
    for family in Family::ALL {
        rungs.extend(product_rung(gpu, size, family)?);
    }
    for index in 1..rungs.len() {
        let times = rungs[index - 1].ms.zip(rungs[index].ms);
        rungs[index].speed_up = times.map(|(before, now)| before / now);
    }
    Ok(rungs)
}

/// q, k and v, on the host and on the device, bhsd.
struct Operands<D: Device> {
    host: [HostTensor; 3],
    device: [Tensor<D>; 3],
    shape: Shape,
}

impl<D: Device> Operands<D> {
    fn new(gpu: &mut Gpu<D>, size: &Size, dtype: DType) -> Result<Self, Error> {
        let shape = Shape {
            batch: 1,
            heads: size.heads,
            seq: size.seq,
            dim: size.head_dim,
        };
        let host = |index| cases::normal(dtype, shape, Layout::Bhsd, size.seed ^ index);
        let host = [host(0)?, host(1)?, host(2)?];
        let mut upload = |tensor: &HostTensor| tensor.upload(gpu.memory());
        let device = [upload(&host[0])?, upload(&host[1])?, upload(&host[2])?];
        Ok(Self {
            host,
            device,
            shape,
        })
    }

    fn problem(&self, options: &ForwardOptions) -> Result<Problem, Error> {
        let [q, k, v] = &self.host;
        Problem::with_dense_output(*q.spec(), *k.spec(), *v.spec(), options)
    }
}

/// Rows that are compared with the oracle.
const CHECKED_ROWS: usize = 64;

/// Largest error, and largest error over allowed error, of `o`. The ladder forms no lse, so it is not compared.
fn errors<D: Device>(operands: &Operands<D>, o: &HostTensor) -> Result<(f64, f64), Error> {
    let problem = operands.problem(&options())?;
    let [q, k, v] = &operands.host;
    let lse_shape = Shape {
        dim: 1,
        ..operands.shape
    };
    let count = lse_shape.element_count().unwrap_or(0);
    let lse = HostTensor::from_f32(&vec![0.0; count], lse_shape, Layout::Bhsd)?;
    let rows = Rows::Sampled {
        count: CHECKED_ROWS,
        seed: 0,
    };
    let verdict = oracle::check(&problem, Inputs { q, k, v }, o, &lse, rows);
    Ok((verdict.max_error, verdict.o.ratio))
}

fn options() -> ForwardOptions {
    ForwardOptions::new().o_layout(Layout::Bhsd)
}

/// Median milliseconds of `runs` timed runs, after one that is not; `None` for 0 runs.
fn time<D: Device>(
    gpu: &mut Gpu<D>,
    runs: usize,
    run: impl FnMut(&mut Gpu<D>) -> Result<(), Error>,
) -> Result<Option<f64>, Error> {
    let times = sorted_ms(gpu, runs, run)?;
    Ok(times.get(times.len() / 2).copied())
}

fn ladder_rung<D: Device>(
    gpu: &mut Gpu<D>,
    size: &Size,
    work: &Workload,
    operands: &Operands<D>,
    steps: &Steps,
) -> Result<Rung, Error> {
    let memory = gpu.memory();
    let f32s = |elements: u64| elements as usize * DType::F32.bytes();
    let scores = match steps.stores_scores {
        true => f32s(rows(size) * size.seq as u64),
        false => 0,
    };
    let stats = match steps.stores_stats {
        true => f32s(rows(size)),
        false => 0,
    };
    let o_spec = *operands.host[0].spec();
    let o = memory.alloc(f32s(rows(size) * size.head_dim as u64))?;
    let o = Tensor::new(memory, Arc::new(o), 0, o_spec)?;
    let [s, p] = [memory.alloc(scores)?, memory.alloc(scores)?];
    let [row_max, row_sum] = [memory.alloc(stats)?, memory.alloc(stats)?];
    let [q, k, v] = &operands.device;
    let params = LadderParams {
        q: q.address(memory),
        k: k.address(memory),
        v: v.address(memory),
        o: o.address(memory),
        s: memory.address(&s),
        p: memory.address(&p),
        row_max: memory.address(&row_max),
        row_sum: memory.address(&row_sum),
        heads: size.heads as u32,
        seq: size.seq as u32,
        head_dim: size.head_dim as u32,
        softmax_scale: operands.problem(&options())?.softmax_scale(),
    };
    let run = |gpu: &mut Gpu<D>| -> Result<(), Error> {
        for &(name, blocks) in steps.kernels {
            let launch = Launch {
                kernel: instances::find(name).expect("the ladder names its kernels"),
                ptx: &modules::of,
                // Blocks loop where there is more work than a grid can hold.
                grid: blocks(size).min(i32::MAX as u64) as u32,
                params: &[bytemuck::bytes_of(&params)],
                begins_early: false,
            };
            // SAFETY: these are the parameters of every kernel of the ladder. Its buffers are as large as the kernels
            // expect for this size, live until this function returns, and nobody else knows o, S, P, m and l.
            unsafe { gpu.memory().launch(&launch)? };
        }
        Ok(())
    };
    gpu.memory().take_counts();
    run(gpu)?;
    let counts = gpu.memory().take_counts();
    let downloaded = o.download(gpu.memory())?;
    let measured = Measured {
        errors: errors(operands, &downloaded)?,
        ms: time(gpu, size.runs, run)?,
        counts,
    };
    let kernels = steps.kernels.iter().map(|(name, _)| *name).collect();
    let cost = cost::kernels(steps.algorithm, Pass::Forward, work, &steps.tiles);
    Ok(measured.rung(steps.name, DType::F32, kernels, cost.into_iter().sum()))
}

/// Measurements of one rung.
struct Measured {
    ms: Option<f64>,
    counts: Option<Counts>,
    /// Largest error, and largest ratio of error to allowed error.
    errors: (f64, f64),
}

impl Measured {
    /// The rung, without its speed-up over another yet.
    fn rung(
        self,
        name: &'static str,
        dtype: DType,
        kernels: Vec<&'static str>,
        cost: Cost,
    ) -> Rung {
        let (largest_error, error_ratio) = self.errors;
        Rung {
            name,
            dtype: dtype.name(),
            kernels,
            ms: self.ms,
            tflops: self.ms.map(|ms| cost.flops as f64 / ms / 1e9),
            counts: self.counts,
            bytes: cost.bytes(),
            speed_up: None,
            largest_error,
            error_ratio,
        }
    }
}

/// The product's kernel of `family`, in bf16 if it has one, else in f32; `None` where it cannot run.
fn product_rung<D: Device>(
    gpu: &mut Gpu<D>,
    size: &Size,
    family: Family,
) -> Result<Option<Rung>, Error> {
    let Some(variant) = Variant::of_family(family) else {
        return Ok(None);
    };
    for dtype in [DType::Bf16, DType::F32] {
        let operands = Operands::new(gpu, size, dtype)?;
        let options = options().force(variant);
        let problem = operands.problem(&options)?;
        let here = gpu.capabilities();
        if why_not(variant, &problem, &here).is_some() {
            continue;
        }
        let kernel = find_instance(family, &problem, &gpu.gpu_capabilities())
            .expect("an eligible family has a kernel");
        let [q, k, v] = &operands.device;
        gpu.memory().take_counts();
        let mut output = forward(gpu, q, k, v, &options)?;
        let counts = gpu.memory().take_counts();
        let o = output.o.download(gpu.memory())?;
        let measured = Measured {
            errors: errors(&operands, &o)?,
            ms: time(gpu, size.runs, |gpu| {
                forward_into(gpu, q, k, v, &mut output, &options)
            })?,
            counts,
        };
        let work = Workload::new(
            size.heads as u64,
            size.seq as u64,
            size.head_dim as u64,
            dtype,
        )?;
        let tiles = Tiles {
            block_m: u64::from(kernel.block_m),
            ..NO_TILES
        };
        let cost = cost::kernels(Algorithm::FlashAttention2, Pass::Forward, &work, &tiles);
        let cost = cost.into_iter().sum();
        return Ok(Some(measured.rung(
            family.name(),
            dtype,
            vec![kernel.name],
            cost,
        )));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflash::backend::sim::Sim;

    /// Every rung, on sizes that fill no tile, in the simulator with its checks on.
    #[test]
    fn every_rung_is_within_the_bound() {
        for (seq, head_dim) in [(70, 40), (33, 96)] {
            let size = Size {
                heads: 2,
                seq,
                head_dim,
                seed: 1,
                runs: 0,
            };
            let rungs = climb(&mut Sim::new(), &size).unwrap();
            let names: Vec<_> = rungs.iter().map(|rung| rung.name).collect();
            assert_eq!(names[STEPS.len()..], Family::ALL.map(Family::name));
            for rung in &rungs {
                assert!(rung.counts.is_some_and(|counts| counts.global_bytes > 0));
                assert!(rung.error_ratio <= 1.0, "{rung:?}");
                assert!(rung.largest_error > 0.0, "{rung:?}");
            }
        }
    }

    /// Where every operand goes straight to global memory in whole sectors, the bytes that the simulator counts equal
    /// those of the cost model.
    #[test]
    fn the_cost_models_bytes_are_asked_for() {
        let size = Size {
            heads: 2,
            seq: 64,
            head_dim: 64,
            seed: 1,
            runs: 0,
        };
        let rungs = climb(&mut Sim::new(), &size).unwrap();
        for (name, tolerance) in [
            // It stores no lse.
            ("one pass, a thread a column", 0.01),
            // Its first step takes o, m and l as zeros instead of storing and loading them.
            ("FA1 tiles", 0.25),
            // lse is stored in parts of sectors.
            ("simt", 0.02),
            ("mma", 0.0),
            // Blocks draw tiles from a counter.
            ("wgmma", 0.002),
        ] {
            let rung = rungs.iter().find(|rung| rung.name == name).unwrap();
            let counted = rung.counts.unwrap().global_bytes as f64;
            let difference = counted / rung.bytes as f64 - 1.0;
            assert!(difference.abs() <= tolerance, "{difference}: {rung:?}");
            // As the pictures of shared memory say.
            assert_eq!(rung.counts.unwrap().bank_conflicts, 0, "{rung:?}");
        }
    }

    #[test]
    fn sizes_are_refused_by_name() {
        let refused = |heads, seq, head_dim| {
            let size = Size {
                heads,
                seq,
                head_dim,
                seed: 0,
                runs: 0,
            };
            climb(&mut Sim::new(), &size).unwrap_err().to_string()
        };
        assert!(refused(0, 8, 8).starts_with("heads: 0 "));
        assert!(refused(1, 0, 8).starts_with("seq: 0 "));
        assert!(refused(1, 8, 257).starts_with("head_dim: 257 "));
    }
}
