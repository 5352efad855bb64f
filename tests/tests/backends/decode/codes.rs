//! Every code of an e4m3 cache.

use ferroflash::backend::{Device, Gpu};
use ferroflash::{Backend, Cpu, DType, HostTensor, Layout, Mask};
use ferroflash_testing::cases::{DecodeSpec, ScaleKind};
use ferroflash_tests::tensors::multiply;
use half::{bf16, f16};
use kernels_gpu::e4m3;
use kernels_gpu::instances::Arch;

/// A sequence for each code, of one key. Output is then its value, and lse its score.
fn each_code<B: Backend>(backend: &mut B, dtype: DType, head_dim_v: usize) {
    let codes = 256;
    let spec = DecodeSpec {
        dtype,
        e4m3: Some(ScaleKind::Tensor),
        page_size: Some(1),
        heads_kv: 1,
        group: 1,
        head_dim: 64,
        head_dim_v,
        mask: Mask::None,
        scale_factor: Some(8.0),
        ..DecodeSpec::plain(&vec![1; codes])
    };
    let mut case = spec.build().unwrap();
    let one = |tensor: &HostTensor| HostTensor::from_f32(&[1.0], tensor.spec().shape, Layout::Bhsd);
    case.scales = case
        .scales
        .map(|scales| scales.each_ref().map(|x| one(x).unwrap()));
    case.q.fill(|| 0.0);
    let (table, max_pages) = case.block_table.clone().unwrap();
    for code in 0..codes {
        let page = table[code * max_pages] as usize;
        // Any component of 64 of k; of v each component has every code in some sequence.
        case.q.set(code, 0, 0, code % 64, 1.0);
        for dim in 0..64 {
            let value = if dim == code % 64 { code as u8 } else { 0x31 };
            case.k.set(page, 0, 0, dim, e4m3::to_f32(value));
        }
        for dim in 0..head_dim_v {
            case.v
                .set(page, 0, 0, dim, e4m3::to_f32((dim + code) as u8));
        }
    }
    let (o, lse) = case.run(backend).unwrap();
    // lse goes through log₂ and back; codes are 2⁻⁹ apart, or a sixteenth.
    for code in 0..codes {
        let score = e4m3::to_f32(code as u8);
        let found = lse.get(code, 0, 0, 0);
        assert!(
            (found - score).abs() < 1e-5 + score.abs() * 1e-6 || found.is_nan() && score.is_nan(),
            "score of code {code:#x}: {found} for {score}"
        );
        for dim in 0..head_dim_v {
            let value = e4m3::to_f32((dim + code) as u8);
            let exact = match dtype {
                DType::F16 => f16::from_f32(value).to_f32(),
                _ => bf16::from_f32(value).to_f32(),
            };
            let found = o.get(code, 0, 0, dim);
            let is_nan = exact.is_nan() || score.is_nan();
            assert!(
                found == exact && !is_nan || found.is_nan() && is_nan,
                "code {:#x} beside score {score}: {found} for {exact}",
                (dim + code) % 256
            );
        }
    }
}

/// Of every head_dim's kernel, scales of every kind, in pages and not.
fn scales_of_every_kind<B: Backend>(backend: &mut B, dtype: DType) {
    for head_dim in [64, 128, 256, 40, 80] {
        for kind in ScaleKind::ALL {
            for page_size in [Some(1), Some(16), None] {
                let spec = DecodeSpec {
                    dtype,
                    e4m3: Some(kind),
                    page_size,
                    head_dim,
                    head_dim_v: head_dim,
                    seq_q: 3,
                    group: 3,
                    ..DecodeSpec::plain(&[300, 1, 129])
                };
                super::run_right(backend, &spec);
            }
        }
    }
}

/// Sequences of several chunks, whose keys have scales by `kind`.
fn scaled(dtype: DType, head_dim: usize, kind: ScaleKind) -> DecodeSpec {
    DecodeSpec {
        dtype,
        e4m3: Some(kind),
        head_dim,
        head_dim_v: head_dim,
        seq_q: 2,
        group: 5,
        ..DecodeSpec::plain(&[1200, 70, 300])
    }
}

fn pairs(rows: usize, dims: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).flat_map(move |row| (0..dims).map(move |dim| (row, dim)))
}

/// Queries that f16 cannot hold, of keys whose scales make up for it: as powers of two are exact, no bit changes.
fn queries_far_from_one<B: Backend>(backend: &mut B) {
    for (head_dim, kind) in [
        (64, ScaleKind::Head),
        (128, ScaleKind::Key),
        (256, ScaleKind::Key),
    ] {
        let spec = scaled(DType::Bf16, head_dim, kind);
        let plain = spec.build().unwrap();
        let expected = super::run_case_right(backend, &plain, &spec);
        for exponent in [-100, -40, 40, 100] {
            let mut far = plain.clone();
            multiply(&mut far.q, 2f32.powi(exponent));
            multiply(&mut far.scales.as_mut().unwrap()[0], 2f32.powi(-exponent));
            let found = super::run_case_right(backend, &far, &spec);
            assert_eq!(
                [found.0.bytes(), found.1.bytes()],
                [expected.0.bytes(), expected.1.bytes()],
                "{spec}: queries times 2^{exponent}"
            );
        }
    }
}

/// Rows of queries of which one component is far larger than the others: each of a head_dim's in some row, of either sign.
fn one_large_component<B: Backend>(backend: &mut B) {
    for (head_dim, seq_q) in [(64, 1), (64, 2), (128, 1), (128, 2), (256, 1)] {
        let plain = scaled(DType::Bf16, head_dim, ScaleKind::Tensor);
        let rows = plain.heads_kv * plain.group * seq_q;
        let spec = DecodeSpec {
            seq_q,
            kv_lens: vec![40; head_dim.div_ceil(rows)],
            ..plain
        };
        let mut case = spec.build().unwrap();
        let shape = case.q.spec().shape;
        for (batch, (head, row)) in
            (0..shape.batch).flat_map(|batch| pairs(shape.heads, seq_q).map(move |at| (batch, at)))
        {
            let dim = (batch * rows + head * seq_q + row) % head_dim;
            let value = if head % 2 == 0 { 1e5 } else { -1e5 };
            case.q.set(batch, head, row, dim, value);
        }
        super::run_case_right(backend, &case, &spec);
    }
}

/// Values whose scales are far from 1, and far from each other.
fn values_far_from_one<B: Backend>(backend: &mut B, dtype: DType) {
    for (head_dim, kind) in [
        (64, ScaleKind::Key),
        (128, ScaleKind::Head),
        (256, ScaleKind::Key),
    ] {
        let spec = scaled(dtype, head_dim, kind);
        let plain = spec.build().unwrap();
        let (expected, _) = super::run_case_right(backend, &plain, &spec);
        // Outputs of f16 have no room above.
        for exponent in [-80, -40, 20, 90, 110] {
            if dtype == DType::F16 && exponent > 0 {
                continue;
            }
            let mut far = plain.clone();
            multiply(&mut far.scales.as_mut().unwrap()[1], 2f32.powi(exponent));
            let (found, _) = super::run_case_right(backend, &far, &spec);
            if dtype == DType::F16 {
                continue;
            }
            // Outputs so small are within any bound: they are compared with those of scales near 1.
            let shape = found.spec().shape;
            for (row, dim) in pairs(shape.seq, shape.dim) {
                for head in 0..shape.heads {
                    let near = expected.get(0, head, row, dim);
                    let far = found.get(0, head, row, dim);
                    let back = (f64::from(far) * f64::from(-exponent).exp2()) as f32;
                    assert!(
                        (back - near).abs() <= near.abs().max(0.1) / 64.0,
                        "{spec}: values times 2^{exponent}: {back} for {near}"
                    );
                }
            }
        }
        // Every second key's value is so much larger that nothing is left of the others, of which some have the largest scores.
        let mut mixed = plain.clone();
        let scales = &mut mixed.scales.as_mut().unwrap()[1];
        let shape = scales.spec().shape;
        for page in 0..shape.batch {
            for (key, head) in pairs(shape.seq, shape.heads) {
                let exponent = if (page + key + head) % 2 == 0 { -60 } else { 0 };
                let value = scales.get(page, head, key, 0);
                scales.set(page, head, key, 0, value * 2f32.powi(exponent));
            }
        }
        super::run_case_right(backend, &mixed, &spec);
    }
}

fn all<B: Backend>(backend: &mut B) {
    for dtype in [DType::F16, DType::Bf16] {
        for head_dim_v in [64, 128, 256] {
            each_code(backend, dtype, head_dim_v);
        }
        scales_of_every_kind(backend, dtype);
        values_far_from_one(backend, dtype);
    }
    queries_far_from_one(backend);
    one_large_component(backend);
}

/// By the kernels that convert codes, and by those of GPUs that have no such instruction.
fn on_every_gpu<D: Device>(gpu: &mut Gpu<D>) {
    all(gpu);
    gpu.limit_compute_capability(Arch::Sm80.oldest());
    all(gpu);
    gpu.limit_compute_capability((u32::MAX, u32::MAX));
}

#[test]
fn cpu() {
    all(&mut Cpu::new());
    scales_of_every_kind(&mut Cpu::new(), DType::F32);
}

ferroflash_tests::on_schedules_in_turn_and_gpu!(on_every_gpu, "codes of e4m3");
