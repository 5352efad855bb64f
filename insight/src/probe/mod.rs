//! Measured peak rates of a GPU: the roof of `ferroflash roofline --device measured`.
//!
//! Each rate comes from a kernel that does one thing ([`kernels_insight::probe`]). A probe is timed only if its result
//! is right, and the fastest of several runs counts: a roof cannot be exceeded.

mod unit;

use kernels_gpu::instances::Instance;
use kernels_insight::config::probe::COPY_CHUNK_WORDS;
use kernels_insight::instances;
use kernels_insight::probe::params::ProbeParams;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Serialize;

pub use unit::Unit;

use super::gpu_spec::GpuSpec;
use super::timing::sorted_ms;
use crate::modules;
use ferroflash::backend::{Device, Launch};
use ferroflash::plan::instance_unfit;
use ferroflash::{Backend, Error, Gpu, Tensor};

/// Sizes and repetitions of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Bytes to copy: several times the L2 cache, so that memory is what is measured.
    pub copy_bytes: u64,
    /// Approximate milliseconds of a run of an arithmetic probe.
    pub run_ms: f64,
    /// Runs, of which the fastest counts.
    pub runs: usize,
}

/// One measured rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reading {
    /// The kernel that reached it.
    pub kernel: &'static str,
    /// Bytes, FLOPs or exponentials a second.
    pub rate: f64,
}

/// Every rate of a GPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Bytes read and written a second.
    pub bandwidth: Reading,
    /// bf16 FLOP/s on tensor cores.
    pub tensor_flops: Reading,
    /// f32 FLOP/s on CUDA cores.
    pub f32_flops: Reading,
    /// `ex2.approx` a second.
    pub exps: Reading,
}

/// Shared memory of an SM that no block may use (CUDA C++ Programming Guide, "Shared Memory" of 8.x and 9.0).
const RESERVED_SHARED_BYTES: u64 = 1024;

impl Measured {
    /// The GPU these were measured on, for the roofline.
    pub fn spec<D: Device>(&self, gpu: &Gpu<D>) -> GpuSpec {
        let info = gpu.info();
        GpuSpec {
            name: info.name.clone(),
            measured: true,
            tensor_flops: self.tensor_flops.rate,
            f32_flops: self.f32_flops.rate,
            exps: self.exps.rate,
            bandwidth: self.bandwidth.rate,
            shared_bytes: u64::from(info.shared_bytes) + RESERVED_SHARED_BYTES,
            compute_capability: info.compute_capability,
        }
    }
}

/// Measures `gpu`.
///
/// # Errors
/// [`Error::Argument`] if the GPU is too old for the probes; [`Error::Device`] if a probe's result is wrong; and whatever
/// the device reports.
pub fn measure<D: Device>(gpu: &mut Gpu<D>, effort: &Effort) -> Result<Measured, Error> {
    let tensor = match unfit(gpu, Unit::Wgmma) {
        None => Unit::Wgmma,
        Some(_) => Unit::Mma,
    };
    for unit in [tensor, Unit::Fma, Unit::Exp2] {
        if let Some(reason) = unfit(gpu, unit) {
            let name = &gpu.info().name;
            let wrong = format!("{name} cannot be measured: {reason}");
            let allowed = "the name of a GPU, or a newer one to measure";
            return Err(Error::argument("device", wrong, allowed));
        }
    }
    Ok(Measured {
        bandwidth: bandwidth(gpu, effort)?,
        tensor_flops: rate(gpu, tensor, effort)?,
        f32_flops: rate(gpu, Unit::Fma, effort)?,
        exps: rate(gpu, Unit::Exp2, effort)?,
    })
}

/// Why a probe cannot run on `gpu`.
fn unfit<D: Device>(gpu: &Gpu<D>, unit: Unit) -> Option<String> {
    instance_unfit(unit.kernel(), &gpu.gpu_capabilities())
}

/// Queues `kernel`.
///
/// # Safety
/// The buffers of `params` are as large as `blocks` and its count make necessary, and live until the work is done.
unsafe fn launch<D: Device>(
    gpu: &mut Gpu<D>,
    kernel: &'static Instance,
    blocks: u32,
    params: &ProbeParams,
) -> Result<(), Error> {
    let launch = Launch {
        kernel,
        ptx: &modules::of,
        grid: blocks,
        params: &[bytemuck::bytes_of(params)],
        begins_early: false,
    };
    // SAFETY: every probe takes these parameters; the caller vouches for them.
    unsafe { gpu.memory().launch(&launch) }
}

fn wrong_result<D: Device>(gpu: &Gpu<D>, kernel: &Instance, detail: String) -> Error {
    Error::Device {
        device: gpu.info().name.clone(),
        operation: format!("measuring with {}", kernel.name),
        detail,
    }
}

/// Milliseconds of the fastest of `runs` of `run`.
fn fastest<D: Device>(
    gpu: &mut Gpu<D>,
    runs: usize,
    run: impl FnMut(&mut Gpu<D>) -> Result<(), Error>,
) -> Result<f64, Error> {
    Ok(sorted_ms(gpu, runs.max(1), run)?[0])
}

/// A unit's probe with its buffers.
struct Probe<D: Device> {
    unit: Unit,
    task: unit::Task,
    blocks: u32,
    operands: [Tensor<D>; 2],
    out: D::Buffer,
}

impl<D: Device> Probe<D> {
    fn new(gpu: &mut Gpu<D>, unit: Unit, blocks: u32) -> Result<Self, Error> {
        let task = unit.task()?;
        let memory = gpu.memory();
        let [a, b] = &task.operands;
        let operands = [a.upload(memory)?, b.upload(memory)?];
        let out = memory.alloc(blocks as usize * task.elements * size_of::<f32>())?;
        Ok(Self {
            unit,
            task,
            blocks,
            operands,
            out,
        })
    }

    fn run(&self, gpu: &mut Gpu<D>, steps: u32) -> Result<(), Error> {
        let memory = gpu.memory();
        let [a, b] = &self.operands;
        let params = ProbeParams {
            a: a.address(memory),
            b: b.address(memory),
            out: memory.address(&self.out),
            count: u64::from(steps),
            factor: self.task.factor,
            term: self.task.term,
        };
        // SAFETY: A and B are as large as the probe's matrices, `out` holds what all blocks leave, and all three live
        // as long as `self`, which is dropped behind the stream's work.
        unsafe { launch(gpu, self.unit.kernel(), self.blocks, &params) }
    }

    /// Whether every block's result after `steps` steps is right.
    fn check(&mut self, gpu: &mut Gpu<D>, steps: u32) -> Result<(), Error> {
        let mut found = vec![f32::NAN; self.blocks as usize * self.task.elements];
        let bytes = bytemuck::cast_slice_mut(&mut found);
        gpu.memory().write(&mut self.out, bytes)?;
        self.run(gpu, steps)?;
        gpu.memory().read(&self.out, bytes)?;
        let expected = self.unit.expected(&self.task, steps);
        for (block, found) in found.chunks(expected.len()).enumerate() {
            for (index, (&found, &(right, allowed))) in found.iter().zip(&expected).enumerate() {
                // NaN is within no distance.
                let is_right = (f64::from(found) - right).abs() <= allowed;
                if !is_right {
                    let detail =
                        format!("block {block} left {found} as element {index}, not {right}");
                    return Err(wrong_result(gpu, self.unit.kernel(), detail));
                }
            }
        }
        Ok(())
    }
}

/// Steps of the run whose result is compared.
const CHECKED_STEPS: u32 = 3;
/// Factor by which the number of steps grows until a run is long enough to extrapolate from.
const GROWTH: u32 = 8;
/// Most steps of a run.
const MAX_STEPS: u32 = 1 << 28;

/// The rate of `unit` with every SM at work.
fn rate<D: Device>(gpu: &mut Gpu<D>, unit: Unit, effort: &Effort) -> Result<Reading, Error> {
    let blocks = gpu.info().multiprocessors * unit.blocks_per_sm();
    let mut probe = Probe::new(gpu, unit, blocks)?;
    probe.check(gpu, CHECKED_STEPS)?;
    let mut steps = 1;
    loop {
        let ms = fastest(gpu, 1, |gpu| probe.run(gpu, steps))?;
        if ms * f64::from(GROWTH) >= effort.run_ms || steps > MAX_STEPS / GROWTH {
            let wanted = f64::from(steps) * effort.run_ms / ms;
            steps = (wanted as u32).clamp(steps, MAX_STEPS);
            break;
        }
        steps *= GROWTH;
    }
    let ms = fastest(gpu, effort.runs, |gpu| probe.run(gpu, steps))?;
    let operations = probe.task.operations * f64::from(blocks) * f64::from(steps);
    Ok(Reading {
        kernel: unit.kernel().name,
        rate: operations / (ms / 1e3),
    })
}

/// Bytes of the copy's unit.
const WORD_BYTES: u64 = 16;

/// Copies `words` words from one buffer to the other.
fn copy<D: Device>(
    gpu: &mut Gpu<D>,
    from: &D::Buffer,
    to: &D::Buffer,
    words: u64,
) -> Result<(), Error> {
    let memory = gpu.memory();
    let params = ProbeParams {
        a: memory.address(from),
        b: 0,
        out: memory.address(to),
        count: words,
        factor: 0.0,
        term: 0.0,
    };
    let bytes = (memory.size_bytes(from)).min(memory.size_bytes(to)) as u64;
    assert!(words * WORD_BYTES <= bytes, "the buffers hold the words");
    // A chunk a block; blocks loop over what is more than a grid.
    let blocks = words.div_ceil(u64::from(COPY_CHUNK_WORDS));
    let blocks = blocks.min(i32::MAX as u64) as u32;
    // SAFETY: both buffers hold the words; the callers keep them until the work is done.
    unsafe { launch(gpu, copy_kernel(), blocks, &params) }
}

fn copy_kernel() -> &'static Instance {
    instances::find("probe_copy").expect("the copy has a kernel")
}

/// Whether `words` words arrive, and no more.
fn check_copy<D: Device>(gpu: &mut Gpu<D>, words: u64) -> Result<(), Error> {
    let bytes = (words * WORD_BYTES) as usize;
    // Two words behind the copied ones must stay as they are.
    let room = bytes + 2 * WORD_BYTES as usize;
    let mut sent = vec![0; room];
    Xoshiro256PlusPlus::seed_from_u64(words).fill_bytes(&mut sent);
    let mut arrived: Vec<u8> = sent.iter().map(|byte| !byte).collect();
    let memory = gpu.memory();
    let (mut from, mut to) = (memory.alloc(room)?, memory.alloc(room)?);
    memory.write(&mut from, &sent)?;
    memory.write(&mut to, &arrived)?;
    let untouched = arrived.split_off(bytes);
    copy(gpu, &from, &to, words)?;
    arrived.resize(room, 0);
    gpu.memory().read(&to, &mut arrived)?;
    let right = sent[..bytes].iter().chain(&untouched);
    match arrived.iter().zip(right).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(byte) => {
            let detail = format!("byte {byte} of {bytes} did not arrive");
            Err(wrong_result(gpu, copy_kernel(), detail))
        }
    }
}

/// Words of the copy that is compared: several chunks, and part of one.
const CHECKED_WORDS: u64 = 5 * COPY_CHUNK_WORDS as u64 + 77;

/// Bytes read and written a second by a copy.
fn bandwidth<D: Device>(gpu: &mut Gpu<D>, effort: &Effort) -> Result<Reading, Error> {
    check_copy(gpu, CHECKED_WORDS)?;
    let words = (effort.copy_bytes / WORD_BYTES).max(1);
    let bytes = (words * WORD_BYTES) as usize;
    let memory = gpu.memory();
    let (mut from, to) = (memory.alloc(bytes)?, memory.alloc(bytes)?);
    memory.write(&mut from, &vec![1; bytes])?;
    copy(gpu, &from, &to, words)?;
    let ms = fastest(gpu, effort.runs, |gpu| copy(gpu, &from, &to, words))?;
    Ok(Reading {
        kernel: copy_kernel().name,
        rate: 2.0 * bytes as f64 / (ms / 1e3),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflash::backend::sim::Sim;

    /// The results of every probe in the simulator, with its checks on.
    #[test]
    fn probes_compute_what_they_claim() {
        let mut sim = Sim::new();
        let mut wrong = Vec::new();
        for unit in Unit::ALL {
            for (blocks, steps) in [(1, 1), (2, 3)] {
                let mut probe = Probe::new(&mut sim, unit, blocks).unwrap();
                wrong.extend(probe.check(&mut sim, steps).err());
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    /// A result after another number of steps is not accepted.
    #[test]
    fn a_step_too_few_is_noticed() {
        for unit in Unit::ALL {
            let task = unit.task().unwrap();
            let (right, wrong) = (unit.expected(&task, 3), unit.expected(&task, 2));
            assert_eq!(right.len(), task.elements);
            let near = right
                .iter()
                .zip(&wrong)
                .filter(|((right, allowed), (wrong, _))| (right - wrong).abs() <= *allowed);
            assert!(near.count() * 10 < right.len(), "{unit:?}");
        }
    }

    #[test]
    fn copies_of_any_size_arrive() {
        let mut sim = Sim::new();
        for words in [1, 255, u64::from(COPY_CHUNK_WORDS), CHECKED_WORDS] {
            check_copy(&mut sim, words).unwrap();
        }
    }

    /// The whole way, on a simulated Hopper GPU, whose rates mean nothing.
    #[test]
    fn a_roof_comes_of_it() {
        let mut sim = Sim::new();
        let effort = Effort {
            copy_bytes: 1 << 16,
            run_ms: 0.0,
            runs: 1,
        };
        let measured = measure(&mut sim, &effort).unwrap();
        assert_eq!(measured.tensor_flops.kernel, "probe_wgmma");
        let spec = measured.spec(&sim);
        assert!(spec.measured);
        assert_eq!(spec.shared_bytes, 228 << 10);
        for rate in [spec.bandwidth, spec.tensor_flops, spec.f32_flops, spec.exps] {
            assert!(rate.is_finite() && rate > 0.0, "{spec:?}");
        }
    }
}
