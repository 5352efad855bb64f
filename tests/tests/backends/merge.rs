//! Merging partial results, compared with the same sums in f64.

use ferroflash::{Backend, Cpu, DType, HostTensor, Layout, Output, Shape, Sim, merge};
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::random_cases::agree_on;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

/// o and lse of the parts, in the axis order (batch, head, seq, dim).
#[derive(Clone, Debug)]
struct Parts {
    dtype: DType,
    shape: Shape,
    o: Vec<Vec<f32>>,
    lse: Vec<Vec<f32>>,
}

/// Log-sum-exps of a part: ordinary ones, ones so large that f32 has few fraction bits left, and −∞ for no visible key.
fn lse_values() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => -4.0f32..4.0,
        1 => 30_000.0f32..30_002.0,
        1 => Just(-1e30f32),
        2 => Just(f32::NEG_INFINITY),
    ]
}

fn parts() -> impl Strategy<Value = Parts> {
    let dtypes = prop_oneof![Just(DType::F32), Just(DType::F16), Just(DType::Bf16)];
    let axes = (1..4usize, 1..4usize, 1..6usize, 1..70usize);
    (dtypes, axes, 1..10usize).prop_flat_map(|(dtype, (batch, heads, seq, dim), count)| {
        let shape = Shape {
            batch,
            heads,
            seq,
            dim,
        };
        let rows = batch * heads * seq;
        let o = prop::collection::vec(prop::collection::vec(-2.0f32..2.0, rows * dim), count);
        let lse = prop::collection::vec(prop::collection::vec(lse_values(), rows), count);
        (o, lse).prop_map(move |(o, lse)| Parts {
            dtype,
            shape,
            o,
            lse,
        })
    })
}

impl Parts {
    /// A tensor of `values` in `layout`.
    fn tensor(&self, values: &[f32], dim: usize, dtype: DType, layout: Layout) -> HostTensor {
        let shape = Shape { dim, ..self.shape };
        let tensor =
            HostTensor::from_f32(values, shape, Layout::Bhsd).expect("as many as elements");
        tensor.convert(dtype, layout).expect("small")
    }

    /// The parts as a backend gets them: in alternating layouts, and with NaN in o where a row sees no key.
    fn host(&self) -> Vec<[HostTensor; 2]> {
        let layouts = [Layout::Bshd, Layout::Bhsd];
        let part = |(index, (o, lse)): (usize, (&Vec<f32>, &Vec<f32>))| {
            let dim = self.shape.dim;
            let spoilt = o.iter().enumerate().map(|(i, o)| match lse[i / dim] {
                f32::NEG_INFINITY => f32::NAN,
                _ => *o,
            });
            let spoilt: Vec<f32> = spoilt.collect();
            [
                self.tensor(&spoilt, dim, self.dtype, layouts[index % 2]),
                self.tensor(lse, 1, DType::F32, layouts[(index + 1) % 2]),
            ]
        };
        self.o.iter().zip(&self.lse).enumerate().map(part).collect()
    }

    /// Merges on `backend` and compares every element.
    fn check<B: Backend>(&self, backend: &mut B) -> Result<(), TestCaseError> {
        let host = self.host();
        let memory = backend.memory();
        let upload =
            |tensor: &HostTensor, memory: &mut B::Memory| tensor.upload(memory).expect("small");
        let parts: Vec<_> = host
            .iter()
            .map(|[o, lse]| Output::new(upload(o, memory), upload(lse, memory)))
            .collect();
        let parts: Vec<_> = parts.iter().collect();
        let merged = merge(backend, &parts).expect("it runs");
        let memory = backend.memory();
        let o = merged.o.download(memory).expect("it ran");
        let lse = merged
            .lse
            .expect("merged")
            .download(memory)
            .expect("it ran");
        let Shape {
            batch,
            heads,
            seq,
            dim,
        } = self.shape;
        for row in 0..batch * heads * seq {
            let (batch, head, seq) = (row / seq / heads, row / seq % heads, row % seq);
            let of = |[_, lse]: &[HostTensor; 2]| f64::from(lse.get(batch, head, seq, 0));
            let seen = host.iter().filter(|part| of(part) != f64::NEG_INFINITY);
            let seen: Vec<_> = seen.collect();
            let max = seen
                .iter()
                .map(|part| of(part))
                .fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = seen.iter().map(|part| (of(part) - max).exp()).sum();
            let exact_lse = max + sum.ln();
            let found = f64::from(lse.get(batch, head, seq, 0));
            let allowed = 2e-7 * (1.0 + exact_lse.abs()) + 1e-6;
            let is_right = found == exact_lse || (found - exact_lse).abs() <= allowed;
            prop_assert!(is_right, "lse of row {row}: {found} for {exact_lse}");
            for dim in 0..dim {
                let terms = seen.iter().map(|part| {
                    (of(part) - max).exp() / sum * f64::from(part[0].get(batch, head, seq, dim))
                });
                let terms: Vec<f64> = terms.collect();
                let exact: f64 = terms.iter().sum();
                let size: f64 = terms.iter().map(|term| term.abs()).sum();
                let unit = match self.dtype {
                    DType::F32 => 0.0,
                    DType::F16 => f64::powi(2.0, -11),
                    DType::Bf16 => f64::powi(2.0, -8),
                    DType::E4m3 => unreachable!("no result is e4m3"),
                };
                // One rounding to the dtype, f32 arithmetic, and half of f16's smallest step, 2⁻²⁴.
                let allowed = unit * exact.abs() + 4e-6 * size + f64::powi(2.0, -25);
                let found = f64::from(o.get(batch, head, seq, dim));
                prop_assert!(
                    (found - exact).abs() <= allowed,
                    "o of row {row}, {dim}: {found} for {exact}"
                );
            }
        }
        Ok(())
    }
}

fn merges<B: Backend>(backend: B, cases: u32) {
    agree_on(backend, cases, &parts(), |backend, parts| {
        parts.check(backend)
    });
}

#[test]
fn cpu() {
    merges(Cpu::new(), 200);
}

#[test]
fn sim() {
    merges(Sim::new(), 60);
}

/// The same ones in each run, so that it is known what they execute.
#[test]
fn sim_of_fixed_parts() {
    let (record, mut sim) = (ferroflash_tests::record!("merge"), Sim::new());
    let mut runner = TestRunner::deterministic();
    for _ in 0..40 {
        let parts = parts().new_tree(&mut runner).expect("drawn").current();
        let checked = parts.check(&mut sim);
        checked.unwrap_or_else(|wrong| panic!("{parts:?}: {wrong}"));
    }
    record.finish(&mut [sim]);
}

#[test]
fn cuda() {
    if let Some(gpu) = gpu_or_not_run("merging partial results") {
        merges(gpu, 200);
    }
}

#[test]
fn parts_without_elements() {
    let mut sim = Sim::new();
    let shape = Shape {
        batch: 2,
        heads: 3,
        seq: 0,
        dim: 8,
    };
    let tensor = |dim| HostTensor::from_f32(&[], Shape { dim, ..shape }, Layout::Bshd).unwrap();
    let (o, lse) = (tensor(8), tensor(1));
    let part = Output::new(
        o.upload(sim.memory()).unwrap(),
        lse.upload(sim.memory()).unwrap(),
    );
    let merged = merge(&mut sim, &[&part, &part]).unwrap();
    assert!(merged.o.spec().is_empty());
    assert_eq!(merged.o.spec().shape, shape);
}
