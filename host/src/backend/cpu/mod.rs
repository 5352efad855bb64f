//! The CPU backend: the FlashAttention-2 loop in f32, tiled, vectorised and multi-threaded.
//!
//! | file | what it does |
//! |---|---|
//! | `memory` | buffers on the heap, time marks from the clock |
//! | `arrays` | reads lengths and slopes that only the caller has |
//! | `tasks` | cuts a problem into tasks of at most `BLOCK_M` query rows, one per thread at a time |
//! | `tile` | one task: load Q, loop over K/V tiles {QKᵀ, mask, softmax, PV}, write o and lse |
//! | `score` | scale, softcap and bias |
//! | `softmax` | the running maximum and sum of each row |
//! | `math` | exp and tanh |
//! | `gemm` | the register-tiled matrix product both GEMMs use |
//! | `backward` | the backward pass, of the same parts |
//! | `decode` | attention to a cache: sequence by sequence, on keys and values gathered from it |
//! | `modifiers` | masks, biases, sinks and dropout of single pairs |
//! | `merge` | joins partial results |
//! | `pack` | moves strided operands of any dtype to and from f32 tiles |

mod append;
mod arrays;
mod backward;
mod decode;
mod gemm;
mod math;
mod memory;
mod merge;
mod modifiers;
mod pack;
mod score;
mod softmax;
mod tasks;
mod tile;

pub use memory::{CpuBuffer, CpuMemory};

use super::pool;
use crate::sealed::Sealed;
use crate::{AppendOperands, AppendProblem, Backend, Capabilities, Error, Merge, Operands, Plan};

/// Runs problems on the host's own cores.
///
/// Takes every valid problem in every dtype, computes in f32 and uses the widest vectors the
/// processor has. Work is done before [`launch`](Backend::launch) returns, on the rayon pool that the calling thread
/// belongs to, else on a pool that all these backends share, which a forked child makes anew.
#[derive(Debug, Default)]
pub struct Cpu {
    memory: CpuMemory,
}

impl Cpu {
    /// A backend; any number of them may exist.
    pub fn new() -> Self {
        Self::default()
    }

    /// The memory, to look at.
    #[cfg(feature = "cuda")] // for `Auto`
    pub(crate) fn device(&self) -> &CpuMemory {
        &self.memory
    }
}

impl Sealed for Cpu {}

impl Backend for Cpu {
    type Memory = CpuMemory;

    fn name(&self) -> &'static str {
        "cpu"
    }

    fn device_name(&self) -> String {
        match pool::install(rayon::current_num_threads) {
            1 => "CPU, 1 thread".to_owned(),
            threads => format!("CPU, {threads} threads"),
        }
    }

    fn memory(&mut self) -> &mut CpuMemory {
        &mut self.memory
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::Cpu
    }

    unsafe fn launch(&mut self, plan: &Plan, operands: &Operands) -> Result<(), Error> {
        plan.check(&self.capabilities(), operands)?;
        if plan.problem().is_empty() {
            return Ok(());
        }
        // SAFETY: the caller's promise is the one `known` asks for.
        let problem = unsafe { arrays::known(plan.problem(), operands) };
        if let Some(layout) = problem.cache_layout() {
            // SAFETY: the caller's promise is the one `run` asks for.
            pool::install(|| unsafe { decode::run(&problem, layout, operands) });
            return Ok(());
        }
        pool::install(|| match problem.gradients() {
            // SAFETY: the caller's promise is the one `run` asks for.
            None => unsafe { tasks::run(&problem, operands) },
            // SAFETY: as before.
            Some(_) => unsafe { backward::run(&problem, operands) },
        });
        Ok(())
    }

    unsafe fn append_raw(
        &mut self,
        problem: &AppendProblem,
        operands: &AppendOperands,
    ) -> Result<(), Error> {
        if problem.is_empty() {
            return Ok(());
        }
        operands.check(problem)?;
        // SAFETY: the caller's promise is the one `run` asks for.
        unsafe { append::run(problem, operands) };
        Ok(())
    }

    unsafe fn merge_raw(&mut self, merge: &Merge<'_>) -> Result<(), Error> {
        // SAFETY: the caller's promise is the one `run` asks for.
        pool::install(|| unsafe { merge::run(merge) });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        CuSeqlens, DType, DeviceLengths, ForwardOptions, HostTensor, Layout, Shape, TensorSpec,
        forward,
    };

    /// A dense tensor without elements.
    fn nothing(shape: Shape) -> HostTensor {
        let spec = TensorSpec::contiguous(DType::F32, shape, Layout::Bshd).unwrap();
        HostTensor::new(spec, 0, Vec::new()).unwrap()
    }

    #[test]
    fn billions_of_empty_sequences_take_no_memory() {
        let mut cpu = Cpu::new();
        let shape = Shape {
            batch: u32::MAX as usize,
            heads: 1,
            seq: 0,
            dim: 1,
        };
        let x = nothing(shape).upload(cpu.memory()).unwrap();
        for options in [
            ForwardOptions::new(),
            ForwardOptions::new().lengths(DeviceLengths::seqused_kv()),
        ] {
            let output = forward(&mut cpu, &x, &x, &x, &options).unwrap();
            assert!(output.o.spec().is_empty());
        }
    }

    #[test]
    fn sequences_without_queries_have_no_tasks() {
        let mut cpu = Cpu::new();
        let x = HostTensor::from_f32(&[1.0, 2.0, 3.0], Shape::packed(3, 1, 1), Layout::Bshd);
        let x = x.unwrap().upload(cpu.memory()).unwrap();
        let lengths = CuSeqlens::from_lengths([(0, 1), (2, 0), (0, 0), (1, 2), (0, 0)]).unwrap();
        let options = ForwardOptions::new().cu_seqlens(lengths);
        let output = forward(&mut cpu, &x, &x, &x, &options).unwrap();
        let o = output.o.download(cpu.memory()).unwrap();
        // The first two rows see no key, the third the last two.
        let last = (2.0 * 6f32.exp() + 3.0 * 9f32.exp()) / (6f32.exp() + 9f32.exp());
        let o = o.to_f32(Layout::Bshd);
        assert_eq!(o[..2], [0.0, 0.0]);
        assert!((o[2] - last).abs() < 1e-5, "{o:?}");
    }

    /// o and lse of one head of width 1.
    fn one_head(q: &[f32], k: &[f32], options: &ForwardOptions) -> (Vec<f32>, Vec<f32>) {
        let mut cpu = Cpu::new();
        let column = |values: &[f32], cpu: &mut Cpu| {
            let shape = Shape::packed(values.len(), 1, 1);
            let tensor = HostTensor::from_f32(values, shape, Layout::Bshd).unwrap();
            tensor.upload(cpu.memory()).unwrap()
        };
        let values: Vec<f32> = (1..=k.len()).map(|value| value as f32).collect();
        let [q, k, v] = [q, k, &values].map(|values| column(values, &mut cpu));
        let output = forward(&mut cpu, &q, &k, &v, options).unwrap();
        let mut download = |tensor: crate::Tensor<CpuMemory>| {
            let tensor = tensor.download(cpu.memory()).unwrap();
            tensor.to_f32(Layout::Bshd)
        };
        (download(output.o), download(output.lse.unwrap()))
    }

    /// softmax over `scores` of the values 1, 2, …, and the log-sum-exp.
    fn exact(scores: &[f64]) -> (f64, f64) {
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights = scores.iter().map(|score| (score - max).exp());
        let sum: f64 = weights.clone().sum();
        let weighted: f64 = weights.zip(1..).map(|(p, v)| p * f64::from(v)).sum();
        (weighted / sum, max + sum.ln())
    }

    #[test]
    fn finite_scores_survive_a_scale_that_q_does_not() {
        let (scale, k) = (1e38, [-2e-38, 1e-38, 2e-38]);
        let options = ForwardOptions::new().softmax_scale(scale);
        // The scale takes the second and the fourth beyond f32, and every score of the fourth is negative there.
        for (q, k) in [
            ([1.0, 4.0, -0.5, -4.0], k),
            ([1.0, 4.0, -0.5, -4.0], k.map(f32::abs)),
            ([1.0, -4.0, 0.0, 100.0], k.map(|k| -k.abs())),
        ] {
            let (o, lse) = one_head(&q, &k, &options);
            for (row, q) in q.into_iter().enumerate() {
                let scores = k.map(|k| f64::from(q) * f64::from(k) * f64::from(scale));
                let (exact_o, exact_lse) = exact(&scores);
                let off = (f64::from(o[row]) - exact_o).abs();
                assert!(off < 1e-5, "o of q = {q}: {} for {exact_o}", o[row]);
                let off = (f64::from(lse[row]) - exact_lse).abs();
                let allowed = 1e-5 * (1.0 + exact_lse.abs());
                assert!(
                    off < allowed,
                    "lse of q = {q}: {} for {exact_lse}",
                    lse[row]
                );
            }
        }
    }

    #[test]
    fn every_score_far_below_zero_is_still_a_visible_key() {
        // Sums on the way leave f32: 3e38 + 3e38 - 6e38 + … of components of 2e19 or less.
        let mut cpu = Cpu::new();
        let tensor = |values: [f32; 3], cpu: &mut Cpu| {
            let shape = Shape::packed(1, 1, 3);
            let tensor = HostTensor::from_f32(&values, shape, Layout::Bshd).unwrap();
            tensor.upload(cpu.memory()).unwrap()
        };
        for sign in [1.0, -1.0] {
            let q = tensor([1e19, 1e19, 1e19], &mut cpu);
            let k = tensor([3e19, 3e19, -6e19].map(|k: f32| k * sign), &mut cpu);
            let v = tensor([1.0, 2.0, 3.0], &mut cpu);
            let options = ForwardOptions::new().softmax_scale(1.0);
            let output = forward(&mut cpu, &q, &k, &v, &options).unwrap();
            let o = output.o.download(cpu.memory()).unwrap();
            assert_eq!(o.to_f32(Layout::Bshd), [1.0, 2.0, 3.0], "{sign}");
        }
    }

    #[test]
    fn non_finite_inputs_stay_in_their_rows() {
        let k = [0.5, -0.5];
        let (o, _) = one_head(&[1.0, f32::NAN, f32::INFINITY], &k, &ForwardOptions::new());
        assert!(o[0].is_finite() && o[1].is_nan() && o[2].is_nan(), "{o:?}");
        let k = [0.5, f32::NAN];
        let mask = ForwardOptions::new().mask(crate::Mask::CAUSAL_TOP_LEFT);
        let (o, _) = one_head(&[1.0, 2.0], &k, &mask);
        assert!(o[0] == 1.0 && o[1].is_nan(), "{o:?}");
    }

    #[test]
    fn the_smallest_softcaps_leave_scores_of_almost_0() {
        for softcap in [f32::from_bits(1), 1e-39, 2.9e-39, f32::MIN_POSITIVE, 1e-30] {
            for scale in [1.0, 1e10] {
                let options = ForwardOptions::new().softcap(softcap).softmax_scale(scale);
                let (o, lse) = one_head(&[0.0, 3.0], &[0.0, 1.0, -1.0], &options);
                assert_eq!(o, [2.0, 2.0], "{softcap:e}");
                assert!(lse.iter().all(|lse| (lse - 3f32.ln()).abs() < 1e-6));
            }
        }
    }

    #[test]
    fn strides_that_nothing_is_read_by_may_be_any() {
        let mut cpu = Cpu::new();
        let shape = |seq| Shape {
            batch: 3,
            heads: 2,
            seq,
            dim: 4,
        };
        let q = HostTensor::from_f32(&[1.0; 24], shape(1), Layout::Bshd).unwrap();
        let q = q.upload(cpu.memory()).unwrap();
        for stride in [i64::MAX, i64::MIN] {
            let mut spec = *nothing(shape(0)).spec();
            spec.strides.batch = stride;
            spec.strides.head = stride;
            let k = HostTensor::new(spec, 0, Vec::new()).unwrap();
            let k = k.upload(cpu.memory()).unwrap();
            let output = forward(&mut cpu, &q, &k, &k, &ForwardOptions::new()).unwrap();
            let o = output.o.download(cpu.memory()).unwrap();
            assert_eq!(o.to_f32(Layout::Bshd), [0.0; 24]);
        }
    }
}
